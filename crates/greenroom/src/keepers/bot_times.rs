//! The metrics of bots, from their committed events: waits, starts, time in each status, ends. The keeper `stats` reads
//! every event once, on the leader, so each event counts once for all replicas, and no bot waits for it.
//!
//! The time in a status needs the event before. This module remembers it for every open bot. What it does not know,
//! such as after a change of the leader, it reads from the events.
//!
//! The traces of bots come from the same events: a trace is complete whichever replicas worked on the bot, and whichever
//! of them died.

use std::collections::HashMap;

use domain::event::{Kind, StartKind};
use domain::{BotId, EventId, ShownStatus};
use jiff::Timestamp;

use super::stats::{requested_at, wait_ms};
use crate::store::{CountedEvent, Store, StoreError};
use crate::traces::{self, Span};

/// With more bots than this, everything is forgotten and read again.
const MOST_BOTS: usize = 200_000;
/// Reasons as a label. A bot can give any other word, which would make new series.
const REASONS: [&str; 12] = [
    "finished",
    "stopped",
    "queue_timeout",
    "deploy_timeout",
    "deploy_failed",
    "no_start",
    "no_join",
    "heartbeat_lost",
    "crashed",
    "interrupted",
    "killed",
    "never_joined",
];

/// The last change of an open bot.
#[derive(Clone, Debug)]
struct Last {
    status: ShownStatus,
    since: Timestamp,
    /// The pool of its slot.
    pool: Option<String>,
    start: Option<StartKind>,
}

#[derive(Debug, Default)]
pub struct BotTimes {
    bots: HashMap<BotId, Last>,
    /// The last event that is included.
    position: Option<EventId>,
}

impl BotTimes {
    /// Counts the events after one and up to another.
    pub async fn count(
        &mut self,
        store: &Store,
        (after, up_to): (EventId, EventId),
        events: &[CountedEvent],
    ) -> Result<(), StoreError> {
        // Another leader has counted in the meantime, or there are too many to remember.
        if self.position != Some(after) || self.bots.len() > MOST_BOTS {
            self.bots.clear();
        }
        // A failure leaves bots out, and must not count an event twice.
        self.position = Some(up_to);
        let created = |bot| events.iter().any(|event| event.bot == bot && event.kind == Kind::Created);
        let mut unknown: Vec<BotId> = events.iter().map(|event| event.bot).collect();
        unknown.sort_unstable_by_key(|bot| bot.0);
        unknown.dedup();
        unknown.retain(|bot| !self.bots.contains_key(bot) && !created(*bot));
        if !unknown.is_empty() {
            for earlier in store.status_events_up_to(&unknown, after).await? {
                self.apply(&earlier);
            }
        }
        for event in events {
            record(event, self.bots.get(&event.bot));
            if traces::is_on() {
                trace(event, self.bots.get(&event.bot));
            }
            self.apply(event);
        }
        Ok(())
    }

    fn apply(&mut self, event: &CountedEvent) {
        let Some(status) = event.to else { return };
        if status.is_ended() {
            self.bots.remove(&event.bot);
            return;
        }
        let gets_slot = event.slot().is_some();
        let before = self.bots.remove(&event.bot);
        let (pool, start) = match before {
            Some(before) if !gets_slot => (before.pool, before.start),
            _ => (event.pool(), event.start_kind),
        };
        // A status that is reported again has lasted since its first report.
        self.bots.insert(event.bot, Last { status, since: event.at, pool, start });
    }
}

