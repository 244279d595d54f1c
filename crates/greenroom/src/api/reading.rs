//! For users: the true state of their bots, at any time.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use domain::{BotId, Platform, ShownStatus, slot};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::extract::{Asked, Id, User};
use super::problem::{Problem, ProblemShape};
use super::shapes::{
    BotShape, Bots, EventShape, MeetingShape, OneBot, PlatformWord, SegmentShape, SessionShape, StatusWord,
};
use crate::store::{BotFilter, BotRow, UserRow};

const DEFAULT_PAGE: i64 = 50;
const LARGEST_PAGE: i64 = 1_000;

/// Which bots, and which page of them.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// Only those in this status.
    #[param(value_type = Option<StatusWord>)]
    pub status: Option<String>,
    /// Only those on this platform.
    #[param(value_type = Option<PlatformWord>)]
    pub platform: Option<String>,
    /// How many, from 1 to 1000.
    #[param(default = 50, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Page {
    pub fn limit(&self) -> Result<i64, Problem> {
        let limit = self.limit.unwrap_or(DEFAULT_PAGE);
        if !(1..=LARGEST_PAGE).contains(&limit) {
            return Err(Problem::invalid("limit", format!("must be from 1 to {LARGEST_PAGE}")));
        }
        Ok(limit)
    }

    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        let cursor = self.cursor.as_deref().filter(|cursor| !cursor.is_empty());
        cursor
            .map(|cursor| cursor.parse().map_err(|_| Problem::invalid("cursor", "is not one that was given out")))
            .transpose()
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

/// Bots in their shape, with the place in line of those that wait.
pub async fn shaped(app: &App, bots: Vec<BotRow>) -> Result<Vec<BotShape>, Problem> {
    let waiting: Vec<BotId> = bots.iter().filter(|bot| bot.shown() == ShownStatus::Queued).map(|bot| bot.id).collect();
    let mut shapes: Vec<BotShape> = bots.into_iter().map(BotShape::from).collect();
    if waiting.is_empty() {
        return Ok(shapes);
    }
    let positions = app.store.queue_positions(&waiting).await?;
    let pools = app.store.pools().await?;
    for shape in &mut shapes {
        let Some((_, position)) = positions.iter().find(|(bot, _)| bot.0 == shape.id) else { continue };
        shape.queue_position = Some(*position);
        let serving = pools.iter().filter(|pool| pool.platform.as_str() == shape.platform);
        let serving = serving.map(|pool| (pool.mean_hold_ms, pool.slots));
        shape.estimated_wait_ms = slot::estimated_wait_ms(*position, serving);
    }
    Ok(shapes)
}

/// Cuts off what was read beyond the page, and says how to go on if there was something.
pub fn paged<T>(mut rows: Vec<T>, limit: i64, cursor: impl Fn(&T) -> String) -> (Vec<T>, Option<String>) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(cursor);
    (rows, next)
}

async fn page_of(app: &App, user: &UserRow, page: &Page) -> Result<(Vec<BotRow>, Option<String>), Problem> {
    let limit = page.limit()?;
    let rows = app.store.bots_of(user.id, &page.filter()?, limit + 1).await?;
    Ok(paged(rows, limit, |bot| bot.id.to_string()))
}

