//! For operators: `GET /admin/live`, a snapshot of slots, bots, queue, gates and keepers, and then what changes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, stream};
use tokio::time::MissedTickBehavior;

use super::App;
use super::extract::Operator;
use super::middleware::SESSION_TIME;
use super::problem::Problem;
use super::traffic_quota::Quota;
use crate::admission::AdmissionError;
use crate::admission::browser_sessions::BrowserSession;
use crate::live::coalescer::LiveMessage;

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it comes back.
const RETRY: Duration = Duration::from_secs(1);

/// Watch slots, bots, queue, gates and keepers
///
/// Sends server-sent events: one `snapshot`, then a `change` when something changes, at most 10 a second. It shows the
/// changes of every replica within a second. `data` is JSON in a compact encoding. Times are seconds since 1970.
///
/// `snapshot`: `slot_statuses` and `bot_statuses` are the names of statuses, to which entries refer by index; `pools`:
/// `[name, platform]`; `slots`: for each pool, in the same order, a list of `[number, status, since, hot]`; `bots`: those
/// that have not ended, `[id, status, since]`, and with a slot `[id, status, since, pool, number]`; `queue`: `[bot_id,
/// platform, priority, turn, arrival, pool, queued_at, timeout_at]`, and bots of one platform are served by `priority`,
/// `turn`, `arrival`; `gates`: `[host, active, queued, max_concurrent]`; `keepers`: `[name, last_run, took_ms, error,
/// next_run, leader]`.
///
/// `change`: only the fields that differ. `slots`: `[pool, number, status, since, hot]` of new and changed slots;
/// `slots_gone`: `[pool, number]`; `bots` and `queue`: new and changed entries; `bots_gone` and `queue_gone`: ids of
/// bots; `gates` and `keepers`: the whole list. `pool` of a slot is an index into `pools`. When the pools change, the
/// server sends a new `snapshot`.
///
/// The server ends the stream of a client that reads too slowly. A new connection begins with a new snapshot. Returns
/// 503 `overloaded` if the operators have too many open streams.
#[utoipa::path(
    get, path = "/admin/live", operation_id = "live_stream", tag = "For operators",
    responses((status = 200, description = "A stream of events", body = String, content_type = "text/event-stream")),
    security(("admin_token" = [])),
)]
pub async fn stream(
    State(app): State<App>,
    _: Operator,
    Extension(quota): Extension<Arc<Quota>>,
    session: Option<Extension<BrowserSession>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let permit = quota.open_stream()?;
    let mut checked = tokio::time::interval(SESSION_TIME);
    checked.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (reader, session) = (app.live.read(), session.map(|Extension(session)| session));
    let begun = (app, reader, session, checked, permit);
    let events = stream::unfold(begun, |(app, mut reader, session, mut checked, permit)| async move {
        let message = loop {
            tokio::select! {
                message = reader.next() => break message?,
                () = app.stopping.cancelled() => return None,
                _ = checked.tick(), if session.is_some() => {
                    if has_ended(&app, session.as_ref()).await {
                        return None;
                    }
                }
            }
        };
        let event = match message {
            LiveMessage::Snapshot(data) => Event::default().event("snapshot").retry(RETRY).data(&*data),
            LiveMessage::Change(data) => Event::default().event("change").data(&*data),
        };
        Some((Ok(event), (app, reader, session, checked, permit)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

async fn has_ended(app: &App, session: Option<&BrowserSession>) -> bool {
    let Some(session) = session else { return false };
    matches!(app.sessions.find(&session.token).await, Err(AdmissionError::SessionEnded))
}
