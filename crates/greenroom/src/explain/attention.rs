//! Everything that needs a person now. Each read is bounded, so that an operator can ask every few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::pool::MOST_SLOTS;
use domain::{Deadlines, Status};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::first_line;
use super::moment::{after, distance, length};
use super::slot_deadline::recovery_at;
use crate::deployment::Deployment;
use crate::keepers::driver::Keepers;
use crate::store::{KeeperRow, PoolRow, ServerRow, SlotRow, Store, StoreError, WaitingForPerson};

/// So many items are shown, and so many rows of each kind are read.
pub const ITEMS: usize = 100;
const ROWS: i64 = 100;
/// How many bots of each platform's queue are compared with their estimate.
pub const QUEUED_BOTS: usize = 2_000;
/// How late a keeper may be. The stored time of its next run may be 30 s old.
const KEEPER_LATE_AFTER: Duration = Duration::from_secs(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Bots fail, or will soon.
    Critical,
    Warning,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    NeedsHelp,
    AwaitingAdmission,
    ProviderUnavailable,
    ProviderClosed,
    QueueTooLong,
    SlotError,
    KeeperLate,
    ReplicaMissing,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::NeedsHelp => "needs_help",
            Kind::AwaitingAdmission => "awaiting_admission",
            Kind::ProviderUnavailable => "provider_unavailable",
            Kind::ProviderClosed => "provider_closed",
            Kind::QueueTooLong => "queue_too_long",
            Kind::SlotError => "slot_error",
            Kind::KeeperLate => "keeper_late",
            Kind::ReplicaMissing => "replica_missing",
        }
    }
}

/// The call that an operator would make: complete, so that a page can offer it as one button.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    pub method: &'static str,
    pub path: String,
    pub body: Option<Value>,
    /// What the call does, in a few words.
    pub label: String,
}

