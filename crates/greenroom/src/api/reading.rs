//! For users: the true state of their bots, at any time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use domain::{BotId, EventId, Platform, ShownStatus, UserId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::dto::{BotDto, Bots, EventDto, MeetingDto, OneBot, PlatformWord, SegmentDto, SessionDto, StatusWord};
use super::extract::{Asked, Asker, Id, User};
use super::open_bots::{self, OpenBotFacts};
use super::pages::Pager;
use super::problem::{Problem, ProblemDto};
use super::traffic_quota::Quota;
use crate::lifecycle::wait_for_status::AwaitedState;
use crate::store::{BotChunk, BotFilter, BotRow, SegmentPosition, StoreError};

const DEFAULT_PAGE: i64 = 50;
const LARGEST_PAGE: i64 = 1_000;
const DEFAULT_WAIT_MS: u64 = 30_000;
const LONGEST_WAIT_MS: u64 = 60_000;

fn checked_limit(limit: i64) -> Result<i64, Problem> {
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::invalid("limit", format!("must be from 1 to {LARGEST_PAGE}")));
    }
    Ok(limit)
}

fn parsed_cursor<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, Problem> {
    let cursor = cursor.filter(|cursor| !cursor.is_empty());
    cursor
        .map(|cursor| cursor.parse().map_err(|_| Problem::invalid("cursor", "is not a cursor of an earlier response")))
        .transpose()
}

/// A filter of bots, and the page of the result.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// Only bots with this status.
    #[param(value_type = Option<StatusWord>)]
    pub status: Option<String>,
    /// Only bots on this platform.
    #[param(value_type = Option<PlatformWord>)]
    pub platform: Option<String>,
    /// The largest number of entries on the page. A page may have fewer, because it ends at about 1 MiB.
    #[param(default = 50, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl Page {
    pub fn limit(&self) -> Result<i64, Problem> {
        checked_limit(self.limit.unwrap_or(DEFAULT_PAGE))
    }

    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        parsed_cursor(self.cursor.as_deref())
    }

    /// What to look for.
    pub fn filter(&self) -> Result<BotFilter, Problem> {
        let platform: Option<Platform> = self
            .platform
            .as_deref()
            .map(|word| word.parse().map_err(|error| Problem::invalid("platform", error)))
            .transpose()?;
        let status: Option<ShownStatus> = self
            .status
            .as_deref()
            .map(|word| word.parse().map_err(|error| Problem::invalid("status", error)))
            .transpose()?;
        Ok(BotFilter { status, platform, before: self.cursor::<BotId>()? })
    }
}

/// Which bots a page is made of.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    Of(UserId),
    OpenOf(UserId),
    Everyones,
}

impl Which {
    async fn read(self, app: &App, filter: &BotFilter, limit: i64) -> Result<BotChunk, StoreError> {
        match self {
            Which::Of(user) => app.store.bots_of(user, filter, limit).await,
            Which::OpenOf(user) => app.store.open_bots_of(user, filter.before, limit).await,
            Which::Everyones => app.store.bots(filter, limit).await,
        }
    }
}

/// Fills a page with bots, newest first, with the deadlines of those that have not ended.
pub async fn bots_page(app: &App, which: Which, mut filter: BotFilter, pager: Pager) -> Result<Response, Problem> {
    let (mut pager, mut facts) = (pager, OpenBotFacts::default());
    loop {
        let wanted = pager.wanted();
        let chunk = which.read(app, &filter, wanted).await?;
        facts.read(app, &chunk.open()?).await?;
        for bot in chunk.iter() {
            if pager.is_full() {
                return pager.finish(true);
            }
            let bot = bot?;
            filter.before = Some(bot.id);
            pager.push(
                &facts.bot_dto(bot, &app.deadlines),
                filter.before.map(|id| id.to_string()).unwrap_or_default(),
            )?;
        }
        if is_last(chunk.len(), wanted) {
            return pager.finish(false);
        }
    }
}

/// Whether fewer rows came than were asked for, so that there are no more.
pub fn is_last(read: usize, wanted: i64) -> bool {
    i64::try_from(read).is_ok_and(|read| read < wanted)
}

