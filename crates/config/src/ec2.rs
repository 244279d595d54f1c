//! The settings of an EC2 pool: its queues, its table, its groups, its classes of runners, and its time limits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use domain::requirements::{self, is_class_name};
use domain::{Attributes, UsageClass};

use super::duration;
use super::layers::Tree;
use super::pool::MOST_SLOTS;
use super::provider::{Size, address, required};
use super::section::Section;

/// The classes of a pool that names none.
const USUAL_CLASSES: [&str; 4] = ["large", "xlarge", "2xlarge", "4xlarge"];
/// The instance families of a known class, in the order of preference.
const USUAL_FAMILIES: [&str; 3] = ["c6i", "m6i", "r6i"];
/// The longest name of a queue that SQS accepts.
const LONGEST_QUEUE: usize = 80;
/// How long SQS keeps an announcement: the shortest time that SQS supports, minus some seconds.
const LONGEST_ANNOUNCEMENT: Duration = Duration::from_secs(50);
/// The keeper runs every 5 seconds, and announces a runner again whose announcement ends in less than 10 seconds.
const SHORTEST_ANNOUNCEMENT: Duration = Duration::from_secs(20);
/// The longest time for which SQS delays a message.
const LONGEST_REDELIVERY: Duration = Duration::from_mins(15);
const SHORTEST: Duration = Duration::from_millis(100);
/// A little less than the time that a provider has to stop a slot.
const LONGEST_STOP: Duration = Duration::from_secs(110);
const HOUR: Duration = Duration::from_hours(1);

/// Pools with the same region, endpoint, table and prefix share their runners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ec2Config {
    pub region: String,
    /// The address of AWS, if it is not the usual one.
    pub endpoint: Option<String>,
    pub queue_prefix: String,
    pub table: String,
    pub launch_template: Option<String>,
    pub subnets: Vec<String>,
    pub zones: Vec<String>,
    /// The smallest first.
    pub classes: Vec<aws::Class>,
    pub pace: aws::Pace,
    /// The configured limits of each class. The other limits follow from the size of the pool.
    given: BTreeSet<GivenKey>,
}

/// A class, and the key of a configured limit.
type GivenKey = (String, &'static str);

impl Ec2Config {
    /// The attributes that its runners may have.
    pub fn offers(&self) -> Vec<Attributes> {
        let of_class = |class: &aws::Class| {
            let usages = UsageClass::ALL.into_iter().filter(|usage| class.most(*usage) > 0);
            usages.flat_map(|usage| class.offers(usage)).collect::<Vec<_>>()
        };
        self.classes.iter().flat_map(of_class).collect()
    }

    /// The same settings, for the module that picks up runners.
    pub fn settings(&self, installation: &str) -> aws::Settings {
        let Self { region, endpoint, queue_prefix, table, launch_template, subnets, zones, classes, pace, given: _ } =
            self.clone();
        let installation = installation.to_owned();
        aws::Settings {
            region,
            endpoint,
            queue_prefix,
            table,
            launch_template,
            subnets,
            zones,
            classes,
            pace,
            installation,
        }
    }

    /// Identifies a set of runners.
    pub fn key(&self) -> [&str; 4] {
        [&self.region, self.endpoint.as_deref().unwrap_or_default(), &self.table, &self.queue_prefix]
    }

    /// Merges the settings of two pools that share their runners. Limits that follow from the pools' sizes add up. Of
    /// configured limits, the larger one applies.
    pub fn merge(&mut self, other: &Self) {
        for class in &other.classes {
            let Some(own) = self.classes.iter_mut().find(|own| own.name == class.name) else {
                self.classes.push(class.clone());
                continue;
            };
            let both = |key: &'static str, own: u32, theirs: u32| {
                let given = (class.name.clone(), key);
                match (self.given.contains(&given), other.given.contains(&given)) {
                    (true, true) => own.max(theirs),
                    (true, false) => own,
                    (false, true) => theirs,
                    (false, false) => own.saturating_add(theirs).min(MOST_SLOTS),
                }
            };
            own.max = both("max", own.max, class.max);
            own.spot_max = both("spot_max", own.spot_max, class.spot_max);
            own.min_idle = both("min_idle", own.min_idle, class.min_idle).min(own.max);
        }
        self.given.extend(other.given.iter().cloned());
        sort(&mut self.classes);
    }

    /// The first contradiction between two pools that share their runners.
    pub fn contradiction(&self, other: &Self) -> Option<String> {
        if self.key() != other.key() {
            let [(region, at, table, prefix), (region_2, at_2, table_2, prefix_2)] =
                [self, other].map(|one| (&one.region, &one.endpoint, &one.table, &one.queue_prefix));
            let half = (region, at) == (region_2, at_2) && (table == table_2 || prefix == prefix_2);
            // Each pool would treat the other's machines as its own.
            return half.then(|| {
                "`table` or `queue_prefix`: use the same values for both keys, or different values for both".to_owned()
            });
        }
        let is_other = |class: &&aws::Class| {
            let made_of = |class: &aws::Class| (class.cpu, class.mem, class.instance_types.clone());
            other.classes.iter().any(|theirs| theirs.name == class.name && made_of(theirs) != made_of(class))
        };
        if let Some(class) = self.classes.iter().find(is_other) {
            return Some(format!("`cpu`, `mem` or `instance_types` of the class {}", class.name));
        }
        let differs = [
            ("`launch_template`", self.launch_template != other.launch_template),
            ("`subnets`", self.subnets != other.subnets),
            ("`zones`", self.zones != other.zones),
            ("a time limit or `rounds`", self.pace != other.pace),
        ];
        differs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what.to_owned())
    }
}

