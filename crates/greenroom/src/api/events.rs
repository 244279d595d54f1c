//! For users: `GET /events`, server-sent events of all their bots. A client that comes back with `Last-Event-ID` gets
//! everything since, then what happens from there on, with nothing missing and nothing twice.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use domain::{EventId, UserId};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Interval;
use utoipa::IntoParams;

use super::App;
use super::extract::{Asked, Key};
use super::problem::Problem;
use super::quota::Quota;
use super::shapes::EventShape;
use crate::admission::AdmissionError;
use crate::admission::keys::ApiKey;
use crate::lifecycle::feed::Listener;
use crate::store::{EventRow, StoreError};

/// How many events a replay reads at once, and its shortest pause after that, so that other reads go first.
const CATCH_UP: i64 = 100;
const PAUSE: Duration = Duration::from_millis(10);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a client waits before it comes back.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Since {
    /// The same as the header `Last-Event-ID`, for clients that cannot set headers.
    pub last_event_id: Option<String>,
}

/// Everything that happens to your bots, as it happens
///
/// Server-sent events. Each has the event's `id`, and the event as JSON in `data`. Right after the connection an id
/// without data says where the stream stands, so that a client that loses the connection before the first event can
/// resume as well. Send it back as `Last-Event-ID`.
#[utoipa::path(
    get, path = "/events", tag = "For users",
    params(Since, ("Last-Event-ID" = Option<String>, Header, description = "The last event that was seen")),
    responses((status = 200, description = "A stream of events", body = EventShape, content_type = "text/event-stream")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn stream(
    State(app): State<App>,
    Key(key): Key,
    Asked(since): Asked<Since>,
    Extension(quota): Extension<Arc<Quota>>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let user = app.admission.authenticate(&key).await?;
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let last = header
        .or(since.last_event_id)
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().map(EventId).map_err(|_| Problem::invalid("Last-Event-ID", "is not the id of an event")))
        .transpose()?;
    let place = quota.open_stream()?;
    let mut authorised = tokio::time::interval(app.limits.key_time);
    authorised.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let reader = Reader {
        user,
        key,
        listener: app.lifecycle.feed.listen_to_user(user),
        last,
        place: Place::Begins,
        quota,
        app,
        _open: place,
    };
    let events = stream::unfold((reader, authorised), |(mut reader, mut authorised)| async move {
        let event = reader.next(&mut authorised).await?;
        Some((Ok(event), (reader, authorised)))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// One client's place in the stream.
struct Reader {
    app: App,
    user: UserId,
    key: ApiKey,
    listener: Listener,
    last: Option<EventId>,
    place: Place,
    quota: Arc<Quota>,
    /// Its place among the streams that its user may have.
    _open: OwnedSemaphorePermit,
}

enum Place {
    /// Nothing was sent yet.
    Begins,
    /// What happened up to `up_to` is read from the database.
    CatchesUp { up_to: EventId, read: std::vec::IntoIter<EventRow>, more: bool },
    /// What happens is heard from the feed.
    Listens,
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
                    // A key that was rotated away no longer listens.
                    if let Err(AdmissionError::Unauthorized) = app.admission.authenticate(&self.key).await {
                        return None;
                    }
                }
            }
        }
    }

    async fn advance(&mut self) -> Option<Event> {
        loop {
            match &mut self.place {
                Place::Begins => {
                    let up_to = self.listener.position().await?;
                    if self.last.is_some_and(|last| last > up_to) && !self.is_known_id().await? {
                        self.last = None;
                    }
                    let last = *self.last.get_or_insert(up_to);
                    self.place = Place::CatchesUp { up_to, read: Vec::new().into_iter(), more: true };
                    return Some(Event::default().id(last.to_string()).retry(RETRY));
                }
                Place::CatchesUp { up_to, read, more } => {
                    if let Some(event) = read.next() {
                        self.last = Some(event.id);
                        return told(&event);
                    }
                    if !*more {
                        // Past events of other users as well.
                        self.last = self.last.max(Some(*up_to));
                        self.place = Place::Listens;
                        continue;
                    }
                    let after = self.last.unwrap_or_default();
                    if after >= *up_to {
                        *more = false;
                        continue;
                    }
                    let rows = catch_up(&self.app, &self.quota, self.user, after, *up_to).await?;
                    *more = i64::try_from(rows.len()).is_ok_and(|n| n == CATCH_UP);
                    *read = rows.into_iter();
                }
                Place::Listens => match self.listener.live.recv().await {
                    Ok(event) => {
                        if let Some(event) = self.fresh(&event) {
                            return told(event);
                        }
                    }
                    Err(RecvError::Lagged(_)) => {
                        let up_to = self.listener.position().await?;
                        self.place = Place::CatchesUp { up_to, read: Vec::new().into_iter(), more: true };
                    }
                    Err(RecvError::Closed) => return None,
                },
            }
        }
    }

    /// Whether the id that the client saw last is one of this database. The feed may not have come to it yet; one that no
    /// event has is of another database, and who waited for what comes after it would wait for ever. `None` when the store
    /// does not answer.
    async fn is_known_id(&self) -> Option<bool> {
        let _place = places(&self.app, &self.quota).await?;
        let newest = self.app.store.last_event().await.inspect_err(unanswered).ok()?;
        Some(self.last <= Some(newest))
    }

    /// The event if it is this user's and was not sent before.
    fn fresh<'e>(&mut self, event: &'e Arc<EventRow>) -> Option<&'e EventRow> {
        if Some(event.id) <= self.last {
            return None;
        }
        self.last = Some(event.id);
        (event.user_id == self.user).then_some(event)
    }
}

/// A replay needs two places: the one of its user, and one of those that all users share. So each user has at most one replay
/// waiting for a shared place, and users take turns.
async fn places(app: &App, quota: &Quota) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
    let own = quota.replay.clone().acquire_owned().await.ok()?;
    let all = app.quotas.replays.clone().acquire_owned().await.ok()?;
    Some((own, all))
}

/// A few events from the database. Replays read one after the other, with pauses: they can wait, other reads cannot. `None` when the store does not answer.
async fn catch_up(app: &App, quota: &Quota, user: UserId, after: EventId, up_to: EventId) -> Option<Vec<EventRow>> {
    let places = places(app, quota).await?;
    let begun = Instant::now();
    let rows = app.store.events_of_user(user, after, up_to, CATCH_UP).await.inspect_err(unanswered).ok()?;
    let pause = begun.elapsed().max(PAUSE);
    // In a task of its own: a client that goes away meanwhile does not make the pause shorter.
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        drop(places);
    });
    Some(rows)
}

/// The client comes back with its last id, and nothing is lost.
fn unanswered(error: &StoreError) {
    tracing::warn!(%error, "event stream ended");
}

fn told(event: &EventRow) -> Option<Event> {
    Event::default().id(event.id.to_string()).json_data(EventShape::from(event)).ok()
}
