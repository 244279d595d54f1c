//! The attributes of a slot or a runner. They are the same in the store and in a cloud.

use std::fmt;
use std::str::FromStr;

use super::{MOST, UsageClass};

/// The longest name of a class or an instance type.
const LONGEST_NAME: usize = 64;

/// The attributes of a slot. An unknown attribute meets no requirement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// The name of its resource class.
    pub resource_class: Option<String>,
    /// Whether its machine is on-demand or spot.
    pub usage_class: UsageClass,
    /// The instance type of its machine.
    pub instance_type: Option<String>,
    /// The number of processors.
    pub cpu: u32,
    /// In MiB.
    pub mem: u32,
}

impl Attributes {
    /// The order in which slots are given out: on-demand before spot, then smallest first.
    pub fn size(&self) -> (UsageClass, u32, u32) {
        (self.usage_class, self.cpu, self.mem)
    }
}

/// Whether a text can be the name of a class or an instance type. Other names contain it, so its characters are
/// limited.
pub fn is_class_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let first = name.bytes().next();
    name.len() <= LONGEST_NAME && first.is_some_and(|byte| byte.is_ascii_alphanumeric()) && name.bytes().all(fits)
}

/// A text that is not a list of attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a list of slot attributes")]
pub struct MalformedAttributes(pub String);

/// The stored form: `large on-demand c6i.large 2 4096`, with a dash for unknown attributes.
impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [class, name] = [&self.resource_class, &self.instance_type].map(|text| text.as_deref().unwrap_or("-"));
        write!(f, "{class} {} {name} {} {}", self.usage_class, self.cpu, self.mem)
    }
}

impl FromStr for Attributes {
    type Err = MalformedAttributes;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text).ok_or_else(|| MalformedAttributes(text.to_owned()))
    }
}

fn read(text: &str) -> Option<Attributes> {
    let parts: [&str; 5] = text.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let name = |word: &str| match word {
        "-" => Some(None),
        word => is_class_name(word).then(|| Some(word.to_owned())),
    };
    let number = |word: &str| word.parse().ok().filter(|number| *number <= MOST);
    Some(Attributes {
        resource_class: name(parts[0])?,
        usage_class: parts[1].parse().ok()?,
        instance_type: name(parts[2])?,
        cpu: number(parts[3])?,
        mem: number(parts[4])?,
    })
}
