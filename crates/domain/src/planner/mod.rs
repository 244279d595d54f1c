//! Decides which bot gets which slot. The planner is one pure function over a [`Snapshot`] of all its input, without a
//! clock, randomness or I/O. The server, the property tests and the model test all run [`plan`].
//!
//! In reading order:
//! - [`job`]: the jobs and their answers
//! - [`snapshot`], [`bot`], [`queue`]: the input of a plan; [`ranked_set`]: positions without counting
//! - [`draft`]: the snapshot with the decisions so far
//! - [`commands`]: what each job does, one file each; [`idempotency`], [`bot_limit`]: whether a bot is admitted
//! - [`assign`]: which waiting bot gets which free slot
//! - [`changes`]: the rows to write, and the actions to take after the commit
//! - [`invariants`]: rules that hold in every snapshot
//! - [`ids`]: ids that follow from a seed
//! - [`bugs`]: bugs that a test may plant; `model`: the planner against a reference; `tests`: each command alone

mod assign;
pub mod bot;
mod bot_limit;
#[allow(missing_docs, reason = "the name of a planted bug says what is done wrong")]
mod bugs;
pub mod changes;
mod commands;
mod draft;
mod idempotency;
pub mod ids;
pub mod invariants;
pub mod job;
#[cfg(any(test, feature = "model"))]
#[allow(missing_docs, reason = "it is for tests only")]
pub mod model;
pub mod queue;
pub mod ranked_set;
pub mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use crate::{Slot, wait_estimate};
pub use changes::{Action, Changes};
use draft::Draft;
pub use ids::Ids;
pub use job::{Job, JobAnswer};
use job::{Reserved, WarmReport};
pub use queue::QueueOrder;
pub use snapshot::Snapshot;

/// The most slots of one platform that one plan gives out or makes. The next plan continues.
pub const MOST_AT_ONCE: usize = 500;

/// The configuration of placement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The order in which bots of one priority are served.
    pub queue_order: QueueOrder,
    /// How long a bot may wait at the deploy gate.
    pub deploy_timeout: Duration,
    /// How long a bot is expected to hold a slot of a pool in which none has yet.
    pub expected_duration: Duration,
}

/// The result of a job while the plan is in progress.
pub(crate) enum Outcome {
    Done(JobAnswer),
    /// A bot was admitted. Its slot is known only at the end of the plan.
    Admitted(crate::BotId),
    /// An earlier request made the same bot.
    Known(crate::BotId),
    KeepsWarm,
}

/// Decides jobs one after another. Each job sees the results of those before it. Then serves the queues that the jobs
/// touched.
pub fn plan(snapshot: &Snapshot, jobs: &[Job], now: Timestamp, ids: Ids, settings: &Settings) -> Changes {
    let mut draft = Draft::new(snapshot, settings, now, ids);
    let mut retried = Vec::new();
    let mut keeps_warm = false;
    let mut outcomes = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        outcomes.push(match job {
            Job::Reserve(request) => commands::reserve::apply(&mut draft, number, request),
            Job::End(end) => Outcome::Done(JobAnswer::End(commands::end::apply(&mut draft, end))),
            Job::Slot(name, event) => Outcome::Done(JobAnswer::Slot(commands::slot_event(&mut draft, name, event))),
            Job::KeepWarm => {
                keeps_warm = true;
                draft.touched.extend(snapshot.platforms());
                Outcome::KeepsWarm
            }
            Job::RetryWaiting(attributes) => {
                retried.push(attributes.clone());
                draft.touched.extend(snapshot.platforms());
                Outcome::Done(JobAnswer::Nothing)
            }
            Job::ServeQueues => {
                draft.touched.extend(snapshot.platforms());
                Outcome::Done(JobAnswer::Nothing)
            }
        });
    }
    for platform in std::mem::take(&mut draft.touched) {
        assign::serve_queue(&mut draft, platform, &retried);
    }
    draft.return_unused();
    let mut report = WarmReport::default();
    if keeps_warm {
        for state in snapshot.pools() {
            commands::keep_warm::apply(&mut draft, &state.pool.name, &mut report);
        }
    }
    finish(draft, outcomes, report)
}

/// The answers to the jobs, and the changes that follow from the changed bots and slots.
fn finish(mut draft: Draft<'_>, outcomes: Vec<Outcome>, report: WarmReport) -> Changes {
    let answers = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Done(answer) => answer,
        Outcome::Admitted(bot) => JobAnswer::Reserve(Ok(reserved(&draft, bot, true))),
        Outcome::Known(bot) => JobAnswer::Reserve(Ok(reserved(&draft, bot, false))),
        Outcome::KeepsWarm => JobAnswer::KeepWarm(report),
    });
    let answers = answers.collect();
    let mut changed: Vec<_> = draft.changes.bots.iter().map(|(id, bot)| (*id, bot.as_ref())).collect();
    changed.sort_by_key(|(id, bot)| (bot.map(bot::OpenBot::order), *id));
    let (mut queued, mut left_queue) = (Vec::new(), Vec::new());
    for (id, bot) in changed {
        let before = draft.base.bot(id).and_then(|bot| bot.queued.as_ref());
        match (before, bot.and_then(|bot| bot.queued.as_ref())) {
            (None, Some(_)) => queued.push(id),
            (Some(_), None) => left_queue.push(id),
            _ => {}
        }
    }
    if !queued.is_empty() {
        draft.act(Action::WatchQueue);
    }
    for (id, actor) in draft.changes.new_bots.iter().map(|new| (new.id, new.actor)).collect::<Vec<_>>() {
        if let Some(user) = draft.bot(id).filter(|bot| bot.slot.is_none()).map(|bot| bot.user) {
            draft.record_created(id, user, None, actor);
        }
    }
    let mut changes = draft.changes;
    (changes.answers, changes.queued, changes.left_queue) = (answers, queued, left_queue);
    changes.pools.retain(|name, pool| draft.base.pool(name).is_none_or(|state| state.pool != *pool));
    changes.slots.retain(|name, change| draft.base.slot(name) != change.slot.as_ref());
    for (name, change) in &mut changes.slots {
        let slots = draft.base.slot(name).zip(change.slot.as_ref());
        change.only_use_changed =
            !change.is_new && slots.is_some_and(|(before, after)| before.differs_only_in_use(after));
    }
    for slot in changes.slots.values().filter_map(|change| change.slot.as_ref()) {
        // A slot that was not at the provider before could not be described there.
        let is_described = |before: &Slot| {
            before.description == slot.description && (before.provider_ref.is_some() || slot.provider_ref.is_none())
        };
        if !draft.base.slot(&slot.name).is_some_and(is_described) {
            let (pool, description) = (slot.pool.clone(), slot.description.clone());
            changes.actions.push(Action::Describe { pool, slot: slot.name.clone(), description });
        }
    }
    changes
}

fn reserved(draft: &Draft<'_>, id: crate::BotId, is_new: bool) -> Reserved {
    let waiting = draft.bot(id).filter(|bot| bot.queued.is_some());
    let queue_position = waiting.map(|bot| draft.position(bot));
    let estimated_wait_ms = waiting.zip(queue_position).map(|(bot, position)| {
        let pools = draft.base.pools_of(bot.platform).iter().filter_map(|name| draft.pool(name));
        let expected = draft.settings.expected_duration;
        wait_estimate::estimated_wait_ms(position, bot.only_pool(), bot.requirements.as_ref(), pools, expected)
    });
    Reserved { bot: id, is_new, queue_position, estimated_wait_ms }
}
