//! The table items of runners and slots. Other versions of this program write these items too, so every DynamoDB
//! attribute is checked when it is read.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use domain::requirements::Attributes;
use jiff::Timestamp;

use crate::clock::{after, from_millis};
use crate::message::{Announcement, text};
use crate::{AwsError, Settings};

/// How long the table keeps a terminated runner.
const REMEMBERED: Duration = Duration::from_hours(24);
const READ: &str = "the table";

pub(crate) type Item = HashMap<String, AttributeValue>;

/// The state of a runner. `Terminated` is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunnerState {
    /// The machine exists. Its agent has not registered, or has no command that is ready.
    Created,
    Idle,
    /// The runner is claimed for a slot. Its agent has not acknowledged it.
    Claimed,
    Running,
    Terminated,
}

impl RunnerState {
    pub const ALL: [Self; 5] = [Self::Created, Self::Idle, Self::Claimed, Self::Running, Self::Terminated];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Idle => "idle",
            Self::Claimed => "claimed",
            Self::Running => "running",
            Self::Terminated => "terminated",
        }
    }
}

impl fmt::Display for RunnerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A machine that runs one slot after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runner {
    pub instance: String,
    pub attributes: Attributes,
    /// The Auto Scaling group of the machine.
    pub group: String,
    pub state: RunnerState,
    /// The current or last run. Each claim has a new run id.
    pub run_id: Option<String>,
    /// The slot as `installation/slot`.
    pub slot: Option<String>,
    pub connection: Option<String>,
    /// When the last announcement expires.
    pub expires_at: Timestamp,
    pub idle_until: Option<Timestamp>,
    /// When the runner entered its state.
    pub since: Timestamp,
    /// The agent must end the run and release the runner.
    pub stop_asked: bool,
    /// The runner is claimed together with others, and some of those are not claimed yet.
    pub held: bool,
}

impl Runner {
    /// A runner for a machine in a group. `None` if the group is not one of the pool's groups.
    pub(crate) fn created(
        settings: &Settings,
        instance: &str,
        group: &str,
        instance_type: &str,
        now: Timestamp,
    ) -> Option<Self> {
        let (class, usage_class) = settings.class_of_group(group)?;
        let attributes = Attributes {
            resource_class: Some(class.name.clone()),
            usage_class,
            instance_type: Some(instance_type.to_owned()),
            cpu: class.cpu,
            mem: class.mem,
        };
        Some(Self {
            instance: instance.to_owned(),
            attributes,
            group: group.to_owned(),
            state: RunnerState::Created,
            run_id: None,
            slot: None,
            connection: None,
            expires_at: now,
            idle_until: None,
            since: now,
            stop_asked: false,
            held: false,
        })
    }

    /// The idle runner that the table has if the announcement is still valid.
    pub(crate) fn announced(settings: &Settings, announcement: &Announcement, now: Timestamp) -> Self {
        let attributes = announcement.attributes.clone();
        let class = attributes.resource_class.clone().unwrap_or_default();
        Self {
            instance: announcement.instance.clone(),
            group: settings.group(&class, attributes.usage_class),
            attributes,
            state: RunnerState::Idle,
            run_id: None,
            slot: None,
            connection: None,
            expires_at: announcement.expires_at,
            idle_until: None,
            since: now,
            stop_asked: false,
            held: false,
        }
    }

    /// The runner in state idle, announced until `expires_at`.
    pub(crate) fn idle(&self, now: Timestamp, expires_at: Timestamp, idle: Duration) -> Self {
        Self {
            state: RunnerState::Idle,
            run_id: None,
            slot: None,
            connection: None,
            expires_at,
            idle_until: Some(after(now, idle)),
            since: now,
            stop_asked: false,
            held: false,
            ..self.clone()
        }
    }

    /// The runner in state claimed, for a slot.
    pub(crate) fn claimed(&self, now: Timestamp, run_id: &str, slot: &str, connection: Option<&str>) -> Self {
        Self {
            state: RunnerState::Claimed,
            run_id: Some(run_id.to_owned()),
            slot: Some(slot.to_owned()),
            connection: connection.map(str::to_owned),
            idle_until: None,
            since: now,
            ..self.clone()
        }
    }

    /// The runner in state created: it gets no slot until its agent registers it again. Its idle time goes on.
    pub(crate) fn unregistered(&self, now: Timestamp) -> Self {
        Self { state: RunnerState::Created, expires_at: now, since: now, ..self.clone() }
    }

    pub(crate) fn running(&self, now: Timestamp) -> Self {
        Self { state: RunnerState::Running, since: now, held: false, ..self.clone() }
    }

    /// The runner in state terminated. A running runner keeps its slot until its machine is known to end.
    pub(crate) fn terminated(&self, now: Timestamp) -> Self {
        let keeps = self.state == RunnerState::Running;
        Self {
            state: RunnerState::Terminated,
            slot: self.slot.clone().filter(|_| keeps),
            idle_until: None,
            since: now,
            held: false,
            ..self.clone()
        }
    }