fn sort(classes: &mut [aws::Class]) {
    classes.sort_by(|left, right| (left.cpu, left.mem, &left.name).cmp(&(right.cpu, right.mem, &right.name)));
}

pub fn read(section: &mut Section<'_>, size: Size) -> Option<Ec2Config> {
    let region = required(section, "region", |own, key| own.text(key));
    let endpoint = address(section, "endpoint");
    let queue_prefix = required(section, "queue_prefix", |own, key| own.text(key));
    let table = required(section, "table", |own, key| own.text(key));
    if let Some(table) = table.as_deref().filter(|table| !is_table(table)) {
        let path = section.key_path("table");
        section.complain(format!(
            "`{path}` is `{table}`, but must have 3 to 255 letters, digits, dots, dashes and underscores"
        ));
    }
    if let Some(prefix) = queue_prefix.as_deref().filter(|prefix| !is_of_queue(prefix)) {
        let path = section.key_path("queue_prefix");
        section.complain(format!("`{path}` is `{prefix}`, but may have only letters, digits, dashes and underscores"));
    }
    let launch_template = section.text("launch_template");
    let [subnets, zones] = [("subnets", "subnet-0a1b2c3d"), ("zones", "eu-west-1a")]
        .map(|(key, such_as)| names(section, key, such_as).unwrap_or_default());
    if !subnets.is_empty() && !zones.is_empty() {
        let [subnets, zones] = ["subnets", "zones"].map(|key| section.key_path(key));
        section.complain(format!("`{subnets}` and `{zones}` cannot be set together: subnets already have zones"));
    }
    let (classes, given) = classes(section, size, queue_prefix.as_deref().unwrap_or_default());
    let pace = pace(section);
    Some(Ec2Config {
        endpoint,
        launch_template,
        subnets,
        zones,
        classes,
        pace,
        given,
        region: region?,
        queue_prefix: queue_prefix?,
        table: table?,
    })
}

