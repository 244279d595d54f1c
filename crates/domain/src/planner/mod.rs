//! Who gets which slot: one pure function over a [`Snapshot`] of all that it decides on. No clock, no randomness, no I/O: the
//! server, the property tests and the model test all run [`plan`].
//!
//! In reading order:
//! - [`job`]: what is asked, and the answers
//! - [`snapshot`], [`bot`], [`queue`]: what is decided on
//! - [`draft`]: the snapshot with what was decided so far
//! - [`commands`]: what each job does, one file each; [`idempotency`], [`bot_limit`]: whether a bot is admitted
//! - [`assign`]: who of those that wait gets what is free
//! - [`changes`]: what is to be written, and what is to be done after that
//! - [`invariants`]: what must hold in every snapshot
//! - [`ids`]: ids that follow from a seed
//! - [`bugs`]: what a test may plant; `model`: the planner against a reference; `tests`: each command by itself

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
pub mod snapshot;
#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::Timestamp;

use crate::{Slot, slot};
pub use changes::{Action, Changes};
use draft::Draft;
pub use ids::Ids;
pub use job::{Job, JobAnswer};
use job::{Reserved, WarmReport};
pub use queue::QueueOrder;
pub use snapshot::Snapshot;

/// No plan gives out or makes more slots of one platform than this: the next one goes on.
pub const MOST_AT_ONCE: usize = 500;

/// What the configuration says about placement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In which order bots of one priority are served.
    pub queue_order: QueueOrder,
    /// How long a bot may wait at the deploy gate.
    pub deploy_timeout: Duration,
}

/// What a job has come to while the plan is made.
pub(crate) enum Outcome {
    Done(JobAnswer),
    /// A bot was admitted: what it gets is known at the end.
    Admitted(crate::BotId),
    /// The same was asked for before.
    Known(crate::BotId),
    KeepsWarm,
}

/// Decides on jobs, one after the other, each seeing what those before it came to; then serves the queues that they touched.
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

/// What each job is answered, and what follows from the bots and slots that changed.
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
    for id in draft.changes.new_bots.iter().map(|new| new.id).collect::<Vec<_>>() {
        if let Some(user) = draft.bot(id).filter(|bot| bot.slot.is_none()).map(|bot| bot.user) {
            draft.record_created(id, user, None);
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
        // One that was not at the provider before could not be described there.
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
    let estimated_wait_ms = waiting.zip(queue_position).and_then(|(bot, position)| {
        let pools = draft.base.pools_of(bot.platform).iter().filter_map(|name| draft.pool(name));
        let pools = pools.filter(|pool| pool.could_fit(bot.requirements.as_ref()));
        slot::estimated_wait_ms(position, pools.map(|pool| (pool.mean_hold_ms, pool.slots)))
    });
    Reserved { bot: id, is_new, queue_position, estimated_wait_ms }
}
