//! The documents that the API answers with: bots, meetings, sessions, events, users. Fields are as the contract names them.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::store::{BotRow, CommandRow, EventRow, SegmentRow, SessionRow, UserRow};

/// Where meetings are held, for the OpenAPI document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Platform)]
pub enum PlatformWord {
    GoogleMeet,
    Teams,
    Zoom,
}

/// A bot's status as shown, for the OpenAPI document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Status)]
pub enum StatusWord {
    Scheduled,
    Reserved,
    Queued,
    Deploying,
    Starting,
    AwaitingAdmission,
    NeedsHelp,
    Active,
    Stopping,
    Completed,
    Failed,
}

/// One attendance of one meeting.
/// Whose fault a bot's end was, for the OpenAPI document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Fault)]
pub enum FaultWord {
    /// It was never admitted, or was removed.
    Host,
    Bot,
    Provider,
    Capacity,
    None,
}

/// What happened to a bot, for the OpenAPI document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = EventKind)]
pub enum KindWord {
    Created,
    Assigned,
    Requeued,
    StatusChanged,
    CommandSent,
    CommandAcknowledged,
    /// Something of the bot's own that Greenroom did not understand.
    Warning,
}

/// Who made it happen, for the OpenAPI document.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Actor)]
pub enum ActorWord {
    User,
    Bot,
    Operator,
    /// Placement and deployment.
    Greenroom,
    Keeper,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Bot)]
pub struct BotDto {
    pub id: Uuid,
    pub user_id: Uuid,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    #[schema(example = "abc-defg-hij")]
    pub native_meeting_id: String,
    #[schema(example = "https://meet.google.com/abc-defg-hij")]
    pub meeting_url: String,
    pub bot_display_name: Option<String>,
    #[schema(value_type = StatusWord)]
    pub status: &'static str,
    /// Why it is in this status: at an end `finished`, `stopped`, `crashed`, … or the bot's own word.
    pub reason: Option<String>,
    /// Whose fault the end was; null before it.
    #[schema(value_type = Option<FaultWord>)]
    pub fault: Option<&'static str>,
    /// What went wrong; never null for a bot that failed. While it is `deploying`: why the last try to start it failed.
    pub error: Option<String>,
    pub pool: Option<String>,
    pub slot: Option<String>,
    pub container_id: Option<String>,
    pub connection_id: Option<Uuid>,
    /// Lower goes first.
    pub priority: i64,
    pub requirements: Option<Map<String, Value>>,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub join_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub start_time: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub end_time: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    pub queue_position: Option<i64>,
    pub estimated_wait_ms: Option<i64>,
    /// Its sessions, where one bot is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<SessionDto>>,
}

impl From<BotRow> for BotDto {
    fn from(bot: BotRow) -> Self {
        let status = bot.shown().as_str();
        Self {
            id: bot.id.0,
            user_id: bot.user_id.0,
            platform: bot.platform.as_str(),
            native_meeting_id: bot.native_meeting_id,
            meeting_url: bot.meeting_url,
            bot_display_name: bot.bot_display_name,
            status,
            reason: bot.reason,
            fault: bot.fault.map(domain::Fault::as_str),
            error: bot.error,
            pool: bot.pool,
            slot: bot.slot.map(|slot| slot.to_string()),
            container_id: bot.container_id,
            connection_id: bot.connection_id.map(|id| id.0),
            priority: bot.priority,
            requirements: bot.requirements,
            config: bot.config,
            metadata: bot.metadata,
            join_at: None,
            start_time: bot.start_time,
            end_time: bot.end_time,
            created_at: bot.created_at,
            updated_at: bot.updated_at,
            queue_position: None,
            estimated_wait_ms: None,
            sessions: None,
        }
    }
}

/// One bot.
#[derive(Debug, Serialize, ToSchema)]
pub struct OneBot {
    pub bot: BotDto,
}

impl From<BotRow> for OneBot {
    fn from(bot: BotRow) -> Self {
        Self { bot: bot.into() }
    }
}

/// A page of bots, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Bots {
    pub bots: Vec<BotDto>,
    /// To be sent as `cursor` for the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// One connection of a running bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionDto {
    pub connection_id: Uuid,
    pub container_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub joined_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_heartbeat_at: Option<Timestamp>,
}

impl From<SessionRow> for SessionDto {
    fn from(session: SessionRow) -> Self {
        Self {
            connection_id: session.connection_id.0,
            container_id: session.container_id,
            started_at: session.started_at,
            joined_at: session.joined_at,
            ended_at: session.ended_at,
            last_heartbeat_at: session.last_heartbeat_at,
        }
    }
}