fn is_of_queue(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn is_table(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (3..=255).contains(&name.len()) && name.bytes().all(fits)
}

/// A list of names. The error shows an example of one.
fn names(section: &mut Section<'_>, key: &'static str, such_as: &str) -> Option<Vec<String>> {
    section.read(key, "a list of names", |value| {
        let toml::Value::Array(items) = value else { return Err(format!("must be a list, such as [\"{such_as}\"]")) };
        let names: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        let fits = |name: &String| !name.is_empty() && !name.contains(char::is_whitespace);
        let names = names.filter(|names| !names.is_empty() && names.iter().all(fits));
        names.ok_or_else(|| format!("must be a list of names, such as [\"{such_as}\"]"))
    })
}

/// A list of known classes, or a table that describes each class. Without the setting, the usual classes.
fn classes(section: &mut Section<'_>, size: Size, prefix: &str) -> (Vec<aws::Class>, BTreeSet<GivenKey>) {
    let path = section.key_path("classes");
    let given: BTreeMap<String, Tree> = match section.take("classes") {
        None => USUAL_CLASSES.map(|name| (name.to_owned(), Tree::empty())).into(),
        Some(Tree::Table(entries)) => entries,
        Some(Tree::Leaf(toml::Value::Array(items), _)) if items.iter().all(toml::Value::is_str) => {
            items.iter().filter_map(|item| Some((item.as_str()?.to_owned(), Tree::empty()))).collect()
        }
        Some(_) => {
            section.complain(format!(
                "`{path}` must be a list of classes, such as [\"large\", \"xlarge\"], or a table, such as \
                 {{ large = {{ max = 10 }} }}"
            ));
            return Default::default();
        }
    };
    if given.is_empty() {
        section.complain(format!("`{path}` must not be empty"));
    }
    let (mut classes, mut sizes) = (Vec::new(), BTreeSet::new());
    for (name, tree) in given {
        classes.extend(class(section, name, tree, size, prefix, &mut sizes));
    }
    sort(&mut classes);
    // The pool's idle runners are of its smallest class, unless the class has its own setting.
    for (index, class) in classes.iter_mut().enumerate() {
        if index == 0 && !sizes.contains(&(class.name.clone(), "min_idle")) {
            class.min_idle = size.min_idle;
        }
        if class.min_idle > class.max {
            let (name, min_idle, max) = (&class.name, class.min_idle, class.max);
            section.complain(format!("`{path}.{name}.min_idle` ({min_idle}) must not be more than `max` ({max})"));
        }
    }
    (classes, sizes)
}

/// Reads a class, and adds its configured limits to `given`.
fn class(
    section: &mut Section<'_>,
    name: String,
    tree: Tree,
    size: Size,
    prefix: &str,
    given: &mut BTreeSet<GivenKey>,
) -> Option<aws::Class> {
    let key = format!("classes.{name}");
    let path = section.key_path(&key);
    let queue = prefix.len() + name.len();
    if !is_class_name(&name) || !is_of_queue(&name) || queue > LONGEST_QUEUE {
        section.complain(format!(
            "`{path}`: the class gives its queue the name `{prefix}{name}`, which must have at most {LONGEST_QUEUE} \
             letters, digits, dashes and underscores"
        ));
        return None;
    }
    let known = aws::KNOWN_CLASSES.iter().find(|(known, ..)| *known == name);
    let mut own = section.own(&key, tree);
    let (cpu, mem) = match known {
        Some((_, cpu, mem)) => (*cpu, *mem),
        None => (0, 0),
    };
    // A class without a known name must have all three settings. With none of them, its name is probably mistyped.
    if known.is_none() && !["cpu", "mem", "instance_types"].iter().all(|key| own.has(key)) {
        let known = aws::KNOWN_CLASSES.map(|(name, ..)| name).join(", ");
        own.complain(format!(
            "`{path}` is not a known class ({known}); for your own class, set `cpu`, `mem` and `instance_types`"
        ));
    }
    let cpu = own.number("cpu", cpu, 1..=requirements::MOST);
    let mem = own.number("mem", mem, 1..=requirements::MOST);
    let usual = || USUAL_FAMILIES.map(|family| format!("{family}.{name}")).to_vec();
    let instance_types = names(&mut own, "instance_types", "c6i.large").unwrap_or_else(usual);
    if let Some(wrong) = instance_types.iter().find(|name| !is_class_name(name)) {
        own.complain(format!("`{path}.instance_types` has `{wrong}`, which is not an instance type such as c6i.large"));
    }
    let sizes = ["max", "spot_max", "min_idle"].into_iter().filter(|key| own.has(key));
    given.extend(sizes.map(|key| (name.clone(), key)));
    let max = own.number("max", size.max_slots, 0..=MOST_SLOTS);
    let spot_max = own.number("spot_max", size.max_slots, 0..=MOST_SLOTS);
    let min_idle = own.number("min_idle", 0, 0..=MOST_SLOTS);
    own.finish();
    Some(aws::Class { name, cpu, mem, instance_types, max, spot_max, min_idle })
}

fn pace(section: &mut Section<'_>) -> aws::Pace {
    let usual = aws::Pace::default();
    let pace = aws::Pace {
        heartbeat: within(section, "heartbeat_interval", usual.heartbeat, SHORTEST..=Duration::from_mins(1)),
        healthy: within(section, "healthy_within", usual.healthy, SHORTEST..=HOUR),
        registration: within(section, "registration_timeout", usual.registration, SHORTEST..=Duration::from_mins(5)),
        stop: within(section, "stop_timeout", usual.stop, SHORTEST..=LONGEST_STOP),
        claim: within(section, "claim_timeout", usual.claim, SHORTEST..=HOUR),
        created: within(section, "created_timeout", usual.created, SHORTEST..=HOUR * 24),
        idle: within(section, "idle_timeout", usual.idle, SHORTEST..=HOUR * 24 * 30),
        announcement: within(section, "announcement", usual.announcement, SHORTEST_ANNOUNCEMENT..=LONGEST_ANNOUNCEMENT),
        redelivery: within(section, "redelivery", usual.redelivery, Duration::ZERO..=LONGEST_REDELIVERY),
        rounds: section.number("rounds", usual.rounds, 1..=1_000),
    };
    let longer = [
        ("healthy_within", pace.healthy, "heartbeat_interval", pace.heartbeat, "every runner would count as dead"),
        (
            "claim_timeout",
            pace.claim,
            "registration_timeout",
            pace.registration,
            "claims would end before agents can acknowledge them",
        ),
        ("claim_timeout", pace.claim, "healthy_within", pace.healthy, "runners would be ended while they are healthy"),
        (
            "announcement",
            pace.announcement,
            "redelivery",
            pace.redelivery,
            "returned messages would end while they are hidden",
        ),
    ];
    for (key, time, other, least, why) in longer.into_iter().filter(|(_, time, _, least, _)| time <= least) {
        let [key, other] = [key, other].map(|key| section.key_path(key));
        section.complain(format!("`{key}` ({time:?}) must be longer than `{other}` ({least:?}); otherwise {why}"));
    }
    if pace.redelivery.subsec_nanos() != 0 {
        let path = section.key_path("redelivery");
        section.complain(format!("`{path}` must be in whole seconds, because SQS counts in seconds"));
    }
    pace
}

fn within(
    section: &mut Section<'_>,
    key: &'static str,
    default: Duration,
    range: RangeInclusive<Duration>,
) -> Duration {
    let read = section.read(key, "a duration", |value| {
        let toml::Value::String(text) = value else {
            return Err("is not a duration; write it in quotes with its unit, such as \"90s\" or \"5m\"".to_owned());
        };
        let time = duration::parse(&text).map_err(|sentence| format!("is not valid: {sentence}"))?;
        let wrong = || format!("is {text}, but must be from {:?} to {:?}", range.start(), range.end());
        if range.contains(&time) { Ok(time) } else { Err(wrong()) }
    });
    read.unwrap_or(default)
}
