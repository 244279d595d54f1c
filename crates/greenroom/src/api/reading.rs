//! For users: the true state of one bot, at any time, its events and its transcript. And the pages of lists.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use domain::{BotId, EventId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::dto::{EventDto, OneBot, SegmentDto, SessionDto};
use super::extract::{Asked, Asker, Id, User};
use super::open_bots;
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::traffic_quota::Quota;
use crate::lifecycle::wait_for_status::AwaitedState;
use crate::store::{BotRow, SegmentPosition};

const LARGEST_PAGE: i64 = 1_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
const LONGEST_WAIT_MS: u64 = 60_000;

pub fn checked_limit(limit: i64) -> Result<i64, Problem> {
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::invalid("limit", format!("must be from 1 to {LARGEST_PAGE}")));
    }
    Ok(limit)
}

pub fn parsed_cursor<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, Problem> {
    let cursor = cursor.filter(|cursor| !cursor.is_empty());
    cursor
        .map(|cursor| cursor.parse().map_err(|_| Problem::invalid("cursor", "is not a cursor of an earlier response")))
        .transpose()
}

/// Whether fewer rows came than were asked for, so that there are no more.
pub fn is_last(read: usize, wanted: i64) -> bool {
    i64::try_from(read).is_ok_and(|read| read < wanted)
}

/// The page of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB.
    #[param(default = 1000, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl Paging {
    pub fn limit(&self) -> Result<i64, Problem> {
        checked_limit(self.limit.unwrap_or(LARGEST_PAGE))
    }

    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        parsed_cursor(self.cursor.as_deref())
    }
}

/// A bot with its sessions.
pub async fn with_sessions(app: &App, bot: BotRow) -> Result<OneBot, Problem> {
    let sessions = app.lifecycle.sessions(bot.id).await?;
    let mut bot = open_bots::bot_dto(app, bot).await?;
    bot.sessions = Some(sessions.into_iter().map(SessionDto::from).collect());
    Ok(OneBot { bot })
}

/// The user's own bot; another user's is no different from none.
pub async fn own(app: &App, user: Asker, id: BotId) -> Result<BotRow, Problem> {
    app.store.bot(id).await?.filter(|bot| bot.user_id == user.id).ok_or_else(|| Problem::not_found("bot"))
}

/// A bot of any user, for operators.
pub async fn any_users(app: &App, id: BotId) -> Result<BotRow, Problem> {
    app.store.bot(id).await?.ok_or_else(|| Problem::not_found("bot"))
}

/// The condition for which a call waits.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    Active,
    Ended,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct BotWait {
    /// Wait until the bot is active or has ended, at most `wait_ms`.
    #[param(inline)]
    pub wait_for: Option<WaitFor>,
    /// How long to wait, at most 60000. Allowed only with `wait_for`.
    #[param(default = 30000, maximum = 60000)]
    pub wait_ms: Option<u64>,
}

/// Get a bot
///
/// Returns the bot with its sessions. With `wait_for`, the call waits until the bot is active or has ended, until
/// `wait_ms` has passed, or until the server stops. Check `status` in the response to see which happened. Returns 503
/// `overloaded` if too many calls of the user wait.
#[utoipa::path(
    get, path = "/bots/{id}", operation_id = "bots_show", tag = "For users",
    params(BotWait, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "The bot with its sessions", body = OneBot),
              (status = 404, description = "`not_found`: the user has no such bot",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn one(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
    Asked(asked): Asked<BotWait>,
    Extension(quota): Extension<Arc<Quota>>,
) -> Result<Json<OneBot>, Problem> {
    let wait = asked.wait_ms.unwrap_or(DEFAULT_WAIT_MS);
    if wait > LONGEST_WAIT_MS {
        return Err(Problem::invalid("wait_ms", format!("must be at most {LONGEST_WAIT_MS}")));
    }
    let mut bot = own(&app, user, id).await?;
    if let Some(state) = asked.wait_for {
        let state = match state {
            WaitFor::Active => AwaitedState::Active,
            WaitFor::Ended => AwaitedState::Ended,
        };
        let _permit = quota.open_stream()?;
        let wait = Duration::from_millis(wait);
        let waited = app.lifecycle.await_state(id, state, wait, &app.stopping).await?;
        bot = waited.ok_or_else(|| Problem::not_found("bot"))?;
    } else if asked.wait_ms.is_some() {
        return Err(Problem::invalid("wait_ms", "needs wait_for"));
    }
    Ok(Json(with_sessions(&app, bot).await?))
}

/// A page of events, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = EventPage)]
pub struct Events {
    pub events: Vec<EventDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// List the events of a bot
///
/// Returns one page of the events of the bot, oldest first. Returns 404 `not_found` if the user has no such bot.
#[utoipa::path(
    get, path = "/bots/{id}/events", operation_id = "bots_events", tag = "For users",
    params(Paging, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "A page of events, oldest first", body = Events)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn events(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
    Asked(page): Asked<Paging>,
) -> Result<Response, Problem> {
    let bot = own(&app, user, id).await?.id;
    events_page(&app, bot, &page).await
}

/// A page of a bot's events.
pub async fn events_page(app: &App, bot: BotId, page: &Paging) -> Result<Response, Problem> {
    let mut after = EventId(page.cursor()?.unwrap_or(0));
    let mut pager = Pager::new("events", page.limit()?);
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.events_of_bot_after(bot, after, wanted).await?;
        for event in &chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            after = event.id;
            pager.push(&EventDto::from(event), event.id.to_string())?;
        }
        if is_last(chunk.len(), wanted) {
            return pager.finish(false);
        }
    }
}

