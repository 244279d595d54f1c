//! The proof that what must hold does hold. It acts when
//! - placement's copy in memory differs from the slots in the store, of which it compares a thousand at a time, although both
//!   are of the same moment: everything is read again;
//! - a bot is in no queue and in no slot, and nobody runs it: it is ended as failed, so that its user knows;
//! - a slot names a bot that is elsewhere: it is cleared.
//!
//! Two running bots of a user at one meeting, a slot with two rows, a limit that is passed or a pool that has grown too large
//! are only reported: which bot, row or slot is one too many is for a person to say. A limit that was lowered below what is
//! there is no violation; one whose excess grows is. Each violation is counted in `greenroom_invariant_violations_total`, by
//! its kind, and logged.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::lifecycle::Overdue;
use domain::planner::Snapshot;
use domain::planner::invariants::{Usages, Violation, overgrown, usages, violations};
use domain::{Slot, SlotName};

use super::{Did, Keeper};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::ends::Ending;
use crate::placement::Placement;
use crate::store::{Changed, StoreError};

const EVERY: Duration = Duration::from_secs(10);
/// How many slots are looked at as a whole.
const MOST_SLOTS: usize = 50_000;
/// How many slots are compared in one run.
const COMPARED: i64 = 1_000;

#[derive(Debug)]
pub struct Invariants {
    lifecycle: Lifecycle,
    placement: Placement,
    /// The last slot that was compared.
    last: Mutex<Option<(String, i64)>>,
    /// How much users and pools had when it was last looked at.
    usages: Mutex<Usages>,
}

impl Invariants {
    pub fn new(lifecycle: Lifecycle, placement: Placement) -> Self {
        Self { lifecycle, placement, last: Mutex::default(), usages: Mutex::default() }
    }

    /// Compares some slots of the store with the copy, and has the copy read again where they differ.
    async fn compare(&self, did: &mut Did) -> Result<(), StoreError> {
        let store = &self.lifecycle.store;
        let after = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = store.placement_position().await?;
        let after = after.as_ref().map(|(pool, number)| (pool.as_str(), *number));
        let rows = store.slots_after(None, None, after, COMPARED).await?;
        let last = rows.last().filter(|_| rows.len() as i64 == COMPARED).map(|slot| (slot.pool.clone(), slot.number));
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        // On PostgreSQL no unique index keeps out a second row with the same name.
        for twice in rows.windows(2).filter(|pair| pair[0].name == pair[1].name) {
            report("slot_stored_twice", &format!("slot {} has two rows", twice[0].name), did);
        }
        let look = move |snapshot: &Snapshot, token| (differing(snapshot, &rows), token);
        let (differing, token) = self.placement.look(look).await?;
        // Only where nothing was changed meanwhile is a difference one.
        if let Some(slot) = differing.filter(|_| token == before.token) {
            report("copy", &format!("slot {slot} is another in placement's memory"), did);
            let tx = store.begin_changing(&Changed::everything(), self.lifecycle.clock.now()).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn repair(&self, violation: &Violation, did: &mut Did) -> Result<(), StoreError> {
        match violation {
            Violation::BotLost { bot } => {
                let error = Some("it was in no queue and in no slot".to_owned());
                let ending = Ending::GivenUp { bot: *bot, overdue: Overdue::DeployFailed, error };
                if let Err(error) = self.placement.end(ending).await {
                    did.complaints.push(format!("the bot {bot}, which is lost, could not be ended: {error}"));
                }
            }
            Violation::BotInTwoSlots { bot, slots } => {
                let row = self.lifecycle.store.bot(*bot).await?;
                let own = row.and_then(|row| row.slot);
                for slot in slots.iter().filter(|slot| Some(*slot) != own.as_ref()) {
                    let changed = Changed { slots: vec![slot.to_string()], ..Changed::default() };
                    let mut tx = self.lifecycle.store.begin_changing(&changed, self.lifecycle.clock.now()).await?;
                    tx.await_clearing(slot).await?;
                    tx.commit().await?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A slot that is otherwise in the copy.
fn differing(snapshot: &Snapshot, rows: &[Slot]) -> Option<SlotName> {
    rows.iter().find(|row| snapshot.slot(&row.name) != Some(*row)).map(|row| row.name.clone())
}

fn report(kind: &'static str, violation: &str, did: &mut Did) {
    tracing::error!(kind, violation, "invariant violated");
    metrics::counter!("greenroom_invariant_violations_total", "kind" => kind).increment(1);
    did.add("violations", 1);
}

fn kind(violation: &Violation) -> &'static str {
    match violation {
        Violation::BotInTwoSlots { .. } => "bot_in_two_slots",
        Violation::SlotOfTwoBots { .. } => "slot_of_two_bots",
        Violation::WrongPlatform { .. } => "wrong_platform",
        Violation::TwoAtAMeeting { .. } => "two_at_a_meeting",
        Violation::PoolMiscounted { .. } => "pool_miscounted",
        Violation::BotLost { .. } => "bot_lost",
        Violation::QueuedWithSlot { .. } => "queued_with_slot",
    }
}

#[async_trait]
impl Keeper for Invariants {
    fn name(&self) -> &'static str {
        "invariants"
    }

    fn every(&self) -> Duration {
        EVERY
    }

    async fn run(&self) -> Result<Did, StoreError> {
        let mut did = Did::default();
        let look = self.placement.look(move |snapshot, _| {
            // More would hold up placement while it is looked at; there the comparison with the store has to do.
            let is_large = snapshot.slots().len() > MOST_SLOTS;
            (!is_large).then(|| (violations(snapshot), usages(snapshot)))
        });
        let Some((found, now)) = look.await? else {
            self.compare(&mut did).await?;
            return Ok(did);
        };
        for violation in &found {
            report(kind(violation), &violation.to_string(), &mut did);
            self.repair(violation, &mut did).await?;
        }
        let before = std::mem::replace(&mut *self.usages.lock().unwrap_or_else(PoisonError::into_inner), now.clone());
        for (of, usage) in overgrown(&before, &now) {
            report(of.kind(), &format!("there are {} {of}; {} are allowed", usage.count, usage.limit), &mut did);
        }
        self.compare(&mut did).await?;
        Ok(did)
    }
}
