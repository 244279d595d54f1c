//! Who gets what is free. The pools of one platform serve one line: by priority, then by arrival.

use domain::{BotId, ConnectionId};
use jiff::Timestamp;

use super::PlacementError;
use super::desk::Desk;
use super::ledger::Ledger;
use crate::random::Random;
use crate::store::{NewBot, StoreError, Tx};

/// No batch gives out or makes more slots than this: the next one goes on.
const MOST_AT_ONCE: i64 = 500;

/// Gives the free slots of a platform's pools, which are in the order of the configuration, to those who wait and to
/// the `wanted`, who have just come. Who gets none joins the line.
pub async fn settle(
    tx: &mut Tx,
    desks: &mut [Desk],
    mut wanted: Vec<NewBot>,
    ledger: &mut Ledger,
    random: &Random,
    now: Timestamp,
) -> Result<(), PlacementError> {
    let Some(first) = desks.first() else { return Ok(()) };
    let (platform, waiting, first) = (first.pool.platform, first.waiting, first.pool.name.clone());
    // Stable, so that within a priority the order of arrival holds.
    wanted.sort_by_key(|bot| bot.priority);
    let want = (waiting + count(wanted.len())).min(MOST_AT_ONCE);
    if want > 0 {
        gather_open(tx, desks, want).await?;
    }
    let mut open = desks
        .iter()
        .enumerate()
        .filter(|(_, desk)| desk.pool.place.is_some())
        .flat_map(|(at, desk)| desk.open().into_iter().map(move |slot| (at, slot)))
        .collect::<Vec<_>>()
        .into_iter();
    if waiting == 0 {
        let mut rest = Vec::new();
        for bot in wanted {
            match open.next() {
                Some((at, slot)) => {
                    let connection = ConnectionId(random.id(now)?);
                    let grant = desks[at].give(&slot, bot.id, connection, ledger);
                    ledger.place(bot, &grant);
                }
                None => rest.push(bot),
            }
        }
        ledger.enqueue(tx, &first, rest).await?;
    } else {
        // Those before them in line come first: the new ones join it, and the line decides.
        ledger.enqueue(tx, &first, wanted).await?;
        let winners = match open.len() {
            0 => Vec::new(),
            open => tx.next_waiters(platform, count(open)).await?,
        };
        let ids: Vec<BotId> = winners.iter().map(|(bot, _)| *bot).collect();
        tx.leave_queue(&ids).await?;
        for ((bot, user), (at, slot)) in winners.into_iter().zip(open.by_ref()) {
            let grant = desks[at].give(&slot, bot, ConnectionId(random.id(now)?), ledger);
            ledger.grant(user, grant);
        }
    }
    for desk in desks {
        for slot in desk.open() {
            desk.lay_aside(&slot, ledger);
        }
    }
    Ok(())
}

/// Takes in hand as many slots as are wanted: idle ones of any pool first, then new ones while there is room.
async fn gather_open(tx: &mut Tx, desks: &mut [Desk], want: i64) -> Result<(), StoreError> {
    let mut missing = want;
    for desk in desks.iter_mut().filter(|desk| desk.pool.place.is_some()) {
        // As many as have just come are in hand already.
        if desk.waiting > 0 {
            for slot in tx.pick_idle_slots(&desk.pool.name, want).await? {
                desk.hold(slot, true);
            }
        }
        missing -= count(desk.open().len());
    }
    for desk in desks.iter_mut() {
        let grow = missing.clamp(0, desk.room());
        if grow > 0 {
            for number in tx.free_numbers(&desk.pool.name, desk.pool.slots, grow).await? {
                desk.intend(number);
            }
            missing -= grow;
        }
    }
    Ok(())
}

/// Makes slots until as many are ready as the pool wants to keep, and lets go of those that are too many.
pub async fn keep_warm(tx: &mut Tx, desk: &mut Desk, ledger: &mut Ledger) -> Result<(), StoreError> {
    if desk.pool.place.is_none() {
        return Ok(());
    }
    if desk.pool.min_idle > 0 && desk.room() > 0 {
        let (ready, broken) = tx.ready_slots(&desk.pool.name, desk.pool.min_idle).await?;
        // Where slots cannot be started, more of them are no help: what is broken is replaced once, and then waited for.
        let hopeless = (broken - desk.pool.min_idle).max(0);
        let missing = (desk.pool.min_idle - ready - hopeless).clamp(0, desk.room()).min(MOST_AT_ONCE);
        if missing > 0 {
            for number in tx.free_numbers(&desk.pool.name, desk.pool.slots, missing).await? {
                let slot = desk.intend(number);
                desk.lay_aside(&slot, ledger);
                ledger.looked.made += 1;
            }
        }
    }
    if desk.pool.slots > desk.pool.max_slots {
        let leaving = tx.draining_slots(&desk.pool.name).await?;
        let excess = (desk.pool.slots - leaving - desk.pool.max_slots).max(0);
        for slot in tx.pick_idle_slots(&desk.pool.name, excess).await? {
            let name = slot.name.clone();
            desk.hold(slot, false);
            desk.put(&name, domain::SlotStatus::Draining);
            ledger.looked.let_go += 1;
        }
    }
    Ok(())
}

pub fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
