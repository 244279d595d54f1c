//! The announcement of an idle runner, as a message in the queue of its class: the runner's attributes and the expiry.
//! The message is only a hint. The table decides whether the runner is idle.

use domain::requirements::is_class_name;
use domain::{Attributes, UsageClass};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Class;
use crate::clock::from_millis;

/// An idle runner, as it was announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub instance: String,
    pub attributes: Attributes,
    /// When the announcement expires. Two announcements of a runner never have the same expiry.
    pub expires_at: Timestamp,
    /// The message text as received, which also goes back to the queue unchanged.
    body: String,
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    #[error("malformed")]
    Malformed,
    #[error("expired")]
    Expired,
    #[error("another class than its queue")]
    OtherClass,
    #[error("smaller than its class")]
    TooSmall,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    instance_id: String,
    usage_class: UsageClass,
    instance_type: String,
    cpu: u32,
    mem: u32,
    resource_class: String,
    threshold: String,
}

impl Announcement {
    pub fn new(instance: &str, attributes: &Attributes, expires_at: Timestamp) -> Self {
        let body = Body {
            instance_id: instance.to_owned(),
            usage_class: attributes.usage_class,
            instance_type: attributes.instance_type.clone().unwrap_or_default(),
            cpu: attributes.cpu,
            mem: attributes.mem,
            resource_class: attributes.resource_class.clone().unwrap_or_default(),
            threshold: text(expires_at),
        };
        Self {
            instance: body.instance_id.clone(),
            attributes: attributes.clone(),
            expires_at: from_millis(expires_at.as_millisecond()),
            // This body can always be serialized.
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }

    /// Reads a message from the queue of a class. `now` decides whether it has expired.
    pub fn read(body: &str, class: &Class, now: Timestamp) -> Result<Self, Dropped> {
        let read: Body = serde_json::from_str(body).map_err(|_| Dropped::Malformed)?;
        let expires_at: Timestamp = read.threshold.parse().map_err(|_| Dropped::Malformed)?;
        let names = [&read.instance_id, &read.instance_type, &read.resource_class];
        if !names.into_iter().all(|name| is_class_name(name)) {
            return Err(Dropped::Malformed);
        }
        if read.resource_class != class.name {
            return Err(Dropped::OtherClass);
        }
        if read.cpu < class.cpu || read.mem < class.mem {
            return Err(Dropped::TooSmall);
        }
        if expires_at <= now {
            return Err(Dropped::Expired);
        }
        let attributes = Attributes {
            resource_class: Some(read.resource_class),
            usage_class: read.usage_class,
            instance_type: Some(read.instance_type),
            cpu: read.cpu,
            mem: read.mem,
        };
        let expires_at = from_millis(expires_at.as_millisecond());
        Ok(Self { instance: read.instance_id, attributes, expires_at, body: body.to_owned() })
    }

    pub fn body(&self) -> &str {
        &self.body
    }
}

/// An expiry as text, the same in messages and in the table: UTC, always with milliseconds.
pub(crate) fn text(expires_at: Timestamp) -> String {
    format!("{expires_at:.3}")
}

#[cfg(test)]
mod tests;
