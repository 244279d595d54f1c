//! The settings of a runner pool: the names of its queues, table and groups, its classes, and its time limits.

use std::time::Duration;

use domain::{Attributes, Requirements, UsageClass, requirements};

/// A runner pool. Settings with the same region, endpoint, table and prefix mean the same pool.
#[derive(Clone, Debug)]
pub struct Settings {
    pub region: String,
    /// Another address of AWS, for example LocalStack or moto.
    pub endpoint: Option<String>,
    /// The names of queues and groups begin with this prefix.
    pub queue_prefix: String,
    pub table: String,
    /// The launch template of the machines: `lt-…` or its name.
    pub launch_template: Option<String>,
    /// The subnet ids for the machines. Without subnets, the zones apply.
    pub subnets: Vec<String>,
    pub zones: Vec<String>,
    /// Smallest class first.
    pub classes: Vec<Class>,
    pub pace: Pace,
    /// The installation whose slots claim runners. Several installations may share a pool.
    pub installation: String,
}

/// A class of runners. It has one queue, and groups for each usage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    pub cpu: u32,
    /// In MiB.
    pub mem: u32,
    /// The instance types of its groups, in order of preference.
    pub instance_types: Vec<String>,
    /// The maximum size of its groups.
    pub max: u32,
    pub spot_max: u32,
    /// How many idle on-demand runners the keeper maintains.
    pub min_idle: u32,
}

/// The classes that have built-in sizes: cpu, and memory in MiB.
pub const KNOWN_CLASSES: [(&str, u32, u32); 8] = [
    ("large", 2, 4096),
    ("xlarge", 4, 8192),
    ("2xlarge", 8, 16_384),
    ("4xlarge", 16, 32_768),
    ("8xlarge", 32, 65_536),
    ("12xlarge", 48, 98_304),
    ("16xlarge", 64, 131_072),
    ("24xlarge", 96, 196_608),
];

/// Time limits and retry counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often an agent sends a heartbeat.
    pub heartbeat: Duration,
    /// A runner with a heartbeat within this time is healthy.
    pub healthy: Duration,
    /// How long an agent may take to acknowledge a bot.
    pub registration: Duration,
    /// How long an agent may take to release its runner after a stop request. This covers the time until its next
    /// heartbeat and the bot's time to leave.
    pub stop: Duration,
    /// How long a claim may stay unacknowledged.
    pub claim: Duration,
    /// How long a machine may take to register.
    pub created: Duration,
    /// How long an idle runner is kept.
    pub idle: Duration,
    /// How long an announcement is valid. The keeper renews it before it expires.
    pub announcement: Duration,
    /// How long an unused message stays invisible.
    pub redelivery: Duration,
    /// How often the same runner may be offered to one request before the queue counts as exhausted for it.
    pub rounds: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(5),
            healthy: Duration::from_secs(15),
            registration: Duration::from_secs(10),
            stop: Duration::from_secs(45),
            claim: Duration::from_mins(5),
            created: Duration::from_mins(10),
            idle: Duration::from_mins(30),
            announcement: Duration::from_secs(50),
            redelivery: Duration::from_secs(3),
            rounds: 5,
        }
    }
}

impl Class {
    /// The attributes of its runners in a usage class, one entry for each instance type.
    pub fn offers(&self, usage_class: UsageClass) -> impl Iterator<Item = Attributes> {
        self.instance_types.iter().map(move |name| Attributes {
            resource_class: Some(self.name.clone()),
            usage_class,
            instance_type: Some(name.clone()),
            cpu: self.cpu,
            mem: self.mem,
        })
    }

    /// The maximum size of its group in a usage class.
    pub fn most(&self, usage_class: UsageClass) -> u32 {
        match usage_class {
            UsageClass::OnDemand => self.max,
            UsageClass::Spot => self.spot_max,
        }
    }

    /// Whether a machine of this usage class meets the requirements with every one of these types.
    pub fn always_fits(&self, wanted: Option<&Requirements>, usage_class: UsageClass, types: &[&str]) -> bool {
        let is_one = |has: &Attributes| has.instance_type.as_deref().is_some_and(|name| types.contains(&name));
        self.offers(usage_class).filter(is_one).all(|has| requirements::fits(wanted, &has))
    }

    /// The usage classes that could meet the requirements, on-demand first.
    pub fn could_fit(&self, wanted: Option<&Requirements>) -> Vec<UsageClass> {
        let fits = |usage: &UsageClass| {
            self.most(*usage) > 0 && self.offers(*usage).any(|has| requirements::fits(wanted, &has))
        };
        UsageClass::ALL.into_iter().filter(fits).collect()
    }
}

impl Settings {
    /// The name of a class's queue.
    pub fn queue(&self, class: &str) -> String {
        format!("{}{class}", self.queue_prefix)
    }

    /// The name of the Auto Scaling group of a class and usage class.
    pub fn group(&self, class: &str, usage_class: UsageClass) -> String {
        format!("{}{class}-{usage_class}", self.queue_prefix)
    }

    /// The name of the group that starts only one instance type, for bots that allow no other type of the class.
    pub fn group_of_type(&self, class: &str, usage_class: UsageClass, instance_type: &str) -> String {
        format!("{}-{instance_type}", self.group(class, usage_class))
    }

    /// All groups of a class and usage class, each with its types. The group of all types is first.
    pub fn groups_of<'a>(&self, class: &'a Class, usage_class: UsageClass) -> Vec<(String, Vec<&'a str>)> {
        let types: Vec<&str> = class.instance_types.iter().map(String::as_str).collect();
        let of_type = |name: &&'a str| (self.group_of_type(&class.name, usage_class, name), vec![*name]);
        let single: Vec<_> = if types.len() > 1 { types.iter().map(of_type).collect() } else { Vec::new() };
        let mut groups = vec![(self.group(&class.name, usage_class), types)];
        groups.extend(single);
        groups
    }

    /// The class and usage class of a group.
    pub fn class_of_group(&self, group: &str) -> Option<(&Class, UsageClass)> {
        let mut all = self.classes.iter().flat_map(|class| UsageClass::ALL.map(|usage| (class, usage)));
        all.find(|(class, usage)| self.groups_of(class, *usage).iter().any(|(name, _)| name == group))
    }

    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name == name)
    }
}
