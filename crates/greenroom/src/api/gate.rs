//! For operators: who waits for a slot, who is at the deploy gate, and what is being pulled.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::Problem;
use super::reading::{Paging, is_last};
use crate::explain::bot::estimated_wait_ms;
use crate::live::{self, state::GateCell};
use crate::providers::Pulled;
use crate::store::{PullRow, QueuePosition};

/// Each chunk goes through the whole queue, and its rows are small.
const LARGEST_CHUNK: i64 = 1_001;

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
    /// The estimated time until the bot gets a slot; `null` if the server cannot estimate it.
    #[schema(required)]
    pub estimated_wait_ms: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct Queue {
    pub entries: Vec<QueueEntry>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// Where a page ended.
struct QueueCursor(QueuePosition);

impl std::str::FromStr for QueueCursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.rsplitn(4, '.');
        let mut next = || parts.next().ok_or(());
        let mut number = || next()?.parse::<i64>().map_err(|_| ());
        let (arrival, turn, priority) = (number()?, number()?, number()?);
        Ok(Self(QueuePosition { platform: next()?.parse().map_err(|_| ())?, priority, turn, arrival }))
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
    let mut after = page.cursor::<QueueCursor>()?.map(|cursor| cursor.0);
    let mut pager = Pager::new("entries", page.limit()?).in_chunks_of(LARGEST_CHUNK);
    let pools = app.store.pools().await?;
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.queue_after(after.as_ref(), wanted).await?;
        let read = chunk.len();
        for (position, entry) in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            let entry = QueueEntry {
                bot_id: entry.bot_id.0,
                pool: entry.pool,
                position: entry.position,
                priority: entry.priority,
                queued_at: entry.queued_at,
                timeout_at: entry.timeout_at,
                estimated_wait_ms: estimated_wait_ms(entry.position, position.platform, &pools),
            };
            pager.push(
                &entry,
                format!("{}.{}.{}.{}", position.platform, position.priority, position.turn, position.arrival),
            )?;
            after = Some(position);
        }
        if is_last(read, wanted) {
            return pager.finish(false);
        }
    }
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
    pub active: usize,
    /// How many slots wait at a gate.
    pub queued: usize,
    /// How many slots one gate lets pass at once.
    pub max_concurrent: i64,
    pub entries: Vec<DeploymentEntry>,
    pub pulls: Vec<Pull>,
    /// One gate for each host of a configured pool, and for each other host with entries.
    pub gates: Vec<Gate>,
}

/// The deploy gate of one host.
#[derive(Debug, Serialize, ToSchema)]
pub struct Gate {
    /// The provider and its address.
    pub host: String,
    pub active: usize,
    pub queued: usize,
    pub max_concurrent: i64,
}

impl From<GateCell> for Gate {
    fn from(GateCell { host, active, queued, max_concurrent }: GateCell) -> Self {
        Self { host, active, queued, max_concurrent }
    }
}

/// List deployments
///
/// Returns the slots at the deploy gates, the images that are being pulled, and the gate of each host.
#[utoipa::path(
    get, path = "/admin/deployments", operation_id = "admin_deployments", tag = "For operators",
    responses((status = 200, description = "The deployments, in the order of their arrival", body = Deployments)),
    security(("admin_token" = [])),
)]
pub async fn deployments(State(app): State<App>, _: Operator) -> Result<Json<Deployments>, Problem> {
    let rows = app.store.deployments().await?;
    let configured = app.store.pools().await?.into_iter().filter(|pool| pool.fill_order.is_some());
    let gates = live::gates(configured.map(|pool| pool.host), &rows, app.deployment.max_concurrent());
    let entries: Vec<DeploymentEntry> = rows
        .into_iter()
        .map(|row| DeploymentEntry {
            slot: row.slot.to_string(),
            bot_id: row.bot_id.map(|id| id.0),
            state: if row.active { "active" } else { "waiting" },
            asked_at: row.asked_at,
            timeout_at: row.timeout_at,
            last_error: row.last_error,
        })
        .collect();
    let active = entries.iter().filter(|entry| entry.state == "active").count();
    Ok(Json(Deployments {
        active,
        queued: entries.len() - active,
        max_concurrent: app.deployment.max_concurrent(),
        entries,
        pulls: app.store.pulls(app.clock.now()).await?.into_iter().map(Into::into).collect(),
        gates: gates.into_iter().map(Into::into).collect(),
    }))
}
