//! For users: `GET /events`, server-sent events of all their bots. A client that comes back with `Last-Event-ID` gets
//! everything since, then what happens from there on, with nothing missing and nothing twice.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use domain::{EventId, UserId};
use futures_util::{Stream, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Interval;
use utoipa::IntoParams;

use super::App;
use super::extract::{Asked, Key};
use super::problem::Problem;
use super::shapes::EventShape;
use crate::admission::AdmissionError;
use crate::admission::keys::ApiKey;
use crate::lifecycle::feed::Listener;
use crate::store::EventRow;

const CATCH_UP: i64 = 500;
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
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let user = app.admission.authenticate(&key).await?;
    let header = headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?").to_owned());
    let last = header
        .or(since.last_event_id)
        .filter(|id| !id.is_empty())
        .map(|id| id.parse().map(EventId).map_err(|_| Problem::invalid("Last-Event-ID", "is not the id of an event")))
        .transpose()?;
    // An id that no event has yet is not of this database: who waited for what comes after it would wait for ever.
    let newest = app.store.last_event().await?;
    let mut authorised = tokio::time::interval(app.limits.key_time);
    authorised.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let reader = Reader {
        user: user.id,
        key,
        listener: app.lifecycle.feed.listen_to_user(user.id),
        last: last.filter(|last| *last <= newest),
        place: Place::Begins,
        app,
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
                    match self.app.store.events_of_user(self.user, after, *up_to, CATCH_UP).await {
                        Ok(rows) => {
                            *more = i64::try_from(rows.len()).is_ok_and(|n| n == CATCH_UP);
                            *read = rows.into_iter();
                        }
                        Err(error) => {
                            // The client comes back with its last id, and nothing is lost.
                            tracing::warn!(%error, "a stream of events ends, the store does not answer");
                            return None;
                        }
                    }
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

    /// The event if it is this user's and was not sent before.
    fn fresh<'e>(&mut self, event: &'e Arc<EventRow>) -> Option<&'e EventRow> {
        if Some(event.id) <= self.last {
            return None;
        }
        self.last = Some(event.id);
        (event.user_id == self.user).then_some(event)
    }
}

fn told(event: &EventRow) -> Option<Event> {
    Event::default().id(event.id.to_string()).json_data(EventShape::from(event)).ok()
}
