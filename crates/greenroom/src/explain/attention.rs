//! Everything that needs a person now. Each read is bounded, so that an operator can ask every few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{Deadlines, Status};
use jiff::Timestamp;

use super::bot::estimated_wait_ms;
use super::first_line;
use super::moment::{after, distance, length};
use crate::deployment::Deployment;
use crate::keepers::driver::Keepers;
use crate::store::{KeeperRow, PoolRow, QueueRow, ServerRow, SlotRow, Store, StoreError, WaitingForPerson};

/// So many items are shown, and so many rows of each kind are read.
pub const ITEMS: usize = 100;
const ROWS: i64 = 100;
/// How many bots of each platform's queue are compared with their estimate.
const QUEUED_BOTS: i64 = 2_000;
/// How late a keeper may be. The stored time of its next run may be 10 s old.
const KEEPER_LATE_AFTER: Duration = Duration::from_secs(30);

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

/// The call that an operator would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    pub method: &'static str,
    pub path: String,
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

/// Finds everything that needs a person, the most urgent first.
pub async fn attention(
    store: &Store,
    deployment: &Deployment,
    keepers: &Keepers,
    deadlines: &Deadlines,
    now: Timestamp,
) -> Result<Vec<Item>, StoreError> {
    let (keeper_rows, leader) = keepers.shown().await?;
    let recovery_at = keeper_rows.iter().find(|row| row.name == "recovery").and_then(|row| row.next_run);
    let mut items = Vec::new();
    let bots = store.bots_waiting_for_person(ROWS).await?;
    items.extend(bots.iter().filter_map(|bot| waiting_for_person(bot, deadlines.no_join, now)));
    items.extend(deployment.failing_providers().into_iter().map(provider_unavailable));
    let closed = store.stopped_budgets().await?;
    items.extend(closed.into_iter().map(|(budget, left)| provider_closed(budget, after(now, left))));
    let queue = store.first_in_queues(QUEUED_BOTS).await?;
    if !queue.is_empty() {
        items.extend(queues_too_long(&queue, &store.pools().await?, now));
    }
    let slots = store.slots_in_error(ROWS).await?;
    items.extend(slots.iter().map(|slot| slot_error(slot, deployment.max_recovery_attempts(), recovery_at)));
    items.extend(keeper_rows.iter().filter_map(|row| keeper_late(row, leader.as_deref(), now)));
    items.extend(store.silent_servers().await?.iter().map(|server| replica_missing(server, now)));
    Ok(most_urgent(items))
}

fn most_urgent(mut items: Vec<Item>) -> Vec<Item> {
    // An item without a deadline comes after those with one.
    items.sort_by_key(|item| {
        (item.severity, item.deadline_at.unwrap_or(Timestamp::MAX), item.kind, item.subject.clone())
    });
    items.truncate(ITEMS);
    items
}

/// A bot that needs help, or that has waited in the lobby for at least half of its time.
fn waiting_for_person(row: &WaitingForPerson, no_join: Duration, now: Timestamp) -> Option<Item> {
    let deadline = after(row.joins_since.unwrap_or(row.since), no_join);
    let left = if deadline > now { distance(deadline, now) } else { Duration::ZERO };
    let (severity, kind, message) = match row.status {
        Status::NeedsHelp => {
            let reason = row.reason.as_deref().map(|reason| format!(": {}", first_line(reason))).unwrap_or_default();
            (Severity::Critical, Kind::NeedsHelp, format!("The bot needs help{reason}"))
        }
        _ if left > no_join / 2 => return None,
        _ => {
            let severity = if left > no_join / 5 { Severity::Warning } else { Severity::Critical };
            let message = format!("The bot waits in the lobby for {}", length(distance(now, row.since)));
            (severity, Kind::AwaitingAdmission, message)
        }
    };
    Some(Item {
        severity,
        kind,
        subject: row.bot.to_string(),
        since: Some(row.since),
        deadline_at: Some(deadline),
        message,
        action: Some(Action { method: "GET", path: format!("/admin/bots/{}/explain", row.bot) }),
    })
}

fn provider_unavailable((pool, since, error): (String, Timestamp, String)) -> Item {
    Item {
        severity: Severity::Critical,
        kind: Kind::ProviderUnavailable,
        message: format!("The provider of the pool does not answer: {}", first_line(&error)),
        action: Some(Action { method: "GET", path: format!("/admin/pools/{pool}") }),
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
fn queues_too_long(queue: &[QueueRow], pools: &[PoolRow], now: Timestamp) -> Vec<Item> {
    let mut late: BTreeMap<&str, Vec<&QueueRow>> = BTreeMap::new();
    for entry in queue {
        let Some(platform) = pools.iter().find(|pool| pool.name == entry.pool).map(|pool| pool.platform) else {
            continue;
        };
        let serving = pools.iter().filter(|pool| pool.platform == platform);
        let wait = estimated_wait_ms(entry.position, serving).and_then(|wait| u64::try_from(wait).ok());
        if wait.is_some_and(|wait| after(now, Duration::from_millis(wait)) > entry.timeout_at) {
            late.entry(&entry.pool).or_default().push(entry);
        }
    }
    let item = |(pool, entries): (&str, Vec<&QueueRow>)| {
        let wait = if entries.len() == 1 { "1 bot waits".to_owned() } else { format!("{} bots wait", entries.len()) };
        Item {
            severity: Severity::Warning,
            kind: Kind::QueueTooLong,
            subject: pool.to_owned(),
            since: entries.iter().map(|entry| entry.queued_at).min(),
            deadline_at: entries.iter().map(|entry| entry.timeout_at).min(),
            message: format!("{wait} in the queue for longer than allowed, by the estimate. Raise `max_slots`"),
            action: Some(Action { method: "PATCH", path: format!("/admin/pools/{pool}") }),
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
        action: Some(Action { method: "POST", path: format!("/admin/slots/{}/recover", slot.name) }),
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
        action: Some(Action { method: "POST", path: format!("/admin/{}/run", row.name) }),
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
    use uuid::Uuid;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lobby(since: i64, now: i64) -> Option<Severity> {
        let row = WaitingForPerson {
            bot: BotId(Uuid::nil()),
            status: Status::AwaitingAdmission,
            since: at(since),
            joins_since: Some(at(since)),
            reason: None,
        };
        waiting_for_person(&row, Duration::from_secs(600), at(now)).map(|item| item.severity)
    }

    #[test]
    fn a_bot_in_the_lobby_needs_a_person_from_the_half_of_its_time_on() {
        assert_eq!(lobby(0, 299), None);
        assert_eq!(lobby(0, 300), Some(Severity::Warning));
        assert_eq!(lobby(0, 480), Some(Severity::Critical));
        assert_eq!(lobby(0, 999), Some(Severity::Critical));
    }

    #[test]
    fn a_keeper_is_late_only_after_a_while() {
        let row = KeeperRow { name: "sync".to_owned(), next_run: Some(at(100)), ..KeeperRow::default() };
        assert_eq!(keeper_late(&row, None, at(130)), None);
        let late = keeper_late(&row, None, at(131)).unwrap();
        assert_eq!(late.action.unwrap().path, "/admin/sync/run");
        assert!(late.message.contains("31 s; no replica leads"), "{}", late.message);
        assert_eq!(keeper_late(&KeeperRow::default(), None, at(131)), None, "it has never run");
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
        let sorted = most_urgent(items);
        let subjects: Vec<&str> = sorted.iter().take(5).map(|item| item.subject.as_str()).collect();
        assert_eq!((subjects, sorted.len()), (vec!["902", "901", "900", "000", "001"], ITEMS));
    }
}
