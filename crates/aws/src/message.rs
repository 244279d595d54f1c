//! The announcement of an idle runner, as it stands in its class's queue: what the runner has, and until when the
//! announcement is good. It only says where to look: whether the runner is idle is decided by the table.

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
    /// Until when it is good. No two announcements of a runner have the same.
    pub expires_at: Timestamp,
    /// As it came, and as it goes back.
    body: String,
}

/// Why a message is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    #[error("it is malformed")]
    Malformed,
    #[error("it is expired")]
    Expired,
    #[error("it is of another class than its queue")]
    OtherClass,
    #[error("it is smaller than its class")]
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
            // There is nothing in it that could not be written.
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }

    /// What a message of a class's queue announces at this time.
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

/// A threshold as it is written, in a message and in the table alike: UTC, always with milliseconds.
pub(crate) fn text(expires_at: Timestamp) -> String {
    format!("{expires_at:.3}")
}

#[cfg(test)]
mod tests;
