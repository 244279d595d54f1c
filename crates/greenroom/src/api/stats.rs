//! For operators: figures about bots and slots over time. The keeper `stats` writes them by minute and by hour.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use domain::event::StartKind;
use domain::stats::Figures;
use domain::{Fault, SlotStatus};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Number;
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::extract::{Asked, Operator};
use super::problem::{Problem, ProblemDto};
use super::stats_range::StatsRange;
use crate::store::{Resolution, Store, StoreError};

/// How many rows are read at once.
const CHUNK: i64 = 1_000;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StatsFilter {
    /// The beginning; an hour before `to` if it is absent. The server moves it back to a whole step.
    #[param(value_type = Option<String>, format = DateTime)]
    pub from: Option<String>,
    /// The end; now if it is absent. The server moves it on to a whole step.
    #[param(value_type = Option<String>, format = DateTime)]
    pub to: Option<String>,
    /// The length of a step: a duration of whole minutes, such as `1m`, `5m`, `1h` or `1d`; or `minute`, `hour` or
    /// `day`. If it is absent, the server chooses a step that gives at most 300 points. If `from` is more than 48 hours
    /// ago, it must be whole hours.
    #[param(example = "5m")]
    pub step: Option<String>,
    /// Only this pool. If it is absent, all pools together.
    pub pool: Option<String>,
}

/// Figures about bots and slots over time.
#[derive(Debug, Serialize, ToSchema)]
pub struct Stats {
    /// The beginning of the first step.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// The end of the last step.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// The length of a step.
    pub step_ms: i64,
    /// One point for each step, oldest first. Steps that begin in the current minute or later have no point. There are
    /// at most 1500.
    pub points: Vec<StatsPoint>,
}

/// What happened in one step.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsPoint {
    /// The beginning of the step.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Requests for bots that the server accepted. A repeated request counts once.
    pub requests: u64,
    pub starts: StatsStarts,
    pub waits: StatsWaits,
    pub slots: StatsSlots,
    pub ends: StatsEnds,
    /// Bots that got a slot, per second.
    #[schema(example = 0.25)]
    pub placed_per_second: f64,
}

/// Bots that got a slot, by what had to be done to start them. A bot counts when it first gets a slot.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsStarts {
    /// An agent waited in the slot.
    pub hot: u64,
    /// The slot existed, and was started for the bot.
    pub stopped: u64,
    /// The slot was created for the bot.
    pub cold: u64,
}

/// How long bots that got a slot in this step had waited for it: from the arrival of the request to the assignment. The
/// percentiles are exact to 7%.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsWaits {
    /// How many bots got a slot.
    pub count: u64,
    /// Half of them waited no longer; `null` if there were none.
    #[schema(required)]
    pub p50_ms: Option<u64>,
    /// 95% of them waited no longer; `null` if there were none.
    #[schema(required)]
    pub p95_ms: Option<u64>,
}

/// The slots by their status, counted once a minute; in a longer step, the mean. All are `null` if the slots were not
/// counted in this step, for example because no server ran.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsSlots {
    #[schema(value_type = Option<f64>, required)]
    pub creating: Option<Number>,
    #[schema(value_type = Option<f64>, required)]
    pub idle: Option<Number>,
    #[schema(value_type = Option<f64>, required)]
    pub busy: Option<Number>,
    #[schema(value_type = Option<f64>, required)]
    pub error: Option<Number>,
    #[schema(value_type = Option<f64>, required)]
    pub draining: Option<Number>,
}

/// Bots that ended.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsEnds {
    /// By their reason. Of the reasons that bots give themselves, at most 20 have their own count; `other` counts the
    /// rest.
    #[schema(example = json!({"finished": 12, "no_join": 1}))]
    pub by_reason: BTreeMap<String, u64>,
    pub by_fault: StatsFaults,
}

/// Bots that ended, by the side that caused it.
#[derive(Debug, Serialize, ToSchema)]
pub struct StatsFaults {
    pub host: u64,
    pub bot: u64,
    pub provider: u64,
    pub capacity: u64,
    pub none: u64,
}