/// A page of segments, by start, end and arrival.
#[derive(Debug, Serialize, ToSchema)]
pub struct Transcript {
    pub segments: Vec<SegmentDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Where a page of a transcript ended, as text that keeps every bit of the times.
struct SegmentCursor(SegmentPosition);

impl std::fmt::Display for SegmentCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SegmentPosition { start_time, end_time, id } = self.0;
        write!(f, "{:x}-{:x}-{id}", start_time.to_bits(), end_time.to_bits())
    }
}

impl std::str::FromStr for SegmentCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or(());
        let time = |text: &str| u64::from_str_radix(text, 16).map(f64::from_bits).map_err(|_| ());
        let (start_time, end_time) = (time(next()?)?, time(next()?)?);
        let id = next()?.parse().map_err(|_| ())?;
        let is_valid = start_time.is_finite() && end_time.is_finite();
        is_valid.then_some(Self(SegmentPosition { start_time, end_time, id })).ok_or(())
    }
}

/// Get the transcript of a bot
///
/// Returns one page of segments, ordered by their start time. Returns 404 `not_found` if the user has no such bot.
#[utoipa::path(
    get, path = "/bots/{id}/transcript", operation_id = "bots_transcript", tag = "For users",
    params(Paging, ("id" = Uuid, Path, description = "The id of the bot")),
    responses((status = 200, description = "A page of segments, ordered by their start time", body = Transcript)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn transcript(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
    Asked(page): Asked<Paging>,
) -> Result<Response, Problem> {
    let bot = own(&app, user, id).await?.id;
    transcript_page(&app, bot, &page).await
}

/// A page of a bot's transcript.
pub async fn transcript_page(app: &App, bot: BotId, page: &Paging) -> Result<Response, Problem> {
    let mut after = page.cursor::<SegmentCursor>()?.map_or(SegmentPosition::FIRST, |cursor| cursor.0);
    let mut pager = Pager::new("segments", page.limit()?);
    loop {
        // A segment may be as large as a body, so their sizes are read first.
        let wanted = pager.wanted();
        let sizes = app.store.segment_sizes(bot, after, wanted).await?;
        let fitting = fitting(&sizes, &pager);
        if fitting == 0 {
            return pager.finish(!sizes.is_empty());
        }
        let segments = app.store.transcript(bot, after, fitting).await?;
        for (position, segment) in segments {
            if pager.is_full() {
                return pager.finish(true);
            }
            after = position;
            pager.push(&SegmentDto::from(segment), SegmentCursor(position).to_string())?;
        }
        if is_last(sizes.len(), wanted) && i64::try_from(sizes.len()).is_ok_and(|all| all == fitting) {
            return pager.finish(false);
        }
    }
}

/// How many of these segments the page takes; the first in any case.
fn fitting(sizes: &[(SegmentPosition, i64)], pager: &Pager) -> i64 {
    if pager.is_full() {
        return 0;
    }
    let (mut room, mut count) = (pager.room(), 0);
    for (_, bytes) in sizes {
        let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
        if bytes > room && !(count == 0 && pager.is_empty()) {
            break;
        }
        room = room.saturating_sub(bytes);
        count += 1;
        if room == 0 {
            break;
        }
    }
    count
}
