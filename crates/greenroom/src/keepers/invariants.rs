//! This keeper checks that the invariants hold. It acts when:
//! - placement's copy in memory differs from the tables ([`CopyCheck`]): the copy takes the values of the tables. Every
//!   replica compares its own copy; the leader does it here;
//! - the count of slots in a pool's row is wrong: the slots are counted again;
//! - a bot is in no queue and in no slot, and does not run: it fails, so that its user knows;
//! - a bot is in the queue although it has a slot: it leaves the queue;
//! - a slot names a bot that is in another slot: the slot is cleared.
//!
//! All other violations are only reported, because a person must decide which bot, row or slot is wrong.
//! docs/keepers.md has the step for each kind. If a limit was lowered below the present number, that is no violation;
//! if the number then grows, it is. Each violation is counted in `greenroom_invariant_violations_total`, by its kind,
//! and logged.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::BotId;
use domain::SlotName;
use domain::lifecycle::Overdue;
use domain::planner::Snapshot;
use domain::planner::invariants::{Scope, Usages, Violation, overgrown, usages, usages_of, violations};
use uuid::Uuid;

use super::{Keeper, KeeperError, LastFullRun, RunReport};
use crate::context::Context;
use crate::lifecycle::ends::Ending;
use crate::placement::Placement;
use crate::placement::copy_check::{self, CopyCheck, CopyDifference, log_violation};
use crate::store::{Changed, StoreError};

/// With more slots than this, a run checks only a part, so that placement does not wait.
const MOST_AT_ONCE: usize = 50_000;
const PART: usize = 5_000;

#[derive(Debug)]
pub struct Invariants {
    context: Context,
    placement: Placement,
    copy_check: CopyCheck,
    most_at_once: usize,
    part: usize,
    progress: Mutex<Progress>,
    last_full_run: LastFullRun,
    /// The placement token at the last run.
    checked_token: Mutex<Option<Uuid>>,
}

#[derive(Debug, Default)]
struct Progress {
    /// How many slots, bots and users the next part skips.
    skipped: usize,
    /// The counts of users and pools at their last check.
    usages: Usages,
}

/// The result of one check of the copy.
struct CheckedPart {
    violations: Vec<Violation>,
    usages: Usages,
    is_last: bool,
}

impl Invariants {
    pub fn new(context: Context, placement: Placement) -> Self {
        copy_check::begin_counting();
        let copy_check = CopyCheck::new(context.store.clone(), placement.clone());
        let (most_at_once, part) = (MOST_AT_ONCE, PART);
        let (progress, last_full_run, checked_token) = Default::default();
        Self { context, placement, copy_check, most_at_once, part, progress, last_full_run, checked_token }
    }

    /// Checks in parts of this size when there are more slots.
    pub fn in_parts_of(self, part: usize) -> Self {
        Self { most_at_once: part, part, copy_check: self.copy_check.in_parts_of(part), ..self }
    }

    /// The comparison for the copy of this replica.
    pub fn copy_check(&self) -> CopyCheck {
        self.copy_check.clone()
    }

    async fn check_copy(&self, report: &mut RunReport) -> Result<(), StoreError> {
        let log_violation = self.copy_check.run().await?;
        report.add("violations", log_violation.log());
        for difference in log_violation.differences {
            if let CopyDifference::PoolCount(pool) = difference {
                let changed = Changed { pools: true, ..Changed::default() };
                let mut tx = self.context.store.begin_changing(&changed, self.context.clock.now()).await?;
                tx.recount_slots(&pool).await?;
                tx.commit().await?;
            }
        }
        Ok(())
    }