/// A bot as the meeting that it attends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Meeting)]
pub struct MeetingDto {
    pub id: Uuid,
    pub user_id: Uuid,
    pub platform: &'static str,
    pub platform_specific_id: String,
    pub status: &'static str,
    pub bot_container_id: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub start_time: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub end_time: Option<Timestamp>,
    /// The link, the bot's name, the reason, the configuration and the metadata.
    pub data: Value,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl From<BotRow> for MeetingDto {
    fn from(bot: BotRow) -> Self {
        let status = bot.shown().as_str();
        Self {
            id: bot.id.0,
            user_id: bot.user_id.0,
            platform: bot.platform.as_str(),
            platform_specific_id: bot.native_meeting_id,
            status,
            bot_container_id: bot.container_id,
            start_time: bot.start_time,
            end_time: bot.end_time,
            data: json!({
                "meeting_url": bot.meeting_url,
                "bot_display_name": bot.bot_display_name,
                "reason": bot.reason,
                "config": bot.config,
                "metadata": bot.metadata,
            }),
            created_at: bot.created_at,
            updated_at: bot.updated_at,
        }
    }
}

/// Something that happened to a bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventDto {
    pub id: i64,
    pub bot_id: Uuid,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[schema(value_type = KindWord)]
    pub kind: &'static str,
    #[schema(value_type = Option<StatusWord>)]
    pub from: Option<&'static str>,
    #[schema(value_type = Option<StatusWord>)]
    pub to: Option<&'static str>,
    /// Why; for commands, which.
    pub reason: Option<String>,
    #[schema(value_type = ActorWord)]
    pub actor: &'static str,
}

impl From<&EventRow> for EventDto {
    fn from(event: &EventRow) -> Self {
        Self {
            id: event.id.0,
            bot_id: event.bot_id.0,
            at: event.at,
            kind: event.kind.as_str(),
            from: event.from.map(domain::ShownStatus::as_str),
            to: event.to.map(domain::ShownStatus::as_str),
            reason: event.reason.clone(),
            actor: event.actor.as_str(),
        }
    }
}

/// Something that happened to a bot, as it is streamed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamedEvent)]
pub struct StreamedEventDto {
    #[serde(flatten)]
    pub event: EventDto,
    /// The bot's, as its user gave it.
    pub metadata: Map<String, Value>,
    /// What went wrong, with the event of a bot's end.
    #[schema(required)]
    pub error: Option<String>,
}

/// A stretch of speech.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Segment)]
pub struct SegmentDto {
    /// Seconds since the bot's own zero.
    pub start_time: f64,
    pub end_time: f64,
    pub text: String,
    pub speaker: Option<String>,
    pub language: Option<String>,
    /// The connection under which it was heard.
    pub session_uid: Uuid,
}

impl From<SegmentRow> for SegmentDto {
    fn from(segment: SegmentRow) -> Self {
        Self {
            start_time: segment.start_time,
            end_time: segment.end_time,
            text: segment.text,
            speaker: segment.speaker,
            language: segment.language,
            session_uid: segment.connection_id.0,
        }
    }
}

/// A request to a running bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Command)]
pub struct CommandDto {
    pub id: Uuid,
    /// `leave` or `reconfigure`.
    pub action: &'static str,
    /// For `reconfigure` the new configuration.
    pub payload: Value,
}

impl From<CommandRow> for CommandDto {
    fn from(command: CommandRow) -> Self {
        Self { id: command.id.0, action: command.action.as_str(), payload: command.payload }
    }
}

/// Who owns bots.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
pub struct UserDto {
    pub id: Uuid,
    pub email: String,
    pub name: String,
    pub image_url: Option<String>,
    /// How many bots may run at once; 0 means none.
    pub max_concurrent_bots: i64,
    /// The lowest `priority` that it may ask for; lower goes first.
    pub min_priority: i64,
    pub data: Map<String, Value>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

impl From<UserRow> for UserDto {
    fn from(user: UserRow) -> Self {
        Self {
            id: user.id.0,
            email: user.email,
            name: user.name,
            image_url: user.image_url,
            max_concurrent_bots: user.max_concurrent_bots,
            min_priority: user.min_priority,
            data: user.data,
            created_at: user.created_at,
            updated_at: user.updated_at,
        }
    }
}
