//! What a runner pool has to know: where its queues, its table and its groups are, what its classes are, and how long each
//! thing may take.

use std::time::Duration;

use domain::{Attributes, Requirements, UsageClass, requirements};

/// A runner pool. Pools with the same region, endpoint, table and prefix are one.
#[derive(Clone, Debug)]
pub struct Settings {
    pub region: String,
    /// Where AWS is, if not where it usually is: LocalStack, moto.
    pub endpoint: Option<String>,
    /// Names of queues and groups begin with it.
    pub queue_prefix: String,
    pub table: String,
    /// What Auto Scaling makes runners from: `lt-…` or the template's name.
    pub launch_template: Option<String>,
    /// Where runners are started: ids of subnets, or, without, zones.
    pub subnets: Vec<String>,
    pub zones: Vec<String>,
    /// The smallest first.
    pub classes: Vec<Class>,
    pub pace: Pace,
    /// The installation whose slots claim runners: several may share a pool.
    pub installation: String,
}

/// A class of runners: one queue, and a group for each usage class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    pub name: String,
    pub cpu: u32,
    /// In MiB.
    pub mem: u32,
    /// What its groups may start, in the order of preference.
    pub instance_types: Vec<String>,
    /// How large its groups may be.
    pub max: u32,
    pub spot_max: u32,
    /// How many idle runners on demand are kept.
    pub min_idle: u32,
}

/// The classes that are known by their names alone: cpu, and memory in MiB.
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

/// How long each thing may take, and how often it is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How often an agent tells that its runner lives.
    pub heartbeat: Duration,
    /// A runner that was heard of within this is healthy.
    pub healthy: Duration,
    /// How long a runner's agent may take to acknowledge a bot.
    pub registration: Duration,
    /// How long an agent may take to give its runner back that is to stop: until its next heartbeat, and as long as it
    /// lets a bot take to leave.
    pub stop: Duration,
    /// How long a claim may stay unconfirmed.
    pub claim: Duration,
    /// How long a runner may take to come up.
    pub created: Duration,
    /// How long an idle runner is kept.
    pub idle: Duration,
    /// How long an announcement in the queue is good for; it is renewed before its end.
    pub announcement: Duration,
    /// How long a message that nobody wanted stays away.
    pub redelivery: Duration,
    /// How often the same runner may come by for one request before the queue counts as exhausted for it.
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
    /// What its runners of a usage class have, by each of its instance types.
    pub fn offers(&self, usage_class: UsageClass) -> impl Iterator<Item = Attributes> {
        self.instance_types.iter().map(move |name| Attributes {
            resource_class: Some(self.name.clone()),
            usage_class,
            instance_type: Some(name.clone()),
            cpu: self.cpu,
            mem: self.mem,
        })
    }

    /// How large its group of a usage class may be.
    pub fn most(&self, usage_class: UsageClass) -> u32 {
        match usage_class {
            UsageClass::OnDemand => self.max,
            UsageClass::Spot => self.spot_max,
        }
    }

    /// Whether a machine of a usage class meets the requirements, whichever of these types it is of.
    pub fn always_fits(&self, wanted: Option<&Requirements>, usage_class: UsageClass, types: &[&str]) -> bool {
        let is_one = |has: &Attributes| has.instance_type.as_deref().is_some_and(|name| types.contains(&name));
        self.offers(usage_class).filter(is_one).all(|has| requirements::fits(wanted, &has))
    }

    /// The usage classes of which a machine could meet the requirements: those that stay first.
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

    /// The name of the group that starts only machines of one type of a class, for bots that allow no others.
    pub fn group_of_type(&self, class: &str, usage_class: UsageClass, instance_type: &str) -> String {
        format!("{}-{instance_type}", self.group(class, usage_class))
    }

    /// All groups of a class and usage class, each with the types that it starts: the one of all types first.
    pub fn groups_of<'a>(&self, class: &'a Class, usage_class: UsageClass) -> Vec<(String, Vec<&'a str>)> {
        let types: Vec<&str> = class.instance_types.iter().map(String::as_str).collect();
        let of_type = |name: &&'a str| (self.group_of_type(&class.name, usage_class, name), vec![*name]);
        let single: Vec<_> = if types.len() > 1 { types.iter().map(of_type).collect() } else { Vec::new() };
        let mut groups = vec![(self.group(&class.name, usage_class), types)];
        groups.extend(single);
        groups
    }

    /// The class and usage class that a group is of.
    pub fn class_of_group(&self, group: &str) -> Option<(&Class, UsageClass)> {
        let mut all = self.classes.iter().flat_map(|class| UsageClass::ALL.map(|usage| (class, usage)));
        all.find(|(class, usage)| self.groups_of(class, *usage).iter().any(|(name, _)| name == group))
    }

    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| class.name == name)
    }
}