    /// The name of its slot, if the slot belongs to this installation.
    pub fn slot_of(&self, installation: &str) -> Option<&str> {
        self.slot.as_deref()?.strip_prefix(installation)?.strip_prefix('/')
    }

    pub(crate) fn is_for(&self, run_id: &str) -> bool {
        self.run_id.as_deref() == Some(run_id)
    }

    pub(crate) fn announcement(&self) -> Announcement {
        Announcement::new(&self.instance, &self.attributes, self.expires_at)
    }

    pub(crate) fn key(&self) -> String {
        runner_key(&self.instance)
    }

    pub(crate) fn write(&self) -> Item {
        let mut item = Item::new();
        let mut put = |name: &str, value: AttributeValue| item.insert(name.to_owned(), value);
        put("id", string(&self.key()));
        put("state", string(self.state.as_str()));
        put("run_id", string(self.run_id.as_deref().unwrap_or_default()));
        put("threshold", string(&text(self.expires_at)));
        put("resource_class", string(self.attributes.resource_class.as_deref().unwrap_or_default()));
        put("usage_class", string(self.attributes.usage_class.as_str()));
        put("instance_type", string(self.attributes.instance_type.as_deref().unwrap_or_default()));
        put("cpu", number(self.attributes.cpu.into()));
        put("mem", number(self.attributes.mem.into()));
        put("group", string(&self.group));
        put("since", number(self.since.as_millisecond()));
        if let Some(until) = self.idle_until {
            put("idle_until", number(until.as_millisecond()));
        }
        if let Some(slot) = &self.slot {
            put("slot", string(slot));
        }
        if let Some(connection) = &self.connection {
            put("connection", string(connection));
        }
        if self.stop_asked {
            put("stop_asked", AttributeValue::Bool(true));
        }
        if self.held {
            put("held", AttributeValue::Bool(true));
        }
        if self.state == RunnerState::Terminated {
            put("expires", number(after(self.since, REMEMBERED).as_second()));
        }
        item
    }

    pub(crate) fn read(item: &Item) -> Result<Self, AwsError> {
        let fields = Fields(item);
        let id = fields.text("id")?;
        let instance = id.strip_prefix(RUNNER).ok_or_else(|| fields.wrong("id"))?;
        let state = fields.text("state")?;
        let state = RunnerState::ALL.into_iter().find(|known| known.as_str() == state);
        let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Ok(Self {
            instance: instance.to_owned(),
            attributes: Attributes {
                resource_class: filled(fields.text("resource_class")?),
                usage_class: fields.parsed("usage_class")?,
                instance_type: filled(fields.text("instance_type")?),
                cpu: fields.number("cpu")?,
                mem: fields.number("mem")?,
            },
            group: fields.text("group")?.to_owned(),
            state: state.ok_or_else(|| fields.wrong("state"))?,
            run_id: filled(fields.text("run_id")?),
            slot: fields.optional_text("slot"),
            connection: fields.optional_text("connection"),
            expires_at: fields.parsed("threshold")?,
            idle_until: fields.optional_number("idle_until").map(from_millis),
            since: from_millis(fields.number("since")?),
            stop_asked: fields.flag("stop_asked"),
            held: fields.flag("held"),
        })
    }
}

const RUNNER: &str = "runner#";

pub(crate) fn runner_key(instance: &str) -> String {
    format!("{RUNNER}{instance}")
}

pub(crate) fn beat_key(instance: &str) -> String {
    format!("beat#{instance}")
}

/// The key of a slot. `slot` includes the installation.
pub(crate) fn slot_key(slot: &str) -> String {
    format!("slot#{slot}")
}

/// The key of the runner of a group that renews its command.
pub(crate) fn renewal_key(group: &str) -> String {
    format!("renewal#{group}")
}

pub(crate) fn demand_key(slot: &str) -> String {
    format!("demand#{slot}")
}

pub(crate) fn string(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(crate) fn number(number: i64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// An item that is being read. An error names the missing attribute.
pub(crate) struct Fields<'a>(pub &'a Item);

impl Fields<'_> {
    fn wrong(&self, name: &str) -> AwsError {
        let id = self.0.get("id").and_then(|id| id.as_s().ok()).map_or("?", String::as_str);
        AwsError::malformed(READ, format!("the item {id} has no valid `{name}`"))
    }

    pub fn text(&self, name: &str) -> Result<&str, AwsError> {
        let value = self.0.get(name).and_then(|value| value.as_s().ok());
        value.map(String::as_str).ok_or_else(|| self.wrong(name))
    }

    pub fn optional_text(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(|value| value.as_s().ok()).cloned()
    }

    pub fn parsed<T: FromStr>(&self, name: &str) -> Result<T, AwsError> {
        self.text(name)?.parse().map_err(|_| self.wrong(name))
    }

    pub fn number<T: FromStr>(&self, name: &str) -> Result<T, AwsError> {
        let value = self.0.get(name).and_then(|value| value.as_n().ok());
        value.and_then(|value| value.parse().ok()).ok_or_else(|| self.wrong(name))
    }

    pub fn optional_number(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_n().ok()?.parse().ok()
    }

    fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(|value| value.as_bool().ok()).copied().unwrap_or(false)
    }
}
