//! For operators: everything that needs a person now.

use axum::Json;
use axum::extract::State;
use domain::Platform;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::extract::Operator;
use super::problem::Problem;
use crate::explain::attention::{self, Action, Item, QUEUED_BOTS, WaitingBot};

/// Everything that needs a person now.
#[derive(Debug, Serialize, ToSchema)]
pub struct Attention {
    /// The most urgent first: by severity, then by deadline. At most 100.
    pub items: Vec<AttentionItem>,
    /// How many more there are, which are not listed.
    pub more: i64,
}

/// Something that needs a person.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttentionItem {
    #[schema(value_type = SeverityWord)]
    pub severity: &'static str,
    #[schema(value_type = AttentionKind)]
    pub kind: &'static str,
    /// The id of a bot, or the name of a slot, a pool, a provider's budget, a keeper or a server.
    pub subject: String,
    /// Since when it is so; `null` if that is not known.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub since: Option<Timestamp>,
    /// When the server acts by itself, or when it is too late; `null` if there is no such time.
    #[schema(value_type = Option<String>, format = DateTime, required)]
    pub deadline_at: Option<Timestamp>,
    pub message: String,
    /// The call that an operator would make; `null` if no call helps.
    #[schema(required)]
    pub action: Option<AttentionAction>,
}

/// A call of this API, complete with its body.
#[derive(Debug, Serialize, ToSchema)]
pub struct AttentionAction {
    /// What the call does, in a few words.
    #[schema(example = "Recover the slot")]
    pub label: String,
    #[schema(example = "POST")]
    pub method: &'static str,
    #[schema(example = "/admin/slots/pool-google-meet-001/recover")]
    pub path: String,
    /// The body of the call; `null` if it needs none.
    #[schema(value_type = Option<std::collections::HashMap<String, Value>>, required)]
    pub body: Option<Value>,
}

/// How urgent it is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Severity)]
pub enum SeverityWord {
    /// Bots fail, or will soon.
    Critical,
    Warning,
}

/// What needs a person.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// A bot needs a person to go on.
    NeedsHelp,
    /// A bot has waited in the lobby for half of its time or more.
    AwaitingAdmission,
    /// The provider of a pool does not answer.
    ProviderUnavailable,
    /// A provider refuses requests for a while.
    ProviderClosed,
    /// Bots in the queue will probably wait longer than they may.
    QueueTooLong,
    /// A slot is in error, and the server will try to recover it.
    SlotError,
    /// A keeper did not run when it was due.
    KeeperLate,
    /// A server is silent and did not stop properly.
    ReplicaMissing,
}

impl From<Item> for AttentionItem {
    fn from(item: Item) -> Self {
        let Item { severity, kind, subject, since, deadline_at, message, action } = item;
        let action = action.map(|Action { method, path, body, label }| AttentionAction { label, method, path, body });
        Self { severity: severity.as_str(), kind: kind.as_str(), subject, since, deadline_at, message, action }
    }
}

/// List what needs a person
///
/// Returns bots that need help or wait in the lobby, providers that do not answer, queues that are too long, slots in
/// error, late keepers and missing servers, each with its deadline and the call that helps. Lists the 100 most urgent;
/// `more` says how many others there are.
#[utoipa::path(
    get, path = "/admin/attention", tag = "For operators", operation_id = "admin_attention",
    responses((status = 200, description = "Everything that needs a person now", body = Attention)),
    security(("admin_token" = [])),
)]
pub async fn attention(State(app): State<App>, _: Operator) -> Result<Json<Attention>, Problem> {
    let queue = app.placement.read_view(&app.store, |view| {
        let first = Platform::ALL.into_iter().flat_map(|platform| view.queue_after(platform, None, QUEUED_BOTS));
        let waiting = first.map(|place| WaitingBot {
            pool: place.pool,
            queued_at: place.queued_at,
            timeout_at: place.timeout_at,
            estimated_wait_ms: place.estimated_wait_ms,
        });
        waiting.collect::<Vec<_>>()
    });
    let (queue, now) = (queue.await?, app.clock.now());
    let found = attention::attention(&app.store, &app.deployment, &app.keepers, &app.deadlines, &queue, now);
    let attention::Attention { items, more } = found.await?;
    Ok(Json(Attention { items: items.into_iter().map(Into::into).collect(), more }))
}