impl Action {
    fn new(method: &'static str, path: String, label: impl Into<String>) -> Self {
        Self { method, path, body: None, label: label.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub severity: Severity,
    pub kind: Kind,
    /// The id of a bot, or the name of a slot, a pool, a keeper or a server.
    pub subject: String,
    pub since: Option<Timestamp>,
    /// When it is too late, or when the server acts by itself.
    pub deadline_at: Option<Timestamp>,
    pub message: String,
    pub action: Option<Action>,
}

/// What needs a person, the most urgent first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention {
    /// At most [`ITEMS`].
    pub items: Vec<Item>,
    /// How many more there are.
    pub more: i64,
}

/// A bot in the queue. The caller knows the first ones of each platform.
#[derive(Clone, Debug)]
pub struct WaitingBot {
    /// The first pool that could have a slot for it.
    pub pool: String,
    pub queued_at: Timestamp,
    pub timeout_at: Timestamp,
    pub estimated_wait_ms: i64,
}

/// Finds everything that needs a person. `queue` has the first [`QUEUED_BOTS`] bots of each platform.
pub async fn attention(
    store: &Store,
    deployment: &Deployment,
    keepers: &Keepers,
    deadlines: &Deadlines,
    queue: &[WaitingBot],
    now: Timestamp,
) -> Result<Attention, StoreError> {
    let (keeper_rows, leader) = keepers.shown().await?;
    let recovery_at = recovery_at(&keeper_rows);
    let mut items = Vec::new();
    let half_over = now.saturating_sub(deadlines.no_join / 2).unwrap_or(now);
    let (bots, all_bots) = store.bots_waiting_for_person(half_over, ROWS).await?;
    items.extend(bots.iter().map(|bot| waiting_for_person(bot, deadlines, now)));
    items.extend(deployment.failing_providers().into_iter().map(provider_unavailable));
    let closed = store.stopped_budgets().await?;
    items.extend(closed.into_iter().map(|(budget, left)| provider_closed(budget, after(now, left))));
    if !queue.is_empty() {
        items.extend(queues_too_long(queue, &store.pools().await?, now));
    }
    let (slots, all_slots) = store.slots_in_error(ROWS).await?;
    items.extend(slots.iter().map(|slot| slot_error(slot, deployment.max_recovery_attempts(), recovery_at)));
    items.extend(keeper_rows.iter().filter_map(|row| keeper_late(row, leader.as_deref(), now)));
    items.extend(store.silent_servers().await?.iter().map(|server| replica_missing(server, now)));
    Ok(most_urgent(items, not_read(all_bots, bots.len()) + not_read(all_slots, slots.len())))
}

/// How many rows of this number were not read.
fn not_read(all: i64, read: usize) -> i64 {
    all.saturating_sub(i64::try_from(read).unwrap_or(i64::MAX)).max(0)
}

fn most_urgent(mut items: Vec<Item>, not_read: i64) -> Attention {
    // An item without a deadline comes after those with one.
    items.sort_by_key(|item| {
        (item.severity, item.deadline_at.unwrap_or(Timestamp::MAX), item.kind, item.subject.clone())
    });
    let more = not_read + i64::try_from(items.len().saturating_sub(ITEMS)).unwrap_or(i64::MAX);
    items.truncate(ITEMS);
    Attention { items, more }
}

/// A bot that needs help, or that has waited in the lobby for at least half of its time.
fn waiting_for_person(row: &WaitingForPerson, deadlines: &Deadlines, now: Timestamp) -> Item {
    let (since, no_join) = (row.clocks.status_since, deadlines.no_join);
    let deadline = deadlines.of_bot(&row.clocks).map_or_else(|| after(since, no_join), |(_, deadline)| deadline);
    let left = if deadline > now { distance(deadline, now) } else { Duration::ZERO };
    let (severity, kind, message) = match row.clocks.status {
        Status::NeedsHelp => {
            let reason = row.reason.as_deref().map(|reason| format!(": {}", first_line(reason))).unwrap_or_default();
            (Severity::Critical, Kind::NeedsHelp, format!("The bot needs help{reason}"))
        }
        _ => {
            let severity = if left > no_join / 5 { Severity::Warning } else { Severity::Critical };
            let message = format!("The bot waits in the lobby for {}", length(distance(now, since)));
            (severity, Kind::AwaitingAdmission, message)
        }
    };
    Item {
        severity,
        kind,
        subject: row.bot.to_string(),
        since: Some(since),
        deadline_at: Some(deadline),
        message,
        action: Some(Action::new("DELETE", format!("/admin/bots/{}", row.bot), "Stop the bot")),
    }
}

fn provider_unavailable((pool, since, error): (String, Timestamp, String)) -> Item {
    Item {
        severity: Severity::Critical,
        kind: Kind::ProviderUnavailable,
        message: format!("The provider of the pool does not answer: {}", first_line(&error)),
        action: Some(Action::new("GET", format!("/admin/pools/{pool}"), "Show the pool")),
        subject: pool,
        since: Some(since),
        deadline_at: None,
    }
}

/// The provider has asked for a pause. The server sends it no requests until then.
fn provider_closed(budget: String, until: Timestamp) -> Item {
    Item {
        severity: Severity::Warning,
        kind: Kind::ProviderClosed,
        subject: budget,
        since: None,
        deadline_at: Some(until),
        message: "The provider refuses requests for a while. Starts and stops of slots wait".to_owned(),
        action: None,
    }
}

/// One item for each pool whose bots will probably wait too long.
fn queues_too_long(queue: &[WaitingBot], pools: &[PoolRow], now: Timestamp) -> Vec<Item> {
    let mut late: BTreeMap<&str, Vec<&WaitingBot>> = BTreeMap::new();
    for entry in queue {
        let wait = Duration::from_millis(u64::try_from(entry.estimated_wait_ms).unwrap_or(0));
        if after(now, wait) > entry.timeout_at {
            late.entry(&entry.pool).or_default().push(entry);
        }
    }
    let item = |(pool, entries): (&str, Vec<&WaitingBot>)| {
        let max_slots = pools.iter().find(|row| row.name == pool).map_or(0, |row| row.max_slots);
        let enough = (max_slots + i64::try_from(entries.len()).unwrap_or(0)).min(i64::from(MOST_SLOTS));
        let raise = Action::new("PATCH", format!("/admin/pools/{pool}"), format!("Raise `max_slots` to {enough}"));
        let wait = if entries.len() == 1 { "1 bot waits".to_owned() } else { format!("{} bots wait", entries.len()) };
        Item {
            severity: Severity::Warning,
            kind: Kind::QueueTooLong,
            subject: pool.to_owned(),
            since: entries.iter().map(|entry| entry.queued_at).min(),
            deadline_at: entries.iter().map(|entry| entry.timeout_at).min(),
            message: format!("{wait} in the queue for longer than allowed, by the estimate. Raise `max_slots`"),
            action: Some(Action { body: Some(json!({ "max_slots": enough })), ..raise }),
        }
    };
    late.into_iter().map(item).collect()
}

fn slot_error(slot: &SlotRow, max_attempts: i64, recovery_at: Option<Timestamp>) -> Item {
    let error = slot.error_message.as_deref().map_or("no error is stored", first_line);
    let attempts = slot.recovery_attempts;
    Item {
        severity: Severity::Warning,
        kind: Kind::SlotError,
        subject: slot.name.to_string(),
        since: Some(slot.status_since),
        deadline_at: recovery_at,
        message: format!("The slot is in error, after {attempts} of {max_attempts} attempts to recover it: {error}"),
        action: Some(Action::new("POST", format!("/admin/slots/{}/recover", slot.name), "Recover the slot")),
    }
}

fn keeper_late(row: &KeeperRow, leader: Option<&str>, now: Timestamp) -> Option<Item> {
    let due = row.next_run?;
    if after(due, KEEPER_LATE_AFTER) >= now {
        return None;
    }
    let leader =
        leader.map_or("no replica leads the keepers".to_owned(), |leader| format!("{leader} leads the keepers"));
    Some(Item {
        severity: Severity::Critical,
        kind: Kind::KeeperLate,
        subject: row.name.clone(),
        since: Some(due),
        deadline_at: None,
        message: format!("The keeper is late by {}; {leader}", length(distance(now, due))),
        action: Some(Action::new("POST", format!("/admin/{}/run", row.name), "Run the keeper")),
    })
}

fn replica_missing(server: &ServerRow, now: Timestamp) -> Item {
    let facts = &server.facts;
    Item {
        severity: Severity::Warning,
        kind: Kind::ReplicaMissing,
        subject: facts.url.clone(),
        since: now.checked_sub(server.seen).ok(),
        deadline_at: None,
        message: format!(
            "The server on {} (pid {}) has been silent for {} and did not stop properly",
            facts.host,
            facts.pid,
            length(server.seen)
        ),
        action: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use domain::BotId;
    use domain::deadline::{BotClocks, SessionClocks};
    use uuid::Uuid;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lobby(now: i64) -> Item {
        let clocks = BotClocks {
            status: Status::AwaitingAdmission,
            status_since: at(5),
            queue_until: None,
            deploy_until: None,
            awaited_since: Some(at(0)),
            session: Some(SessionClocks { started_at: at(0), joined_at: None, last_heartbeat_at: None }),
        };
        let row = WaitingForPerson { bot: BotId(Uuid::nil()), clocks, reason: None };
        waiting_for_person(&row, &Deadlines { no_join: Duration::from_secs(600), ..Deadlines::default() }, at(now))
    }

    #[test]
    fn a_bot_in_the_lobby_is_critical_in_the_last_part_of_its_time() {
        assert_eq!(lobby(300).severity, Severity::Warning);
        assert_eq!(lobby(480).severity, Severity::Critical);
        let late = lobby(999);
        assert_eq!((late.severity, late.since, late.deadline_at), (Severity::Critical, Some(at(5)), Some(at(600))));
    }

    #[test]
    fn a_keeper_is_late_only_after_a_while() {
        let row = KeeperRow { name: "sync".to_owned(), next_run: Some(at(100)), ..KeeperRow::default() };
        assert_eq!(keeper_late(&row, None, at(150)), None);
        let late = keeper_late(&row, None, at(151)).unwrap();
        assert_eq!(late.action.unwrap().path, "/admin/sync/run");
        assert!(late.message.contains("51 s; no replica leads"), "{}", late.message);
        assert_eq!(keeper_late(&KeeperRow::default(), None, at(151)), None, "it has never run");
    }

    #[test]
    fn the_most_urgent_items_come_first_and_there_are_at_most_a_hundred() {
        let item = |severity, deadline: Option<i64>, subject: usize| Item {
            severity,
            kind: Kind::SlotError,
            subject: format!("{subject:03}"),
            since: None,
            deadline_at: deadline.map(at),
            message: String::new(),
            action: None,
        };
        let mut items: Vec<Item> = (0..150).map(|number| item(Severity::Warning, None, number)).collect();
        items.push(item(Severity::Warning, Some(9), 900));
        items.push(item(Severity::Critical, None, 901));
        items.push(item(Severity::Critical, Some(50), 902));
        let Attention { items, more } = most_urgent(items, 7);
        let subjects: Vec<&str> = items.iter().take(5).map(|item| item.subject.as_str()).collect();
        assert_eq!((subjects, items.len()), (vec!["902", "901", "900", "000", "001"], ITEMS));
        assert_eq!(more, 53 + 7, "the rest, and what was not read");
    }
}
