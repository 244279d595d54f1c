//! For operators: who waits for a slot, who is at the deploy gate, and what is being pulled.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use domain::planner::queue::Order;
use domain::{BotId, Platform};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::Problem;
use super::reading::{Paging, is_last};
use crate::placement::view::QueuePlace;
use crate::providers::Pulled;
use crate::store::{DeploymentRow, PullRow};

/// A bot that waits for a slot.
#[derive(Debug, Serialize, ToSchema)]
pub struct QueueEntry {
    pub bot_id: Uuid,
    pub pool: String,
    /// The position in the queue of the platform, from 1.
    pub position: i64,
    /// Bots with a lower value go first.
    pub priority: i64,
    /// When the bot entered the queue.
    #[schema(value_type = String, format = DateTime)]
    pub queued_at: Timestamp,
    /// When the bot stops waiting and fails.
    #[schema(value_type = String, format = DateTime)]
    pub timeout_at: Timestamp,
    /// The estimated time until the bot gets a slot.
    pub estimated_wait_ms: i64,
}

impl From<QueuePlace> for QueueEntry {
    fn from(place: QueuePlace) -> Self {
        Self {
            bot_id: place.bot_id.0,
            pool: place.pool,
            position: place.position,
            priority: place.order.priority,
            queued_at: place.queued_at,
            timeout_at: place.timeout_at,
            estimated_wait_ms: place.estimated_wait_ms,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    pub entries: Vec<QueueEntry>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Where a page ended: the platform, and the order of the last bot in its queue.
struct QueueCursor {
    platform: Platform,
    order: Order,
}

impl std::fmt::Display for QueueCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Order { priority, turn, arrival, bot } = self.order;
        write!(f, "{}.{priority}.{turn}.{arrival}.{bot}", self.platform)
    }
}

impl std::str::FromStr for QueueCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(5, '.');
        let mut next = || parts.next().ok_or(());
        let platform = next()?.parse().map_err(|_| ())?;
        let mut number = || next()?.parse::<i64>().map_err(|_| ());
        let (priority, turn, arrival) = (number()?, number()?, number()?);
        let bot = next()?.parse::<BotId>().map_err(|_| ())?;
        Ok(Self { platform, order: Order { priority, turn, arrival, bot } })
    }
}

/// List the queue
///
/// Returns one page of the bots that wait for a slot.
#[utoipa::path(
    get, path = "/admin/queue", operation_id = "admin_queue", tag = "For operators", params(Paging),
    responses((status = 200, description = "A page of the queue, by platform, in the order in which bots get slots",
               body = Queue)),
    security(("admin_token" = [])),
)]
pub async fn queue(State(app): State<App>, _: Operator, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (after, limit) = (page.cursor::<QueueCursor>()?, page.limit()?);
    // One more than the page takes tells whether there is another page.
    let wanted = usize::try_from(limit).unwrap_or(0) + 1;
    let places = app.placement.read_view(&app.store, |view| {
        let mut places = Vec::new();
        for platform in platforms_from(after.as_ref().map(|after| after.platform)) {
            let order = after.as_ref().filter(|after| after.platform == platform).map(|after| after.order);
            places.extend(view.queue_after(platform, order, wanted - places.len()));
        }
        places
    });
    let mut pager = Pager::new("entries", limit);
    for place in places.await? {
        if pager.is_full() {
            return pager.finish(true);
        }
        let cursor = QueueCursor { platform: place.platform, order: place.order }.to_string();
        pager.push(&QueueEntry::from(place), cursor)?;
    }
    pager.finish(false)
}

/// The platforms by name, from one on.
fn platforms_from(first: Option<Platform>) -> Vec<Platform> {
    let mut platforms = Platform::ALL.to_vec();
    platforms.sort_by_key(|platform| platform.as_str());
    platforms.retain(|platform| first.is_none_or(|first| first.as_str() <= platform.as_str()));
    platforms
}

/// Where a deployment is.
///
/// - `active`: the slot has passed the gate
/// - `waiting`: it waits at the gate
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DeploymentState)]
pub enum DeploymentStateWord {
    Active,
    Waiting,
}

/// A slot that waits at the deploy gate, or that has passed it and is being started.
#[derive(Debug, Serialize, ToSchema)]
pub struct DeploymentEntry {
    pub slot: String,
    /// The bot for which the slot is started; `null` if the slot is prepared without a bot.
    #[schema(required)]
    pub bot_id: Option<Uuid>,
    #[schema(value_type = DeploymentStateWord)]
    pub state: &'static str,
    #[schema(value_type = String, format = DateTime)]
    pub asked_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub timeout_at: Timestamp,
    /// The last error of the provider, if the server retries the start.
    #[schema(required)]
    pub last_error: Option<String>,
}

