//! The documents that the API answers with: bots, meetings, sessions, events, users. Fields are as the contract names them.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::store::{BotRow, CommandRow, EventRow, SegmentRow, SessionRow, UserRow};

/// The service that hosts a meeting.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Platform)]
pub enum PlatformWord {
    GoogleMeet,
    Teams,
    Zoom,
}

/// The status of a bot.
///
/// A bot with the status `completed` or `failed` has ended.
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

/// The cause of a bot's end.
///
/// - `host`: the people in the meeting never admitted the bot, or removed it
/// - `bot`: the program of the bot
/// - `provider`: the provider, the machine, or a person who stopped the container
/// - `capacity`: there was no free slot in time
/// - `none`: the bot ended as planned
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Fault)]
pub enum FaultWord {
    /// The people in the meeting never admitted the bot, or removed it.
    Host,
    Bot,
    Provider,
    Capacity,
    None,
}

/// The kind of an event.
///
/// A `warning` says that the bot did something without effect, for example that it printed an unknown event.
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
    /// The bot did something without effect, for example it printed an unknown event.
    Warning,
}

/// The cause of an event.
///
/// `greenroom` stands for placement and deployment, `keeper` for a background job of the server.
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

/// A bot: one attendance of one meeting.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Bot)]
pub struct BotDto {
    pub id: Uuid,
    pub user_id: Uuid,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    /// The id that the platform gave the meeting.
    #[schema(example = "abc-defg-hij")]
    pub native_meeting_id: String,
    #[schema(example = "https://meet.google.com/abc-defg-hij")]
    pub meeting_url: String,
    /// The name of the bot in the meeting.
    #[schema(required)]
    pub bot_display_name: Option<String>,
    #[schema(value_type = StatusWord)]
    pub status: &'static str,
    /// Since when the bot has this status.
    #[schema(value_type = String, format = DateTime)]
    pub status_since: Timestamp,
    /// When the server ends the bot unless it gets further: it gets a slot, makes its first callback, joins, sends a
    /// heartbeat or leaves. `null` after the end.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub deadline_at: Option<Timestamp>,
    /// Why the bot has this status. After the end: `finished`, `stopped`, `crashed`, … or a word that the bot chose.
    #[schema(required)]
    pub reason: Option<String>,
    /// The cause of the end; `null` before the end.
    #[schema(value_type = Option<FaultWord>, required)]
    pub fault: Option<&'static str>,
    /// What went wrong. Never `null` for a bot that failed. While the bot is `deploying`: why the last attempt to start
    /// it failed.
    #[schema(required)]
    pub error: Option<String>,
    /// The name of its pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// The name of its slot.
    #[schema(required)]
    pub slot: Option<String>,
    #[schema(required)]
    pub container_id: Option<String>,
    /// The current connection; `null` before the first assignment.
    #[schema(required)]
    pub connection_id: Option<Uuid>,
    /// Bots with a lower value go first.
    pub priority: i64,
    /// The requirements for the slot, as the user sent them.
    #[schema(required)]
    pub requirements: Option<Map<String, Value>>,
    /// The configuration for the bot.
    pub config: Map<String, Value>,
    /// The data of the user.
    pub metadata: Map<String, Value>,
    /// Not supported yet: always `null`.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub join_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub start_time: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub end_time: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// The position in the queue, from 1, while the bot is `queued`; else `null`.
    #[schema(required)]
    pub queue_position: Option<i64>,
    /// The estimated time until the bot gets a slot, if the server can estimate it; else `null`.
    #[schema(required)]
    pub estimated_wait_ms: Option<i64>,
    /// The sessions of the bot. Only calls that return one bot with its sessions have this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub sessions: Option<Vec<SessionDto>>,
}

/// The row by itself. [`super::open_bots`] adds what is shown of a bot that has not ended.
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
            status_since: bot.status_since,
            deadline_at: None,
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

/// A page of bots, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BotPage)]
pub struct Bots {
    pub bots: Vec<BotDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// A session: one connection of a bot that has started.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionDto {
    pub connection_id: Uuid,
    #[schema(required)]
    pub container_id: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub joined_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub ended_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
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

/// A bot in the format of older clients: as the meeting that it attends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Meeting)]
pub struct MeetingDto {
    pub id: Uuid,
    pub user_id: Uuid,
    #[schema(value_type = PlatformWord)]
    pub platform: &'static str,
    pub platform_specific_id: String,
    #[schema(value_type = StatusWord)]
    pub status: &'static str,
    #[schema(required)]
    pub bot_container_id: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub start_time: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub end_time: Option<Timestamp>,
    /// The link of the meeting, and the name, reason, configuration and metadata of the bot.
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

/// An event of a bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventDto {
    pub id: i64,
    pub bot_id: Uuid,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[schema(value_type = KindWord)]
    pub kind: &'static str,
    #[schema(value_type = Option<StatusWord>, required)]
    pub from: Option<&'static str>,
    #[schema(value_type = Option<StatusWord>, required)]
    pub to: Option<&'static str>,
    /// Why it happened. For events of commands: the action of the command.
    #[schema(required)]
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

/// An event of a bot, as `GET /events` sends it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StreamedEvent)]
pub struct StreamedEventDto {
    #[serde(flatten)]
    pub event: EventDto,
    /// The metadata of the bot.
    pub metadata: Map<String, Value>,
    /// What went wrong. Only for the event of the end of a bot; else `null`.
    #[schema(required)]
    pub error: Option<String>,
}

/// A segment of a transcript.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Segment)]
pub struct SegmentDto {
    /// The start of the segment in seconds. The bot chooses the zero point.
    pub start_time: f64,
    /// The end of the segment in seconds.
    pub end_time: f64,
    pub text: String,
    #[schema(required)]
    pub speaker: Option<String>,
    #[schema(required)]
    pub language: Option<String>,
    /// The id of the connection under which the bot sent the segment.
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

/// What a bot is asked to do.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CommandAction)]
pub enum CommandActionWord {
    Leave,
    Reconfigure,
}

/// A command to a bot.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Command)]
pub struct CommandDto {
    pub id: Uuid,
    #[schema(value_type = CommandActionWord)]
    pub action: &'static str,
    /// The new configuration for `reconfigure`; else `null`.
    pub payload: Value,
}

impl From<CommandRow> for CommandDto {
    fn from(command: CommandRow) -> Self {
        Self { id: command.id.0, action: command.action.as_str(), payload: command.payload }
    }
}

/// A user, who owns bots.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = User)]
pub struct UserDto {
    pub id: Uuid,
    pub email: String,
    pub name: String,
    #[schema(required)]
    pub image_url: Option<String>,
    /// How many bots the user may run at once; 0 means none.
    pub max_concurrent_bots: i64,
    /// The lowest `priority` that the user may request; bots with a lower value go first.
    pub min_priority: i64,
    /// The data of the operator.
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
