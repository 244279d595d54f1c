//! For users: `GET /events`, server-sent events of all their bots, or of one. A client that comes back with `Last-Event-ID` gets
//! everything since, then what happens from there on, with nothing missing and nothing twice.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use domain::{BotId, EventId, ShownStatus, UserId};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Interval;
use utoipa::IntoParams;

use super::App;
use super::dto::{EventDto, StreamedEventDto};
use super::extract::{Asked, Asker, Key};
use super::problem::{Problem, ProblemDto};
use super::reading::own;
use super::traffic_quota::Quota;
use crate::admission::AdmissionError;
use crate::admission::browser_sessions::UserCredential;
use crate::lifecycle::feed::Listener;
use crate::store::{BotOfEvent, EventRow, StoreError};

/// How many events a replay reads at once, and its shortest pause after that, so that other reads go first.
const CATCH_UP: i64 = 100;
const PAUSE: Duration = Duration::from_millis(10);
/// How many live events are sent together at most.
const LIVE_TOGETHER: usize = 20;
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it comes back.
const RETRY: Duration = Duration::from_secs(1);

/// The first messages of a stream, for the reference.
const EXAMPLE: &str = r#"id: 41
retry: 1000

id: 42
data: {"id":42,"bot_id":"01982f3e-7b1c-7d20-9f6e-0d5c6a3f1b7e","at":"2026-11-16T12:00:01.5Z","kind":"status_changed","from":"starting","to":"active","reason":null,"actor":"bot","metadata":{},"error":null}

"#;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// Only the events of this bot.
    #[param(value_type = Option<uuid::Uuid>)]
    pub bot_id: Option<String>,
    /// The same as the header `Last-Event-ID`, for clients that cannot set headers. The header has precedence.
    pub last_event_id: Option<String>,
}

