//! Reads the entries of `GET /admin/live`, which are arrays. An entry of a newer server may have more elements: these
//! are ignored. An entry that cannot be read is left out, so that one of them does not hide the rest.

use serde_json::Value;
use uuid::Uuid;

use super::text::clean;

/// A slot by the index of its pool and its number.
pub type SlotKey = (usize, i64);

#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    Snapshot(Value),
    Change(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// An index into the statuses of slots.
    pub status: usize,
    pub since: i64,
    /// An agent waits in it.
    pub hot: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bot {
    /// An index into the statuses of bots.
    pub status: usize,
    pub since: i64,
    pub slot: Option<SlotKey>,
}

/// A bot in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub bot: Uuid,
    pub platform: String,
    pub priority: i64,
    pub turn: i64,
    pub arrival: i64,
    pub pool: String,
    pub queued_at: i64,
    pub timeout_at: i64,
    /// The position among the bots of its platform, from 1.
    pub position: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    pub host: String,
    pub active: i64,
    pub queued: i64,
    pub max_concurrent: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    pub name: String,
    pub last_run: Option<i64>,
    pub took_ms: Option<i64>,
    pub error: Option<String>,
    pub next_run: Option<i64>,
    pub leader: Option<String>,
}

/// The entries of a list, or nothing if the message does not have it.
pub fn entries<'a>(message: &'a Value, name: &str) -> &'a [Value] {
    message.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub fn texts(message: &Value, name: &str) -> Vec<String> {
    entries(message, name).iter().map(|text| clean(text.as_str().unwrap_or("unknown"))).collect()
}

fn number(entry: &Value, at: usize) -> Option<i64> {
    entry.get(at)?.as_i64()
}

fn index(entry: &Value, at: usize) -> Option<usize> {
    usize::try_from(entry.get(at)?.as_u64()?).ok()
}

fn text(entry: &Value, at: usize) -> Option<String> {
    entry.get(at)?.as_str().map(clean)
}

pub fn id(value: &Value) -> Option<Uuid> {
    value.as_str()?.parse().ok()
}

/// The name and the platform.
pub fn pool(entry: &Value) -> (String, String) {
    (text(entry, 0).unwrap_or_default(), text(entry, 1).unwrap_or_default())
}

/// `[number, status, since, hot]`, in a snapshot from `at` 0 and in a change from `at` 1.
pub fn slot(entry: &Value, at: usize) -> Option<(i64, Slot)> {
    let hot = entry.get(at + 3).is_some_and(|hot| hot.as_i64() == Some(1) || hot.as_bool() == Some(true));
    // A server that knows more statuses than it lists sends `null`.
    let status = index(entry, at + 1).unwrap_or(usize::MAX);
    Some((number(entry, at)?, Slot { status, since: number(entry, at + 2)?, hot }))
}

/// `[pool, number]`.
pub fn slot_key(entry: &Value, at: usize) -> Option<SlotKey> {
    Some((index(entry, at)?, number(entry, at + 1)?))
}

/// `[id, status, since]`, and with a slot `[id, status, since, pool, number]`.
pub fn bot(entry: &Value) -> Option<(Uuid, Bot)> {
    let status = index(entry, 1).unwrap_or(usize::MAX);
    Some((id(entry.get(0)?)?, Bot { status, since: number(entry, 2)?, slot: slot_key(entry, 3) }))
}

/// `[bot_id, platform, priority, turn, arrival, pool, queued_at, timeout_at]`.
pub fn waiting(entry: &Value) -> Option<Waiting> {
    Some(Waiting {
        bot: id(entry.get(0)?)?,
        platform: text(entry, 1)?,
        priority: number(entry, 2)?,
        turn: number(entry, 3)?,
        arrival: number(entry, 4)?,
        pool: text(entry, 5).unwrap_or_default(),
        queued_at: number(entry, 6)?,
        timeout_at: number(entry, 7)?,
        position: 0,
    })
}

/// `[host, active, queued, max_concurrent]`.
pub fn gate(entry: &Value) -> Option<Gate> {
    Some(Gate {
        host: text(entry, 0)?,
        active: number(entry, 1)?,
        queued: number(entry, 2)?,
        max_concurrent: number(entry, 3)?,
    })
}

/// `[name, last_run, took_ms, error, next_run, leader]`.
pub fn keeper(entry: &Value) -> Option<Keeper> {
    Some(Keeper {
        name: text(entry, 0)?,
        last_run: number(entry, 1),
        took_ms: number(entry, 2),
        error: text(entry, 3),
        next_run: number(entry, 4),
        leader: text(entry, 5),
    })
}
