//! For operators: `GET /admin/live`, a snapshot of slots, bots, queue, gates and keepers, and then what changes.
//!
//! Every message is compressed by itself, once for all readers, and flushed, so that a reader gets it at once. Ids stay
//! readable: with 10,000 bots in as many slots a compressed snapshot has less than 300 KB.

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, VARY};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior};

use super::App;
use super::compression::accepts_gzip;
use super::extract::Operator;
use super::middleware::SESSION_TIME;
use super::problem::Problem;
use super::traffic_quota::Quota;
use crate::admission::AdmissionError;
use crate::admission::browser_sessions::BrowserSession;
use crate::live::LiveReader;
use crate::live::message::{EventText, GzipStream};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A larger message is compressed on a thread of its own.
const LARGEST_AT_ONCE: usize = 32 * 1024;

static KEEP_ALIVE_TEXT: LazyLock<Arc<EventText>> = LazyLock::new(|| Arc::new(EventText::keep_alive()));

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
/// A client that sends `Accept-Encoding: gzip` gets a compressed stream, in which every message can be read at once.
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
    headers: HeaderMap,
    Extension(quota): Extension<Arc<Quota>>,
    session: Option<Extension<BrowserSession>>,
) -> Result<Response, Problem> {
    let permit = quota.open_stream()?;
    let mut checked = tokio::time::interval(SESSION_TIME);
    checked.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (reader, session) = (app.live.read(), session.map(|Extension(session)| session));
    let source = Source { app, reader, session, checked, _permit: permit };
    let head = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache"), (VARY, "accept-encoding")];
    Ok(match accepts_gzip(&headers) {
        true => (head, [(CONTENT_ENCODING, "gzip")], Body::from_stream(compressed(source))).into_response(),
        false => (head, Body::from_stream(plain(source))).into_response(),
    })
}

/// Where the messages of one reader come from.
struct Source {
    app: App,
    reader: LiveReader,
    session: Option<BrowserSession>,
    checked: Interval,
    _permit: OwnedSemaphorePermit,
}

impl Source {
    /// The next event. `None` when the stream ends.
    async fn next(&mut self) -> Option<Arc<EventText>> {
        let keep_alive = tokio::time::sleep(KEEP_ALIVE);
        tokio::pin!(keep_alive);
        loop {
            tokio::select! {
                message = self.reader.next() => return message.map(|message| message.text().clone()),
                () = &mut keep_alive => return Some(KEEP_ALIVE_TEXT.clone()),
                () = self.app.stopping.cancelled() => return None,
                _ = self.checked.tick(), if self.session.is_some() => {
                    if has_ended(&self.app, self.session.as_ref()).await {
                        return None;
                    }
                }
            }
        }
    }
}

fn plain(source: Source) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(source, |mut source| async move {
        let event = source.next().await?;
        Some((Ok(event.plain().clone()), source))
    })
}

/// What a compressed stream sends next.
enum Next {
    Head(Source),
    Event(Source, GzipStream),
    Nothing,
}

fn compressed(source: Source) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold(Next::Head(source), |next| async move {
        let (part, next) = match next {
            Next::Head(source) => (Bytes::from_static(&GzipStream::HEAD), Next::Event(source, GzipStream::default())),
            Next::Event(mut source, mut gzip) => match source.next().await {
                Some(event) => (add(&mut gzip, event).await, Next::Event(source, gzip)),
                None => (gzip.end(), Next::Nothing),
            },
            Next::Nothing => return None,
        };
        Some((Ok(part), next))
    })
}

async fn add(gzip: &mut GzipStream, event: Arc<EventText>) -> Bytes {
    if event.plain().len() > LARGEST_AT_ONCE {
        let of_thread = event.clone();
        // If it fails, the event is compressed here.
        let _ = tokio::task::spawn_blocking(move || of_thread.compress()).await;
    }
    gzip.add(&event)
}

async fn has_ended(app: &App, session: Option<&BrowserSession>) -> bool {
    let Some(session) = session else { return false };
    matches!(app.sessions.find(&session.token).await, Err(AdmissionError::SessionEnded))
}