    async fn check_invariants(&self, report: &mut RunReport) -> Result<(), StoreError> {
        let skipped = self.progress().skipped;
        let (most_at_once, part) = (self.most_at_once, self.part);
        let checked =
            self.placement.read_snapshot(move |copy, _| check_part(copy, skipped, most_at_once, part)).await?;
        for violation in &checked.violations {
            record_violation(violation.kind(), &violation.to_string(), report);
            self.repair(violation, report).await?;
        }
        let mut progress = self.progress();
        for (of, usage) in overgrown(&progress.usages, &checked.usages) {
            record_violation(
                of.kind(),
                &format!("there are {} {of}, but the limit is {}", usage.count, usage.limit),
                report,
            );
        }
        progress.skipped = if checked.is_last { 0 } else { skipped + part };
        if checked.is_last && skipped == 0 {
            progress.usages = checked.usages;
        } else {
            progress.usages.extend(checked.usages);
        }
        Ok(())
    }

    fn checked_token(&self) -> std::sync::MutexGuard<'_, Option<Uuid>> {
        self.checked_token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn repair(&self, violation: &Violation, report: &mut RunReport) -> Result<(), StoreError> {
        match violation {
            Violation::BotLost { bot } => {
                let error = Some("the bot was in no queue and in no slot".to_owned());
                let ending = Ending::GivenUp { bot: *bot, overdue: Overdue::DeployFailed, error };
                if let Err(error) = self.placement.end(ending).await {
                    report.complaints.push(format!("the lost bot {bot} could not be ended: {error}"));
                }
            }
            Violation::QueuedWithSlot { bot, .. } => self.leave_queue(*bot).await?,
            Violation::BotInTwoSlots { bot, slots } => {
                let row = self.context.store.bot(*bot).await?;
                let own = row.and_then(|row| row.slot);
                for slot in slots.iter().filter(|slot| Some(*slot) != own.as_ref()) {
                    self.clear_slot(slot).await?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn leave_queue(&self, bot: BotId) -> Result<(), StoreError> {
        let mut tx = self.context.store.begin_changing(&Changed::bot(bot, None), self.context.clock.now()).await?;
        // The bot may have lost its slot in the meantime; then it belongs in the queue.
        if tx.hold_bot(bot).await?.is_some_and(|bot| bot.slot.is_some()) {
            tx.leave_queue(&[bot]).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn clear_slot(&self, slot: &SlotName) -> Result<(), StoreError> {
        let changed = Changed { slots: vec![slot.to_string()], ..Changed::default() };
        let mut tx = self.context.store.begin_changing(&changed, self.context.clock.now()).await?;
        tx.await_clearing(slot).await?;
        tx.commit().await
    }
}

/// Checks everything, or only a part if a full check would delay placement.
fn check_part(copy: &Snapshot, skipped: usize, most_at_once: usize, part: usize) -> CheckedPart {
    let size = copy.slots().len().max(copy.bots().count()).max(copy.users_known());
    if size <= most_at_once && skipped == 0 {
        return CheckedPart { violations: violations(copy), usages: usages(copy), is_last: true };
    }
    let scope = Scope::part(copy, skipped, part);
    let users: Vec<_> = copy.users().skip(skipped).take(part).map(|(id, _)| id).collect();
    let usages = usages_of(copy, users, scope.pools.iter().map(String::as_str));
    CheckedPart { violations: scope.violations(copy), usages, is_last: skipped + part >= size }
}

fn record_violation(kind: &'static str, violation: &str, report: &mut RunReport) {
    log_violation(kind, violation);
    report.add("violations", 1);
}

#[async_trait]
impl Keeper for Invariants {
    fn name(&self) -> &'static str {
        "invariants"
    }

    fn every(&self) -> Duration {
        copy_check::INTERVAL
    }

    /// Nothing can differ since the last run if nothing was written.
    async fn skipped_run(&self) -> Option<RunReport> {
        if !self.context.store.is_only_replica() || !self.last_full_run.is_recent() {
            return None;
        }
        let token = self.placement.workload()?.token;
        (*self.checked_token() == Some(token)).then(RunReport::default)
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        self.last_full_run.note();
        let token = self.placement.read_snapshot(|_, token| token).await?;
        *self.checked_token() = Some(token);
        let mut report = RunReport::default();
        self.check_invariants(&mut report).await?;
        self.check_copy(&mut report).await?;
        Ok(report)
    }
}
