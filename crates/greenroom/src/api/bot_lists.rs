//! Lists of bots, and how much of its limit a user uses. A list with filters reads candidates in small chunks
//! ([`crate::store::BotSource`]). A page ends when it is full, or when it has read as many candidates as one request may
//! cost. Then its cursor says where the next page continues, also if it has found few bots or none.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query, State};
use axum::http::request::Parts;
use axum::response::Response;
use domain::{BotId, Meeting, Platform, ShownStatus, UserId};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::dto::{BotDto, Bots, MeetingDto, PlatformWord, StatusWord};
use super::extract::{Asked, User};
use super::open_bots::OpenBotFacts;
use super::pages::Pager;
use super::problem::Problem;
use super::reading::{Paging, checked_limit, is_last, parsed_cursor};
use crate::placement::view::OpenBotIds;
use crate::store::{BotCandidate, BotChunk, BotFilter, BotRow, BotSource, StoreError};

const DEFAULT_PAGE: i64 = 50;
/// How many candidates one page reads, and for how long.
const CANDIDATES_MAX: i64 = 1_024;
const SEARCH_TIME: Duration = Duration::from_millis(100);
/// How many candidates are read first. Each chunk after it has twice as many, up to a limit: a metadata document may
/// have 64 KiB.
const FIRST_CANDIDATES: i64 = 32;
const CANDIDATES: i64 = 64;
const CANDIDATES_WITHOUT_METADATA: i64 = 256;
/// How many bots are read at once: a bot may have 140 KiB.
const BOTS_AT_ONCE: usize = 64;
const METADATA_KEYS_MAX: usize = 10;

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
    /// Only bots of this meeting: a meeting link, or the id that the platform gave the meeting.
    #[param(example = "abc-defg-hij")]
    pub meeting: Option<String>,
    /// Only bots whose metadata has this value for `KEY`, for example `metadata.customer=42`. May be repeated with
    /// other keys.
    #[serde(rename = "metadata.KEY")]
    pub metadata_key: Option<String>,
    /// The largest number of entries on the page. A page may have fewer: it ends at about 1 MiB, and with a filter
    /// after about 1000 bots were searched. Continue while `next_cursor` is not `null`.
    #[param(default = 50, minimum = 1, maximum = 1000)]
    pub limit: Option<i64>,
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

/// The parameters `metadata.KEY`.
#[derive(Debug, Default)]
pub struct MetadataFilter(Vec<(String, String)>);

impl FromRequestParts<App> for MetadataFilter {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let Ok(Query(sent)) = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri) else {
            return Err(Problem::invalid("query", "cannot be read"));
        };
        let keys =
            sent.into_iter().filter_map(|(name, value)| Some((name.strip_prefix("metadata.")?.to_owned(), value)));
        let keys: Vec<(String, String)> = keys.collect();
        if keys.len() > METADATA_KEYS_MAX {
            return Err(Problem::invalid("metadata", format!("at most {METADATA_KEYS_MAX} keys are allowed")));
        }
        if keys.iter().any(|(key, _)| key.is_empty()) {
            return Err(Problem::invalid("metadata.", "needs a key, as in metadata.customer=42"));
        }
        Ok(Self(keys))
    }
}

/// Reads a word of an enum from a parameter.
fn word<T: std::str::FromStr<Err: std::fmt::Display>>(field: &str, text: Option<&str>) -> Result<Option<T>, Problem> {
    text.map(|text| text.parse().map_err(|error| Problem::invalid(field, error))).transpose()
}

impl Page {
    pub fn limit(&self) -> Result<i64, Problem> {
        checked_limit(self.limit.unwrap_or(DEFAULT_PAGE))
    }

    pub fn cursor<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        parsed_cursor(self.cursor.as_deref())
    }

    /// What to look for. A meeting link also says the platform; `None` if that is another one than `platform`, so that
    /// nothing is found.
    fn filter(&self, metadata: MetadataFilter) -> Result<Option<BotFilter>, Problem> {
        let mut filter = BotFilter {
            status: word::<ShownStatus>("status", self.status.as_deref())?,
            platform: word::<Platform>("platform", self.platform.as_deref())?,
            native_meeting_id: self.meeting.clone(),
            metadata: metadata.0,
        };
        let link = self.meeting.as_deref().filter(|meeting| meeting.contains("://"));
        if let Some(link) = link {
            let meeting = Meeting::from_link(link).map_err(|error| Problem::invalid("meeting", error))?;
            if filter.platform.is_some_and(|platform| platform != meeting.platform) {
                return Ok(None);
            }
            (filter.platform, filter.native_meeting_id) = (Some(meeting.platform), Some(meeting.native_id));
        }
        Ok(Some(filter))
    }
}

/// Whose bots a list shows.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    Of(UserId),
    Everyones,
}

/// How a list shows a bot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bot,
    Meeting,
}