/// List your bots
///
/// Newest first. The pages stay right while bots arrive: none is shown twice, none is left out.
#[utoipa::path(
    get, path = "/bots", tag = "For users", params(Page),
    responses((status = 200, description = "A page", body = Bots)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn list(State(app): State<App>, User(user): User, Asked(page): Asked<Page>) -> Result<Json<Bots>, Problem> {
    let (bots, next_cursor) = page_of(&app, &user, &page).await?;
    Ok(Json(Bots { bots: shaped(&app, bots).await?, next_cursor }))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ActiveBots {
    pub bots: Vec<BotShape>,
}

/// Your bots that are not at an end
#[utoipa::path(
    get, path = "/bots/active", tag = "For users",
    responses((status = 200, description = "Newest first", body = ActiveBots)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn active(State(app): State<App>, User(user): User) -> Result<Json<ActiveBots>, Problem> {
    let bots = app.store.open_bots_of(user.id).await?;
    Ok(Json(ActiveBots { bots: shaped(&app, bots).await? }))
}

/// How much of your limit is in use.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// How many bots count against the limit. Those on their way out do not.
    pub running: usize,
    pub max_concurrent_bots: i64,
    /// How many bots you have, and had, in each status.
    pub by_status: BTreeMap<&'static str, i64>,
    /// Those that are not at an end.
    pub bots: Vec<BotShape>,
}

/// Your use of your limit
#[utoipa::path(
    get, path = "/bots/status", tag = "For users",
    responses((status = 200, description = "Now", body = Usage)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn usage(State(app): State<App>, User(user): User) -> Result<Json<Usage>, Problem> {
    let bots = app.store.open_bots_of(user.id).await?;
    let mut by_status: BTreeMap<_, _> = ShownStatus::ALL.map(|status| (status.as_str(), 0)).into();
    for (status, count) in app.store.bots_of_by_status(user.id).await? {
        by_status.insert(status.as_str(), count);
    }
    Ok(Json(Usage {
        running: bots.iter().filter(|bot| bot.status.is_running()).count(),
        max_concurrent_bots: user.max_concurrent_bots,
        by_status,
        bots: shaped(&app, bots).await?,
    }))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Meetings {
    pub meetings: Vec<MeetingShape>,
    pub next_cursor: Option<String>,
}

/// Your bots as the meetings that they attend
///
/// The same records as `GET /bots`, in the shape of older clients.
#[utoipa::path(
    get, path = "/meetings", tag = "For users", params(Page),
    responses((status = 200, description = "A page, newest first", body = Meetings)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn meetings(
    State(app): State<App>,
    User(user): User,
    Asked(page): Asked<Page>,
) -> Result<Json<Meetings>, Problem> {
    let (bots, next_cursor) = page_of(&app, &user, &page).await?;
    Ok(Json(Meetings { meetings: bots.into_iter().map(Into::into).collect(), next_cursor }))
}

/// A bot with its sessions.
pub async fn with_sessions(app: &App, bot: BotRow) -> Result<OneBot, Problem> {
    let sessions = app.lifecycle.sessions(bot.id).await?;
    let mut shapes = shaped(app, vec![bot]).await?;
    let mut bot = shapes.pop().ok_or_else(|| Problem::not_found("bot"))?;
    bot.sessions = Some(sessions.into_iter().map(SessionShape::from).collect());
    Ok(OneBot { bot })
}

/// The user's own bot; another user's is no different from none.
async fn own(app: &App, user: &UserRow, id: BotId) -> Result<BotRow, Problem> {
    app.store.bot(id).await?.filter(|bot| bot.user_id == user.id).ok_or_else(|| Problem::not_found("bot"))
}

/// One bot, with its sessions
#[utoipa::path(
    get, path = "/bots/{id}", tag = "For users",
    params(("id" = Uuid, Path, description = "The bot")),
    responses((status = 200, description = "As it is now", body = OneBot),
              (status = 404, description = "`not_found`, another user's bot as well",
               body = ProblemShape, content_type = "application/problem+json")),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn one(State(app): State<App>, User(user): User, Id(id): Id<BotId>) -> Result<Json<OneBot>, Problem> {
    let bot = own(&app, &user, id).await?;
    Ok(Json(with_sessions(&app, bot).await?))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Events {
    pub events: Vec<EventShape>,
}

/// A bot's audit trail
///
/// Everything that happened to it, oldest first.
#[utoipa::path(
    get, path = "/bots/{id}/events", tag = "For users",
    params(("id" = Uuid, Path, description = "The bot")),
    responses((status = 200, description = "Oldest first", body = Events)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn events(State(app): State<App>, User(user): User, Id(id): Id<BotId>) -> Result<Json<Events>, Problem> {
    let bot = own(&app, &user, id).await?;
    let events = app.store.events_of_bot(bot.id).await?;
    Ok(Json(Events { events: events.iter().map(EventShape::from).collect() }))
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Transcript {
    pub segments: Vec<SegmentShape>,
}

/// What was said
///
/// In the order in which it was said.
#[utoipa::path(
    get, path = "/bots/{id}/transcript", tag = "For users",
    params(("id" = Uuid, Path, description = "The bot")),
    responses((status = 200, description = "By their start", body = Transcript)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn transcript(
    State(app): State<App>,
    User(user): User,
    Id(id): Id<BotId>,
) -> Result<Json<Transcript>, Problem> {
    let bot = own(&app, &user, id).await?;
    let segments = app.store.transcript(bot.id).await?;
    Ok(Json(Transcript { segments: segments.into_iter().map(Into::into).collect() }))
}