/// Stream the events of bots
///
/// Sends server-sent events of all bots of the user, or of the one in `bot_id`. Each message has the id of the event in
/// `id`, and the event as JSON in `data`. The first message has an `id` and no `data`: it is the position of the
/// stream. To continue after a lost connection, send the last `id` as `Last-Event-ID`. The server then sends every
/// later event once. Returns 410 `gone` if events after this `id` were deleted: begin again without it. Returns 503
/// `overloaded` if the user has too many open streams.
#[utoipa::path(
    get, path = "/events", operation_id = "events_stream", tag = "For users",
    params(StreamQuery, ("Last-Event-ID" = Option<String>, Header,
     description = "The last `id` that the client received")),
    responses((status = 200, description = "A stream of events; `data` of each is a `StreamedEvent`",
               body = String, content_type = "text/event-stream", example = json!(EXAMPLE)),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json"),
              (status = 410, description = "`gone`: events at or after `Last-Event-ID` were deleted",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn stream(
    State(app): State<App>,
    Key(key): Key,
    Asked(query): Asked<StreamQuery>,
    Extension(quota): Extension<Arc<Quota>>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let (user, _) = app.sessions.user_of(&key).await?;
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let last = header
        .or(query.last_event_id)
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().map(EventId).map_err(|_| Problem::invalid("Last-Event-ID", "is not the id of an event")))
        .transpose()?;
    let bot = match query.bot_id.as_deref() {
        None => None,
        Some(id) => {
            let id: BotId = id.parse().map_err(|_| Problem::invalid("bot_id", "is not the id of a bot"))?;
            Some(own(&app, Asker { id: user }, id).await?.id)
        }
    };
    // The events of one bot are deleted together with it.
    if let Some(last) = last.filter(|_| bot.is_none())
        && is_pruned(last, app.store.pruned_events().await?)
    {
        let detail = "events at or after this id were deleted; connect again without `Last-Event-ID`";
        return Err(Problem::new(StatusCode::GONE, "gone", detail));
    }
    let permit = quota.open_stream()?;
    let mut authorised = tokio::time::interval(app.limits.check_every(&key));
    authorised.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let reader = Reader {
        user,
        key,
        bot,
        listener: match bot {
            Some(bot) => app.lifecycle.feed.listen_to_bot(bot),
            None => app.lifecycle.feed.listen_to_user(user),
        },
        heard: Vec::new(),
        ready: VecDeque::new(),
        last,
        state: StreamState::Begins,
        quota,
        app,
        _open: permit,
        _counted: CountedStream::begin(),
    };
    let events = stream::unfold((reader, authorised), |(mut reader, mut authorised)| async move {
        let event = reader.next(&mut authorised).await?;
        Some((Ok(event), (reader, authorised)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// One client's position in the stream.
struct Reader {
    app: App,
    user: UserId,
    key: UserCredential,
    /// The only bot whose events are sent, if there is one.
    bot: Option<BotId>,
    listener: Listener,
    /// What was heard from the feed and is not prepared yet: kept here, because the work may be given up at any wait.
    heard: Vec<EventRow>,
    /// What is to be sent next.
    ready: VecDeque<Event>,
    last: Option<EventId>,
    state: StreamState,
    quota: Arc<Quota>,
    /// Its place among the streams that its user may have.
    _open: OwnedSemaphorePermit,
    _counted: CountedStream,
}

/// Counts the stream while it is open.
struct CountedStream;

impl CountedStream {
    fn begin() -> Self {
        metrics::gauge!("greenroom_stream_readers", "stream" => "events").increment(1.0);
        Self
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        metrics::gauge!("greenroom_stream_readers", "stream" => "events").decrement(1.0);
    }
}

enum StreamState {
    /// Nothing was sent yet.
    Begins,
    /// What happened up to `up_to` is read from the database.
    CatchesUp { up_to: EventId, more: bool },
    /// What happens is heard from the feed.
    Listens,
    /// It fell behind the feed: what it missed is read from the database.
    Behind,
}

impl Reader {
    /// The next thing to send; `None` when the stream ends.
    async fn next(&mut self, authorised: &mut Interval) -> Option<Event> {
        let app = self.app.clone();
        loop {
            tokio::select! {
                event = self.advance() => return event,
                () = app.stopping.cancelled() => return None,
                _ = authorised.tick() => {
                    // A key that was rotated away, or a session that has ended, no longer listens.
                    let user = app.sessions.user_of(&self.key).await;
                    if let Err(AdmissionError::Unauthorized | AdmissionError::SessionEnded) = user {
                        return None;
                    }
                }
            }
        }
    }

    async fn advance(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if !self.heard.is_empty() {
                self.ready = self.prepared(&self.heard).await?;
                self.heard.clear();
                continue;
            }
            match &mut self.state {
                StreamState::Begins => {
                    let up_to = self.listener.position().await?;
                    if self.last.is_some_and(|last| last > up_to) && !self.is_known_id().await? {
                        self.last = None;
                    }
                    let last = *self.last.get_or_insert(up_to);
                    self.state = StreamState::CatchesUp { up_to, more: true };
                    return Some(Event::default().id(last.to_string()).retry(RETRY));
                }
                StreamState::CatchesUp { up_to, more } => {
                    let (up_to, after) = (*up_to, self.last.unwrap_or_default());
                    if !*more || after >= up_to {
                        // Past events of others as well.
                        self.last = self.last.max(Some(up_to));
                        self.state = StreamState::Listens;
                        continue;
                    }
                    let rows = self.catch_up(after, up_to).await?;
                    self.ready = self.prepared(&rows).await?;
                    self.last = rows.last().map(|event| event.id).or(self.last);
                    self.state =
                        StreamState::CatchesUp { up_to, more: i64::try_from(rows.len()).is_ok_and(|n| n == CATCH_UP) };
                }
                StreamState::Listens => match self.listener.live.recv().await {
                    Ok(event) => {
                        let fresh = self.fresh(&event);
                        self.heard.extend(fresh);
                        // What has come meanwhile is read about and sent together.
                        while self.heard.len() < LIVE_TOGETHER {
                            match self.listener.live.try_recv() {
                                Ok(event) => {
                                    let fresh = self.fresh(&event);
                                    self.heard.extend(fresh);
                                }
                                Err(TryRecvError::Lagged(_)) => {
                                    self.state = StreamState::Behind;
                                    break;
                                }
                                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                            }
                        }
                    }
                    Err(RecvError::Lagged(_)) => self.state = StreamState::Behind,
                    Err(RecvError::Closed) => return None,
                },
                StreamState::Behind => {
                    let up_to = self.listener.position().await?;
                    self.state = StreamState::CatchesUp { up_to, more: true };
                }
            }
        }
    }

    /// Events as they are sent, with what is told of their bots. `None` when the store does not answer.
    async fn prepared(&self, events: &[EventRow]) -> Option<VecDeque<Event>> {
        if events.is_empty() {
            return Some(VecDeque::new());
        }
        let bots = self.app.store.bots_of_events(events.iter()).await.inspect_err(unanswered).ok()?;
        let sent = events.iter().map(|event| {
            let BotOfEvent { metadata, error } = bots.get(&event.bot_id).cloned().unwrap_or_default();
            let error = error.filter(|_| event.to.is_some_and(ShownStatus::is_ended));
            let shape = StreamedEventDto { event: EventDto::from(event), metadata, error };
            Event::default().id(event.id.to_string()).json_data(shape).ok()
        });
        sent.collect()
    }

    /// A few events from the database. Replays read one after the other, with pauses: they can wait, other reads cannot.
    /// `None` when the store does not answer.
    async fn catch_up(&self, after: EventId, up_to: EventId) -> Option<Vec<EventRow>> {
        let permits = permits(&self.app, &self.quota).await?;
        let begun = Instant::now();
        let store = &self.app.store;
        let rows = match self.bot {
            None => store.events_of_user(self.user, after, up_to, CATCH_UP).await,
            Some(bot) => store.events_of_bot_after(bot, after, CATCH_UP).await.map(|mut rows| {
                rows.retain(|event| event.id <= up_to);
                rows
            }),
        };
        let rows = rows.inspect_err(unanswered).ok()?;
        // Events may have been deleted since the stream began. The client comes back, and is told so.
        let pruned = match self.bot {
            None => store.pruned_events().await.inspect_err(unanswered).ok()?,
            Some(_) => EventId(0),
        };
        if pruned > after {
            return None;
        }
        let pause = begun.elapsed().max(PAUSE);
        // In a task of its own: a client that goes away meanwhile does not make the pause shorter.
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            drop(permits);
        });
        Some(rows)
    }

    /// Whether the id that the client saw last is one of this database. The feed may not have come to it yet; one that no
    /// event has is of another database, and who waited for what comes after it would wait for ever. `None` when the store
    /// does not answer.
    async fn is_known_id(&self) -> Option<bool> {
        let _permit = permits(&self.app, &self.quota).await?;
        let newest = self.app.store.last_event().await.inspect_err(unanswered).ok()?;
        Some(self.last <= Some(newest))
    }

    /// The event if it is this user's and was not sent before.
    fn fresh(&mut self, event: &EventRow) -> Option<EventRow> {
        if Some(event.id) <= self.last {
            return None;
        }
        self.last = Some(event.id);
        let is_asked_for = event.user_id == self.user && self.bot.is_none_or(|bot| event.bot_id == bot);
        is_asked_for.then(|| event.clone())
    }
}

/// Whether this event, or one after it, was deleted.
fn is_pruned(last: EventId, pruned: EventId) -> bool {
    pruned > EventId(0) && last <= pruned
}

/// A replay needs two places: the one of its user, and one of those that all users share. So each user has at most one replay
/// waiting for a shared place, and users take turns.
async fn permits(app: &App, quota: &Quota) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let own = quota.replay.clone().acquire_owned().await.ok()?;
    let all = app.quotas.replays.clone().acquire_owned().await.ok()?;
    Some((own, all))
}

/// The client comes back with its last id, and nothing is lost.
fn unanswered(error: &StoreError) {
    tracing::warn!(%error, "event stream failed");
}