/// A list of bots, newest first.
#[derive(Debug)]
pub struct BotList {
    whose: Whose,
    /// Only those that have not ended.
    only_open: bool,
    filter: BotFilter,
    /// Only those older than this one.
    before: Option<BotId>,
    form: Form,
}

impl BotList {
    fn new(whose: Whose, before: Option<BotId>) -> Self {
        Self { whose, only_open: false, filter: BotFilter::default(), before, form: Form::Bot }
    }

    /// Writes the page.
    async fn write(mut self, app: &App, mut pager: Pager) -> Result<Response, Problem> {
        if !self.filter.is_empty() {
            return self.search(app, pager).await;
        }
        loop {
            let wanted = pager.wanted();
            let chunk = self.read(app, wanted).await?;
            if !self.push(app, &mut pager, &chunk).await? {
                return pager.finish(true);
            }
            if is_last(chunk.len(), wanted) {
                return pager.finish(false);
            }
        }
    }

    async fn read(&self, app: &App, limit: i64) -> Result<BotChunk, StoreError> {
        match self.whose {
            Whose::Of(user) if self.only_open => app.store.open_bots_of(user, self.before, limit).await,
            Whose::Of(user) => app.store.bots_of(user, self.before, limit).await,
            Whose::Everyones => app.store.bots(self.before, limit).await,
        }
    }

    /// Adds bots to the page, with the deadlines of those that have not ended. False if the page took not all of them.
    async fn push(&mut self, app: &App, pager: &mut Pager, chunk: &BotChunk) -> Result<bool, Problem> {
        let mut facts = OpenBotFacts::default();
        if self.form == Form::Bot {
            facts.read(app, &chunk.open()?).await?;
        }
        for bot in chunk.iter() {
            if pager.is_full() {
                return Ok(false);
            }
            let bot: BotRow = bot?;
            // Its status may have changed since it was found.
            if self.filter.status.is_some_and(|status| status != bot.shown()) {
                continue;
            }
            let id = bot.id;
            self.before = Some(id);
            match self.form {
                Form::Bot => pager.push(&facts.bot_dto(bot, &app.deadlines), id.to_string())?,
                Form::Meeting => pager.push(&MeetingDto::from(bot), id.to_string())?,
            }
        }
        Ok(true)
    }

    /// Writes a page of those that the filter finds.
    async fn search(mut self, app: &App, mut pager: Pager) -> Result<Response, Problem> {
        let (begun, mut searched) = (Instant::now(), 0);
        let largest = if self.filter.metadata.is_empty() { CANDIDATES_WITHOUT_METADATA } else { CANDIDATES };
        let mut at_once = FIRST_CANDIDATES;
        let mut before = self.before;
        loop {
            let (candidates, more) = self.candidates(app, before, at_once).await?;
            let found: Vec<BotId> =
                candidates.iter().filter(|candidate| self.shows(candidate)).map(|candidate| candidate.id).collect();
            for ids in found.chunks(BOTS_AT_ONCE) {
                if pager.is_full() {
                    return pager.finish(true);
                }
                let chunk = app.store.bot_chunk(ids).await?;
                if !self.push(app, &mut pager, &chunk).await? {
                    return pager.finish(true);
                }
            }
            let Some(next) = more else { return pager.finish(false) };
            searched += at_once;
            if pager.is_full() || searched >= CANDIDATES_MAX || begun.elapsed() > SEARCH_TIME {
                return pager.finish_at(next.to_string());
            }
            before = Some(next);
            at_once = (at_once * 2).min(largest);
        }
    }

    fn shows(&self, bot: &BotCandidate) -> bool {
        let is_whose = match self.whose {
            Whose::Of(user) => user == bot.user_id,
            Whose::Everyones => true,
        };
        is_whose && self.filter.matches(bot)
    }

    /// The next candidates, and the last one of them if there may be more.
    async fn candidates(
        &self,
        app: &App,
        before: Option<BotId>,
        limit: i64,
    ) -> Result<(Vec<BotCandidate>, Option<BotId>), Problem> {
        let status = self.filter.status.filter(|status| !status.is_ended());
        let (meeting, whose) = (self.filter.native_meeting_id.as_deref(), self.whose);
        if let (Some(status), None) = (status, meeting) {
            let ids = self.open_candidates(app, status, before, limit).await?;
            let more = ids.last().copied().filter(|_| !is_last(ids.len(), limit));
            let known = BotSource::Known(&ids);
            return Ok((app.store.bot_candidates(&known, &self.filter, before, limit).await?, more));
        }
        let source = match (meeting, whose) {
            (Some(meeting), _) => BotSource::AtMeeting(meeting),
            (None, Whose::Of(user)) => BotSource::OfUser(user),
            (None, Whose::Everyones) => BotSource::Everyones,
        };
        let candidates = app.store.bot_candidates(&source, &self.filter, before, limit).await?;
        let more = candidates.last().map(|last| last.id).filter(|_| !is_last(candidates.len(), limit));
        Ok((candidates, more))
    }