/// An image that a host is pulling.
#[derive(Debug, Serialize, ToSchema)]
pub struct Pull {
    pub image: String,
    pub host: String,
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    pub layers: u64,
    pub layers_done: u64,
    /// The bytes of the layers whose size is already known.
    pub bytes: u64,
    pub bytes_done: u64,
}

impl From<PullRow> for Pull {
    fn from(PullRow { image, since, pulled }: PullRow) -> Self {
        let Pulled { layers, layers_done, bytes, bytes_done } = pulled;
        Self { image: image.name, host: image.host, since, layers, layers_done, bytes, bytes_done }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Deployments {
    /// How many slots have passed a gate and are being started.
    pub active: i64,
    /// How many slots wait at a gate.
    pub queued: i64,
    /// How many slots one gate lets pass at once.
    pub max_concurrent: i64,
    pub pulls: Vec<Pull>,
    /// One gate for each host of a configured pool, and for each other host with deployments.
    pub gates: Vec<Gate>,
    /// A page of the deployments, in the order of their arrival.
    pub entries: Vec<DeploymentEntry>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// The same without its entries, which are written one by one.
#[derive(Debug, Serialize)]
struct DeploymentsHead {
    active: i64,
    queued: i64,
    max_concurrent: i64,
    pulls: Vec<Pull>,
    gates: Vec<Gate>,
}

/// The deploy gate of one host.
#[derive(Debug, Serialize, ToSchema)]
pub struct Gate {
    /// The provider and its address.
    pub host: String,
    pub active: i64,
    pub queued: i64,
    pub max_concurrent: i64,
}

impl From<DeploymentRow> for DeploymentEntry {
    fn from(row: DeploymentRow) -> Self {
        Self {
            slot: row.slot.to_string(),
            bot_id: row.bot_id.map(|id| id.0),
            state: if row.active { "active" } else { "waiting" },
            asked_at: row.asked_at,
            timeout_at: row.timeout_at,
            last_error: row.last_error,
        }
    }
}

/// A list with fewer deployments than this is read in one statement.
const SHORT_LIST: i64 = 200;

/// List deployments
///
/// Returns one page of the slots at the deploy gates, the images that are being pulled, and the gate of each host.
#[utoipa::path(
    get, path = "/admin/deployments", operation_id = "admin_deployments", tag = "For operators", params(Paging),
    responses((status = 200, description = "A page of deployments, in the order of their arrival", body = Deployments)),
    security(("admin_token" = [])),
)]
pub async fn deployments(State(app): State<App>, _: Operator, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (mut after, limit) = (page.cursor::<i64>()?, page.limit()?);
    let max_concurrent = app.deployment.max_concurrent();
    let configured = app.store.pools().await?.into_iter().filter(|pool| pool.fill_order.is_some());
    let mut counts: BTreeMap<String, (i64, i64)> = configured.map(|pool| (pool.host, (0, 0))).collect();
    // A short list is read once, so that its numbers and its entries are of the same moment.
    let short = match after {
        None => {
            Some(app.store.deployments_after(None, SHORT_LIST).await?).filter(|rows| is_last(rows.len(), SHORT_LIST))
        }
        Some(_) => None,
    };
    match &short {
        Some(rows) => {
            for (_, row) in rows {
                let (active, queued) = counts.entry(row.host.clone()).or_default();
                *(if row.active { active } else { queued }) += 1;
            }
        }
        None => {
            let counted = app.store.deployments_by_host().await?;
            counts.extend(counted.into_iter().map(|(host, active, queued)| (host, (active, queued))));
        }
    }
    let gate = |(host, (active, queued))| Gate { host, active, queued, max_concurrent };
    let gates: Vec<Gate> = counts.into_iter().map(gate).collect();
    let head = DeploymentsHead {
        active: gates.iter().map(|gate| gate.active).sum(),
        queued: gates.iter().map(|gate| gate.queued).sum(),
        max_concurrent,
        pulls: app.store.pulls(app.clock.now()).await?.into_iter().map(Into::into).collect(),
        gates,
    };
    let mut pager = Pager::behind(&head, "entries", limit)?;
    for (arrival, row) in short.iter().flatten() {
        if pager.is_full() {
            return pager.finish(true);
        }
        pager.push(&DeploymentEntry::from(row.clone()), arrival.to_string())?;
    }
    if short.is_some() {
        return pager.finish(false);
    }
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.deployments_after(after, wanted).await?;
        let read = chunk.len();
        for (arrival, row) in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            after = Some(arrival);
            pager.push(&DeploymentEntry::from(row), arrival.to_string())?;
        }
        if is_last(read, wanted) {
            return pager.finish(false);
        }
    }
}