#[allow(clippy::cast_precision_loss)]
fn record(event: &CountedEvent, before: Option<&Last>) {
    let Some(to) = event.to else { return };
    if event.kind == Kind::Created {
        metrics::counter!("greenroom_bot_requests_total").increment(1);
    }
    // A bot that lost its slot and gets another one has waited before. An operator's process is not a slot.
    if event.slot().is_some() && !event.had_slot {
        let pool = event.pool().unwrap_or_default();
        metrics::histogram!("greenroom_bot_queue_wait_duration_seconds", "pool" => pool)
            .record(wait_ms(event.bot, event.at) as f64 / 1_000.0);
    }
    if let Some(before) = before {
        let lasted = event.at.duration_since(before.since).as_secs_f64().max(0.0);
        metrics::histogram!("greenroom_bot_status_duration_seconds", "status" => before.status.as_str()).record(lasted);
        if let (ShownStatus::Deploying, Some(start)) = (before.status, before.start) {
            record_start(before.pool.clone().unwrap_or_default(), start, to, lasted);
        }
    }
    if to.is_ended() {
        let pool = event.pool().or_else(|| before.and_then(|before| before.pool.clone())).unwrap_or_default();
        metrics::counter!(
            "greenroom_bot_ends_total",
            "pool" => pool,
            "status" => to.as_str(),
            "reason" => reason_label(event.reason.as_deref()),
            "fault" => event.fault.map_or("none", domain::Fault::as_str)
        )
        .increment(1);
    }
}

/// Adds the status that the bot has left to its trace, and at its end the bot itself.
fn trace(event: &CountedEvent, before: Option<&Last>) {
    let Some(to) = event.to else { return };
    let requested = requested_at(event.bot).unwrap_or(event.at).min(event.at);
    let error = (to == ShownStatus::Failed).then(|| reason_label(event.reason.as_deref()));
    let pool = || event.pool().or_else(|| before.and_then(|before| before.pool.clone())).unwrap_or_default();
    if event.kind == Kind::Created {
        traces::record(Span::step(event.bot, "placement", requested, event.at).with("greenroom.status", to.as_str()));
    }
    if let Some(before) = before {
        let span = Span::step(event.bot, before.status.as_str(), before.since, event.at);
        let span = span.with("greenroom.pool", pool()).with("greenroom.next_status", to.as_str()).failed(error);
        let start = before.start.filter(|_| before.status == ShownStatus::Deploying);
        traces::record(match start {
            Some(start) => span.with("greenroom.start", start.as_str()),
            None => span,
        });
    }
    if to.is_ended() {
        let span = Span::of_bot(event.bot, requested, event.at)
            .with("greenroom.bot.id", event.bot.to_string())
            .with("greenroom.pool", pool())
            .with("greenroom.status", to.as_str())
            .with("greenroom.reason", reason_label(event.reason.as_deref()))
            .with("greenroom.fault", event.fault.map_or("none", domain::Fault::as_str));
        traces::record(span.failed(error));
    }
}

fn record_start(pool: String, start: StartKind, to: ShownStatus, lasted: f64) {
    let result = match to {
        ShownStatus::Queued => "returned",
        ShownStatus::Failed => "failed",
        ShownStatus::Stopping | ShownStatus::Completed => "stopped",
        _ => "started",
    };
    let (start, of_pool) = (start.as_str(), pool.clone());
    metrics::counter!("greenroom_bot_starts_total", "pool" => of_pool, "start" => start, "result" => result)
        .increment(1);
    if result == "started" {
        metrics::histogram!("greenroom_bot_start_duration_seconds", "pool" => pool, "start" => start).record(lasted);
    }
}

/// So that the first failure of a kind in a pool counts as an increase.
pub fn begin_counting(pool: &str) {
    let faults = [
        ("deploy_failed", "provider"),
        ("no_start", "provider"),
        ("heartbeat_lost", "provider"),
        ("interrupted", "provider"),
        ("queue_timeout", "capacity"),
        ("deploy_timeout", "capacity"),
        ("crashed", "bot"),
    ];
    for (reason, fault) in faults {
        let pool = pool.to_owned();
        metrics::counter!(
            "greenroom_bot_ends_total",
            "pool" => pool, "status" => "failed", "reason" => reason, "fault" => fault
        )
        .increment(0);
    }
}

fn reason_label(reason: Option<&str>) -> &'static str {
    let Some(reason) = reason else { return "none" };
    REASONS.into_iter().find(|known| *known == reason).unwrap_or("other")
}