/// List bots
///
/// Returns one page of the user's bots, newest first. New bots do not shift the pages: no bot appears twice or is
/// missing.
#[utoipa::path(
    get, path = "/bots", operation_id = "bots_list", tag = "For users", params(Page),
    responses((status = 200, description = "A page of bots, newest first", body = Bots)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn list(State(app): State<App>, User(user): User, Asked(page): Asked<Page>) -> Result<Response, Problem> {
    let pager = Pager::new("bots", page.limit()?);
    bots_page(&app, Which::Of(user.id), page.filter()?, pager).await
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

/// List bots that have not ended
///
/// Returns one page of bots of the user, newest first.
#[utoipa::path(
    get, path = "/bots/active", operation_id = "bots_active", tag = "For users", params(Paging),
    responses((status = 200, description = "A page of bots that have not ended, newest first", body = Bots)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn active(State(app): State<App>, User(user): User, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let filter = BotFilter { before: page.cursor()?, ..BotFilter::default() };
    bots_page(&app, Which::OpenOf(user.id), filter, Pager::new("bots", page.limit()?)).await
}

/// How much of its limit a user uses.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// How many bots count against the limit. Bots that are `stopping` do not count.
    pub running: i64,
    /// The limit: how many bots the user may run at once.
    pub max_concurrent_bots: i64,
    /// How many bots of the user have each status. Bots that have ended are included.
    pub by_status: BTreeMap<&'static str, i64>,
    /// The bots that have not ended, newest first; at most 1000 bots and about 1 MiB.
    pub bots: Vec<BotDto>,
    /// Send it as `cursor` to `GET /bots/active` to get more bots; `null` if there are no more.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// The same without its bots, which are written one by one.
#[derive(Debug, Serialize)]
struct UsageHead {
    running: i64,
    max_concurrent_bots: i64,
    by_status: BTreeMap<&'static str, i64>,
}

/// Get the use of the limit
///
/// Returns the number of running bots, the limit, and the bots that have not ended.
#[utoipa::path(
    get, path = "/bots/status", operation_id = "bots_usage", tag = "For users",
    responses((status = 200, description = "The current use", body = Usage)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn usage(State(app): State<App>, User(user): User) -> Result<Response, Problem> {
    let owner = app.store.user(user.id).await?.ok_or_else(|| Problem::not_found("user"))?;
    let mut by_status: BTreeMap<_, _> = ShownStatus::ALL.map(|status| (status.as_str(), 0)).into();
    let mut running = 0;
    for (status, count) in app.store.bots_of_by_status(user.id).await? {
        by_status.insert(status.as_str(), count);
        running += if status.is_running() { count } else { 0 };
    }
    let head = UsageHead { running, max_concurrent_bots: owner.max_concurrent_bots, by_status };
    let pager = Pager::behind(&head, "bots", LARGEST_PAGE)?;
    bots_page(&app, Which::OpenOf(user.id), BotFilter::default(), pager).await
}

/// A page of bots as meetings, newest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = MeetingPage)]
pub struct Meetings {
    pub meetings: Vec<MeetingDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// List bots as meetings
///
/// Returns the same bots as `GET /bots`, in the format of older clients.
#[utoipa::path(
    get, path = "/meetings", operation_id = "meetings_list", tag = "For users", params(Page),
    responses((status = 200, description = "A page of meetings, newest first", body = Meetings)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn meetings(State(app): State<App>, User(user): User, Asked(page): Asked<Page>) -> Result<Response, Problem> {
    let (mut filter, mut pager) = (page.filter()?, Pager::new("meetings", page.limit()?));
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.bots_of(user.id, &filter, wanted).await?;
        for bot in chunk.iter() {
            if pager.is_full() {
                return pager.finish(true);
            }
            let bot = bot?;
            let id = bot.id;
            filter.before = Some(id);
            pager.push(&MeetingDto::from(bot), id.to_string())?;
        }
        if is_last(chunk.len(), wanted) {
            return pager.finish(false);
        }
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
