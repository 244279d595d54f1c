//! What a bot did so far, and how long each step took, beside the median of its pool.

use std::collections::HashMap;

use domain::ShownStatus;
use domain::event::{Actor, Kind};
use jiff::Timestamp;

use super::Explainer;
use crate::store::{BotRow, EventRow, StatusTime, StoreError};

/// How many of a bot's last events are shown.
const EVENTS: i64 = 200;

/// A part of the life of a bot or a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When it began.
    pub at: Timestamp,
    /// How long it took. `None` for what takes no time, and for what is not over.
    pub took_ms: Option<i64>,
    /// The median of the same step of other bots of the pool. `None` if no other bot took this step.
    pub median_ms: Option<i64>,
    pub what: String,
    /// `None` for a step of a slot.
    pub actor: Option<Actor>,
    /// The status that the step brought a bot to.
    pub status: Option<ShownStatus>,
}

/// The median time that bots spend in each status.
#[derive(Debug, Default)]
struct Medians(HashMap<ShownStatus, i64>);

impl Medians {
    /// From the times of bots, sorted by bot and time. The last status of a bot takes no time.
    fn of(times: &[StatusTime]) -> Self {
        let mut all: HashMap<ShownStatus, Vec<i64>> = HashMap::new();
        for pair in times.windows(2) {
            if let [one, next] = pair
                && one.bot == next.bot
            {
                all.entry(one.status).or_default().push(milliseconds(one.at, next.at));
            }
        }
        let median = |mut took: Vec<i64>| {
            took.sort_unstable();
            took.get(took.len() / 2).copied()
        };
        Self(all.into_iter().filter_map(|(status, took)| Some((status, median(took)?))).collect())
    }
}

impl Explainer {
    /// The last steps of a bot, oldest first.
    pub(super) async fn steps(&self, bot: &BotRow) -> Result<Vec<Step>, StoreError> {
        let events = self.store.last_events_of_bot(bot.id, EVENTS).await?;
        let medians = match &bot.pool {
            Some(pool) => Medians::of(&self.store.status_times_of_pool(pool, bot.id).await?),
            None => Medians::default(),
        };
        let steps = events.iter().enumerate().map(|(number, event)| {
            let next = events[number + 1..].iter().find(|later| later.to.is_some());
            self.step(event, next, &medians)
        });
        Ok(steps.collect())
    }

    fn step(&self, event: &EventRow, next: Option<&EventRow>, medians: &Medians) -> Step {
        let reason = event.reason.as_deref().map(|reason| self.quote(reason));
        let name = match event.to {
            Some(status) => status_words(status),
            None => kind_words(event.kind),
        };
        let what = reason.map_or(name.to_owned(), |reason| format!("{name} ({reason})"));
        Step {
            at: event.at,
            took_ms: event.to.and(next).map(|next| milliseconds(event.at, next.at)),
            median_ms: event.to.and_then(|status| medians.0.get(&status).copied()),
            what,
            actor: Some(event.actor),
            status: event.to,
        }
    }
}

fn milliseconds(from: Timestamp, to: Timestamp) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX).max(0)
}

fn status_words(status: ShownStatus) -> &'static str {
    match status {
        ShownStatus::Scheduled => "scheduled",
        ShownStatus::Reserved => "reserved",
        ShownStatus::Queued => "waiting for a slot",
        ShownStatus::Deploying => "starting its slot",
        ShownStatus::Starting => "joining the meeting",
        ShownStatus::AwaitingAdmission => "waiting for admission to the meeting",
        ShownStatus::NeedsHelp => "waiting for the help of a person",
        ShownStatus::Active => "in the meeting",
        ShownStatus::Stopping => "leaving the meeting",
        ShownStatus::Completed => "completed",
        ShownStatus::Failed => "failed",
    }
}

fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Created => "requested",
        Kind::Assigned => "got a slot",
        Kind::Requeued => "went back to the queue",
        Kind::StatusChanged => "changed its status",
        Kind::CommandSent => "was sent a command",
        Kind::CommandAcknowledged => "acknowledged a command",
        Kind::Warning => "warning",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use domain::BotId;
    use uuid::Uuid;

    #[test]
    fn a_median_is_over_bots_and_leaves_out_their_last_status() {
        let time = |bot: u128, second: i64, status| StatusTime {
            bot: BotId(Uuid::from_u128(bot)),
            at: Timestamp::from_second(second).unwrap(),
            status,
        };
        let (queued, active, failed) = (ShownStatus::Queued, ShownStatus::Active, ShownStatus::Failed);
        let times = [
            time(1, 0, queued),
            time(1, 1, active),
            time(1, 90, failed),
            time(2, 0, queued),
            time(2, 5, active),
            time(2, 10, failed),
            time(3, 100, queued),
            time(3, 103, failed),
        ];
        let Medians(medians) = Medians::of(&times);
        assert_eq!(medians, HashMap::from([(queued, 3_000), (active, 89_000)]));
    }
}
