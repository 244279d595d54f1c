//! Reads the body of `POST /bots` and makes of it a request that admission can decide on.

use std::time::Duration;

use axum::http::HeaderMap;
use domain::{Deadlines, Meeting, Platform};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::dto::PlatformWord;
use super::extract::document;
use super::problem::Problem;
use super::requirements::RequirementsBody;
use crate::admission::{BotRequest, api_keys};

const DEFAULT_PRIORITY: i32 = 100;
const LONGEST_NAME: usize = 100;
const LONGEST_IDEMPOTENCY_KEY: usize = 255;

/// A request for a bot. It names the meeting by a link, or by a platform and the id of the meeting there.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewBot)]
pub struct NewBotBody {
    /// The link to the meeting, as copied from an invitation.
    #[serde(alias = "meetingUrl", skip_serializing_if = "Option::is_none")]
    #[schema(example = "https://meet.google.com/abc-defg-hij")]
    pub meeting_url: Option<String>,
    /// The platform of the meeting. Together with `native_meeting_id` it replaces the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<PlatformWord>)]
    pub platform: Option<String>,
    /// The id that the platform gave the meeting. It needs `platform`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_meeting_id: Option<String>,
    /// The name under which the bot appears in the meeting.
    #[serde(alias = "botDisplayName", skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub bot_display_name: Option<String>,
    /// Bots with a lower value go first. The user's `min_priority` is the lowest allowed value. Default 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// How long the bot may wait for a slot. Default 300000, at most 600000; the operator can configure other values.
    #[serde(alias = "queueTimeoutMs", skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 600000)]
    pub queue_timeout_ms: Option<i64>,
    /// The configuration for the bot, at most 64 KiB of JSON. Greenroom passes it to the bot unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Data of the user, at most 64 KiB of JSON. Greenroom stores it and returns it with the bot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
    /// Not supported yet: a request with this field gets 422 `unsupported`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub join_at: Option<Value>,
    /// The requirements of the bot for its slot. Without them, any slot of the platform fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requirements: Option<RequirementsBody>,
    /// Not supported yet: a request with this field gets 422 `unsupported`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub webhook_url: Option<Value>,
}

impl NewBotBody {
    pub fn into_bot_request(self, headers: &HeaderMap, deadlines: &Deadlines) -> Result<BotRequest, Problem> {
        for (field, given) in [("join_at", self.join_at.is_some()), ("webhook_url", self.webhook_url.is_some())] {
            if given {
                return Err(Problem::unsupported(field));
            }
        }
        let idempotency = idempotency_key(headers)?.map(|key| (key, self.hash()));
        let meeting = self.meeting()?;
        if let Some(name) = &self.bot_display_name {
            let length = name.chars().count();
            if name.trim().is_empty() || length > LONGEST_NAME || name.chars().any(char::is_control) {
                return Err(Problem::invalid(
                    "bot_display_name",
                    format!("must have 1 to {LONGEST_NAME} printable characters"),
                ));
            }
        }
        let queue_timeout_ms = self.queue_timeout_ms.unwrap_or_else(|| millis(deadlines.queue_default));
        let most = millis(deadlines.queue_max);
        if !(1..=most).contains(&queue_timeout_ms) {
            return Err(Problem::invalid("queue_timeout_ms", format!("must be from 1 to {most}")));
        }
        let requirements = self.requirements.map(RequirementsBody::read).transpose()?;
        let (given_requirements, requirements) = requirements.unzip();
        Ok(BotRequest {
            meeting,
            bot_display_name: self.bot_display_name,
            priority: self.priority.unwrap_or(DEFAULT_PRIORITY).into(),
            queue_timeout_ms,
            given_requirements,
            requirements,
            config: document("config", self.config.unwrap_or_default())?,
            metadata: document("metadata", self.metadata.unwrap_or_default())?,
            idempotency,
        })
    }

    fn meeting(&self) -> Result<Meeting, Problem> {
        let named = match (&self.platform, &self.native_meeting_id) {
            (Some(platform), id) => {
                let platform: Platform = platform.parse().map_err(|error| Problem::invalid("platform", error))?;
                Some((platform, id.as_deref()))
            }
            (None, Some(_)) if self.meeting_url.is_none() => {
                return Err(Problem::invalid("platform", "is missing; native_meeting_id needs it"));
            }
            (None, _) => None,
        };
        match (&self.meeting_url, named) {
            (Some(link), named) => {
                let meeting = Meeting::from_link(link).map_err(|error| Problem::meeting("meeting_url", error))?;
                if let Some((platform, id)) = named {
                    self.agrees(&meeting, platform, id)?;
                } else if let Some(id) = &self.native_meeting_id {
                    self.agrees(&meeting, meeting.platform, Some(id))?;
                }
                Ok(meeting)
            }
            (None, Some((platform, Some(id)))) => {
                Meeting::from_native_id(platform, id).map_err(|error| Problem::meeting("native_meeting_id", error))
            }
            (None, Some((_, None))) => Err(Problem::invalid("native_meeting_id", "is missing; platform needs it")),
            (None, None) => {
                Err(Problem::invalid("meeting_url", "is missing; send it, or platform and native_meeting_id"))
            }
        }
    }

    /// A link and an id may both be given, as long as they mean the same meeting.
    fn agrees(&self, meeting: &Meeting, platform: Platform, id: Option<&str>) -> Result<(), Problem> {
        if meeting.platform != platform {
            let why = format!("is {platform}, but meeting_url is a link of {}", meeting.platform);
            return Err(Problem::invalid("platform", why));
        }
        let Some(id) = id else { return Ok(()) };
        let named =
            Meeting::from_native_id(platform, id).map_err(|error| Problem::meeting("native_meeting_id", error))?;
        if named.native_id != meeting.native_id {
            let why = format!("is {}, but meeting_url is the link of {}", named.native_id, meeting.native_id);
            return Err(Problem::invalid("native_meeting_id", why));
        }
        Ok(())
    }

    /// The same for the same request, however its keys were ordered or spelt.
    fn hash(&self) -> String {
        api_keys::hash(&serde_json::to_string(self).unwrap_or_default())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let key = value.to_str().unwrap_or_default();
    let fits = !key.is_empty()
        && key.len() <= LONGEST_IDEMPOTENCY_KEY
        && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if !fits {
        let why = format!("must have 1 to {LONGEST_IDEMPOTENCY_KEY} printable ASCII characters");
        return Err(Problem::invalid("Idempotency-Key", why));
    }
    Ok(Some(key.to_owned()))
}