    /// The next bots that may have this status, and have not ended.
    async fn open_candidates(
        &self,
        app: &App,
        status: ShownStatus,
        before: Option<BotId>,
        limit: i64,
    ) -> Result<Vec<BotId>, StoreError> {
        let whose = self.whose;
        let older = move |ids: &OpenBotIds| {
            let ids = if status == ShownStatus::Queued { &ids.queued } else { &ids.placed };
            let before = before.unwrap_or(BotId(uuid::Uuid::max()));
            ids.range(..before).rev().take(usize::try_from(limit).unwrap_or(0)).copied().collect::<Vec<BotId>>()
        };
        let read = app.placement.read_view(&app.store, |view| match whose {
            Whose::Of(user) => view.bots_of(user).map(older).unwrap_or_default(),
            Whose::Everyones => older(view.bots()),
        });
        read.await
    }
}

/// A page of a list with filters, as the parameters say.
pub async fn filtered(
    app: &App,
    whose: Whose,
    page: &Page,
    metadata: MetadataFilter,
    pager: Pager,
) -> Result<Response, Problem> {
    write_filtered(app, whose, page, metadata, pager, Form::Bot).await
}

async fn write_filtered(
    app: &App,
    whose: Whose,
    page: &Page,
    metadata: MetadataFilter,
    pager: Pager,
    form: Form,
) -> Result<Response, Problem> {
    let before = page.cursor()?;
    let Some(filter) = page.filter(metadata)? else { return pager.finish(false) };
    BotList { filter, form, ..BotList::new(whose, before) }.write(app, pager).await
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
pub async fn list(
    State(app): State<App>,
    User(user): User,
    Asked(page): Asked<Page>,
    metadata: MetadataFilter,
) -> Result<Response, Problem> {
    let pager = Pager::new("bots", page.limit()?);
    filtered(&app, Whose::Of(user.id), &page, metadata, pager).await
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
    let list = BotList { only_open: true, ..BotList::new(Whose::Of(user.id), page.cursor()?) };
    list.write(&app, Pager::new("bots", page.limit()?)).await
}

/// How much of its limit a user uses.
#[derive(Debug, Serialize, ToSchema)]
pub struct Usage {
    /// How many bots count against the limit. Bots that are `stopping` do not count.
    pub running: i64,
    /// The limit: how many bots the user may run at once.
    pub max_concurrent_bots: i64,
    /// How many bots of the user have each status. For `completed` and `failed`: how many have ended so since the user
    /// was created.
    pub by_status: BTreeMap<&'static str, i64>,
    /// A page of the bots that have not ended, newest first.
    pub bots: Vec<BotDto>,
    /// Send it as `cursor`, here or to `GET /bots/active`, to get more bots; `null` on the last page.
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
    get, path = "/bots/status", operation_id = "bots_usage", tag = "For users", params(Paging),
    responses((status = 200, description = "The current use", body = Usage)),
    security(("api_key" = []), ("x_api_key" = [])),
)]
pub async fn usage(State(app): State<App>, User(user): User, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (before, limit) = (page.cursor()?, page.limit()?);
    let owner = app.store.user(user.id).await?.ok_or_else(|| Problem::not_found("user"))?;
    let mut by_status: BTreeMap<_, _> = ShownStatus::ALL.map(|status| (status.as_str(), 0)).into();
    let mut running = 0;
    for (status, count) in counts_of(&app, user.id).await? {
        *by_status.entry(status.as_str()).or_default() += count;
        running += if status.is_running() { count } else { 0 };
    }
    let head = UsageHead { running, max_concurrent_bots: owner.max_concurrent_bots, by_status };
    let list = BotList { only_open: true, ..BotList::new(Whose::Of(user.id), before) };
    list.write(&app, Pager::behind(&head, "bots", limit)?).await
}

/// How many bots of a user have each status. Queued bots and those that have ended are not counted here: their numbers
/// are kept.
async fn counts_of(app: &App, user: UserId) -> Result<Vec<(ShownStatus, i64)>, StoreError> {
    let open = app.placement.read_view(&app.store, |view| {
        view.bots_of(user).map(|open| (open.queued.len(), open.placed.iter().copied().collect::<Vec<_>>()))
    });
    let (queued, placed) = open.await?.unwrap_or_default();
    let mut counts = app.store.count_by_status(placed).await?;
    // A bot that has ended since the view was read is among these.
    counts.retain(|(status, _)| !status.is_ended());
    counts.push((ShownStatus::Queued, i64::try_from(queued).unwrap_or(i64::MAX)));
    counts.extend(app.store.ended_counts(user).await?);
    Ok(counts)
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
pub async fn meetings(
    State(app): State<App>,
    User(user): User,
    Asked(page): Asked<Page>,
    metadata: MetadataFilter,
) -> Result<Response, Problem> {
    let pager = Pager::new("meetings", page.limit()?);
    write_filtered(&app, Whose::Of(user.id), &page, metadata, pager, Form::Meeting).await
}