/// Read figures over time
///
/// Returns requests, starts, waits, slots and ends for each step. The server keeps the figures of minutes for 48 hours,
/// and those of hours for `retention.stats`.
#[utoipa::path(
    get, path = "/admin/stats", tag = "For operators", operation_id = "admin_stats", params(StatsFilter),
    responses((status = 200, description = "One point for each step, oldest first", body = Stats),
              (status = 422, description = "`invalid`: a parameter is wrong, or there would be more than 1500 points",
               body = ProblemDto, content_type = "application/problem+json")),
    security(("admin_token" = [])),
)]
pub async fn stats(
    State(app): State<App>,
    _: Operator,
    Asked(filter): Asked<StatsFilter>,
) -> Result<Json<Stats>, Problem> {
    let now = app.clock.now();
    let StatsFilter { from, to, step, pool } = filter;
    let range = StatsRange::read(from.as_deref(), to.as_deref(), step.as_deref(), now)?;
    if let Some(pool) = &pool {
        refuse_unknown_pool(&app.store, pool).await?;
    }
    let sums = read(&app.store, pool.as_deref().unwrap_or_default(), range).await?;
    // The figures of the current minute are not complete.
    let end = Resolution::Minute.begin(now).as_second().min(range.to);
    let begins = (0..range.points()).map(|index| range.from + index * range.step).take_while(|begin| *begin < end);
    let none = Figures::default();
    let points = begins.map(|begin| {
        let seconds = (now.as_second() - begin).clamp(60, range.step);
        point(second(begin), seconds, sums.get(&begin).unwrap_or(&none))
    });
    let points = points.collect();
    Ok(Json(Stats { from: second(range.from), to: second(range.to), step_ms: range.step * 1_000, points }))
}

/// Refuses a pool that neither exists nor has figures. A pool that was removed has figures.
async fn refuse_unknown_pool(store: &Store, pool: &str) -> Result<(), Problem> {
    let exists = store.pools().await?.iter().any(|known| known.name == pool);
    let ever = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    if exists || (!pool.is_empty() && !store.figures(Resolution::Hour, pool, ever, 1).await?.is_empty()) {
        return Ok(());
    }
    Err(Problem::invalid("pool", "there is no such pool"))
}

/// The figures of each step, by its beginning.
async fn read(store: &Store, pool: &str, range: StatsRange) -> Result<BTreeMap<i64, Figures>, StoreError> {
    let mut sums = BTreeMap::<i64, Figures>::new();
    let (mut next, to) = (second(range.from), second(range.to));
    loop {
        let rows = store.figures(range.resolution(), pool, (next, to), CHUNK).await?;
        let is_last = i64::try_from(rows.len()).is_ok_and(|read| read < CHUNK);
        for (at, figures) in rows {
            let at = at.as_second();
            sums.entry(at - (at - range.from).rem_euclid(range.step)).or_default().add(&figures);
            next = second(at + 1);
        }
        if is_last {
            return Ok(sums);
        }
    }
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

fn point(at: Timestamp, seconds: i64, figures: &Figures) -> StatsPoint {
    let start = |kind: StartKind| figures.starts.get(kind.as_str()).copied().unwrap_or(0);
    let end = |fault: Fault| figures.ends_by_fault.get(fault.as_str()).copied().unwrap_or(0);
    let slots = |status: SlotStatus| figures.mean_slots(status).and_then(number);
    let placed = figures.waits.count();
    #[allow(clippy::cast_precision_loss)]
    let placed_per_second = (placed as f64 / seconds as f64 * 1_000.0).round() / 1_000.0;
    StatsPoint {
        at,
        requests: figures.requests,
        starts: StatsStarts {
            hot: start(StartKind::Hot),
            stopped: start(StartKind::Stopped),
            cold: start(StartKind::Cold),
        },
        waits: StatsWaits { count: placed, p50_ms: figures.waits.percentile(50), p95_ms: figures.waits.percentile(95) },
        slots: StatsSlots {
            creating: slots(SlotStatus::Creating),
            idle: slots(SlotStatus::Idle),
            busy: slots(SlotStatus::Busy),
            error: slots(SlotStatus::Error),
            draining: slots(SlotStatus::Draining),
        },
        ends: StatsEnds {
            by_reason: figures.ends_by_reason.clone(),
            by_fault: StatsFaults {
                host: end(Fault::Host),
                bot: end(Fault::Bot),
                provider: end(Fault::Provider),
                capacity: end(Fault::Capacity),
                none: end(Fault::None),
            },
        },
        placed_per_second,
    }
}

/// A number with at most two decimals, and without any if it is whole.
fn number(value: f64) -> Option<Number> {
    let rounded = (value * 100.0).round() / 100.0;
    #[allow(clippy::cast_possible_truncation)]
    if rounded.fract() == 0.0 { Some(Number::from(rounded as i64)) } else { Number::from_f64(rounded) }
}
