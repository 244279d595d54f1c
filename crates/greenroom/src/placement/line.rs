//! Who gets what is free. The pools of one platform serve one line: by priority, then by arrival. Who wants what is not there
//! is passed over, and holds up nobody.

use domain::{Attributes, ConnectionId, Requirements, SlotName, requirements};
use jiff::Timestamp;

use super::PlacementError;
use super::desk::Desk;
use super::ledger::Ledger;
use super::open::Open;
use crate::random::Random;
use crate::store::{NewBot, Pick, PoolRow, SlotRow, StoreError, Tx, Waiter};

/// No batch gives out or makes more slots than this: the next one goes on.
const MOST_AT_ONCE: i64 = 500;
/// No look lets go of more slots than this.
const MOST_LET_GO: i64 = 50;

/// Somebody who wants a slot.
enum Taker {
    /// It has just come.
    New(Box<NewBot>),
    /// It waits in line.
    Waits(Waiter),
}

impl Taker {
    fn wants(&self) -> Option<&Requirements> {
        match self {
            Taker::New(bot) => bot.wants.as_ref(),
            Taker::Waits(waiter) => waiter.wants.as_ref(),
        }
    }

    /// Of one that came back from a place where there was no room for it: until when it is passed over there.
    fn not_before(&self) -> Option<Timestamp> {
        match self {
            Taker::New(_) => None,
            Taker::Waits(waiter) => waiter.not_before,
        }
    }
}

/// What somebody gets: a slot of the pool at this place in the order of the configuration, or one that is made for it.
enum Seat {
    Open(usize, SlotName),
    New(usize),
}

/// Who may go to a place at which there was no room for it: the first of those who want the same, once its time has come, or
/// whoever something came free for. The others would only find out the same.
struct Doors {
    now: Timestamp,
    came_free: Vec<Attributes>,
    tried: Vec<Option<Requirements>>,
}

impl Doors {
    fn may(&self, taker: &Taker) -> bool {
        let Some(not_before) = taker.not_before() else { return true };
        let wants = taker.wants();
        let is_first = !self.tried.iter().any(|tried| tried.as_ref() == wants);
        (not_before <= self.now && is_first) || self.came_free.iter().any(|free| requirements::fits(wants, free))
    }

    /// It goes there.
    fn passes(&mut self, taker: &Taker) {
        let wants = taker.wants();
        if let Some(at) = self.came_free.iter().position(|free| requirements::fits(wants, free)) {
            self.came_free.swap_remove(at);
        } else if taker.not_before().is_some() {
            self.tried.push(wants.cloned());
        }
    }
}

/// Gives the free slots of a platform's pools, which are in the order of the configuration, to those who wait and to
/// the `wanted`, who have just come. Who gets none joins the line. What `came_free` did so where a place leads to.
pub async fn settle(
    tx: &mut Tx,
    desks: &mut [Desk],
    mut wanted: Vec<NewBot>,
    came_free: &[Attributes],
    ledger: &mut Ledger,
    random: &Random,
    now: Timestamp,
) -> Result<(), PlacementError> {
    let Some(first) = desks.first() else { return Ok(()) };
    // Stable, so that within a priority the order of arrival holds.
    wanted.sort_by_key(|bot| bot.priority);
    let joins = first.waiting > 0 || (!wanted.is_empty() && desks.iter().any(|desk| desk.pool.is_places()));
    let takers: Vec<Taker> = if joins {
        // Those before them in line come first: the new ones join it, and the line decides. So do those who may come back
        // from a place: they have their place in line then.
        join(tx, desks, wanted, ledger).await?;
        next_in_line(tx, desks, now).await?
    } else {
        wanted.into_iter().map(|bot| Taker::New(Box::new(bot))).collect()
    };
    let doors = Doors { now, came_free: came_free.to_vec(), tried: Vec::new() };
    let (seated, rest) = seat(desks, takers, doors);
    let left = seated.iter().filter_map(|(taker, _)| match taker {
        Taker::Waits(waiter) => Some(waiter.bot_id),
        Taker::New(_) => None,
    });
    tx.leave_queue(&left.collect::<Vec<_>>()).await?;
    let mut made = make(tx, desks, &seated, random, now).await?;
    for (taker, seat) in seated {
        let (at, slot) = match seat {
            Seat::Open(at, slot) => (at, slot),
            Seat::New(at) => (at, made[at].pop().ok_or_else(no_number)?),
        };
        let connection = ConnectionId(random.id(now)?);
        match taker {
            Taker::New(bot) => {
                let grant = desks[at].give(&slot, bot.id, connection, None, ledger);
                ledger.place(*bot, &grant);
            }
            Taker::Waits(Waiter { bot_id, user_id, arrival, timeout_at, .. }) => {
                let grant = desks[at].give(&slot, bot_id, connection, Some((arrival, timeout_at)), ledger);
                ledger.grant(user_id, grant);
            }
        }
    }
    let rest = rest.into_iter().filter_map(|taker| match taker {
        Taker::New(bot) => Some(*bot),
        Taker::Waits(_) => None,
    });
    join(tx, desks, rest.collect(), ledger).await?;
    for desk in desks {
        for slot in desk.open() {
            desk.lay_aside(&slot, ledger);
        }
    }
    Ok(())
}

fn no_number() -> StoreError {
    let error = std::io::Error::other("there is no number for a slot that was to be made");
    StoreError::failed("placement", &error)
}

/// Puts new bots at the end of the line, each with the first pool that could ever have something for it.
async fn join(tx: &mut Tx, desks: &[Desk], bots: Vec<NewBot>, ledger: &mut Ledger) -> Result<(), StoreError> {
    let pool_for = |bot: &NewBot| {
        let could = desks.iter().filter(|desk| desk.pool.place.is_some());
        let could = could.map(|desk| &desk.pool).find(|pool| pool.could_fit(bot.wants.as_ref()));
        could.map(|pool| pool.name.clone()).unwrap_or_default()
    };
    let joining = bots.into_iter().map(|bot| (pool_for(&bot), bot));
    ledger.enqueue(tx, joining.collect()).await
}

/// Takes in hand the idle slots that somebody in line could use, and says who could use what is in hand or can be made.
async fn next_in_line(tx: &mut Tx, desks: &mut [Desk], now: Timestamp) -> Result<Vec<Taker>, StoreError> {
    let Some(platform) = desks.first().map(|desk| desk.pool.platform) else { return Ok(Vec::new()) };
    let mut lines = tx.wants_in_line(platform, MOST_AT_ONCE).await?;
    let picks = picks(desks.iter().map(|desk| &desk.pool), &lines);
    for slot in tx.pick_idle_slots(&picks, now).await? {
        if let Some(desk) = desks.iter_mut().find(|desk| desk.pool.name == slot.pool) {
            desk.hold(slot, true);
        }
    }
    let placed = || desks.iter().filter(|desk| desk.pool.place.is_some());
    for (wants, waiting) in &mut lines {
        let seats: i64 = placed().map(|desk| desk.seats(wants.as_ref())).sum();
        *waiting = (*waiting).min(seats).min(MOST_AT_ONCE);
    }
    lines.retain(|(_, count)| *count > 0);
    let waiters = tx.next_waiters(platform, &lines).await?;
    Ok(waiters.into_iter().map(Taker::Waits).collect())
}

/// The idle slots to look for: of each kind as many as could be used by those who want something, each so many.
pub fn picks<'a>(pools: impl Iterator<Item = &'a PoolRow>, wanted: &[(Option<Requirements>, i64)]) -> Vec<Pick> {
    let mut picks = Vec::new();
    for pool in pools.filter(|pool| pool.place.is_some()) {
        for attributes in pool.kinds_of_idle() {
            let fitting = wanted.iter().filter(|(wants, _)| pool.size_for(wants.as_ref(), &attributes).is_some());
            let count = fitting.map(|(_, count)| count).sum::<i64>().min(MOST_AT_ONCE);
            if count > 0 {
                picks.push(Pick { pool: pool.name.clone(), attributes, count });
            }
        }
    }
    picks
}

/// Who gets what, one after the other: the best of what is open, or else a new slot while there is room. And who gets nothing.
fn seat(desks: &[Desk], takers: Vec<Taker>, mut doors: Doors) -> (Vec<(Taker, Seat)>, Vec<Taker>) {
    let mut open = Open::of(desks);
    let mut room: Vec<i64> = desks.iter().map(Desk::room).collect();
    let (mut seated, mut rest) = (Vec::with_capacity(takers.len()), Vec::new());
    for taker in takers {
        let may = doors.may(&taker) && count(seated.len()) < MOST_AT_ONCE;
        let seat = open.take(desks, taker.wants(), may).map(|(at, slot)| Seat::Open(at, slot)).or_else(|| {
            let fitting = (0..desks.len()).filter(|at| room[*at] > 0 && (may || !desks[*at].pool.is_places()));
            let sized =
                fitting.filter_map(|at| Some((desks[at].pool.is_places(), desks[at].size_of_new(taker.wants())?, at)));
            sized.min().map(|(.., at)| {
                room[at] -= 1;
                Seat::New(at)
            })
        });
        match seat {
            Some(seat) => {
                let (Seat::Open(at, _) | Seat::New(at)) = &seat;
                if desks[*at].pool.is_places() {
                    doors.passes(&taker);
                }
                seated.push((taker, seat));
            }
            None => rest.push(taker),
        }
    }
    (seated, rest)
}

/// The new slots of each pool: the first is the last.
async fn make(
    tx: &mut Tx,
    desks: &mut [Desk],
    seated: &[(Taker, Seat)],
    random: &Random,
    now: Timestamp,
) -> Result<Vec<Vec<SlotName>>, PlacementError> {
    let mut made = Vec::with_capacity(desks.len());
    for (at, desk) in desks.iter_mut().enumerate() {
        let wanted = seated.iter().filter(|(_, seat)| matches!(seat, Seat::New(of) if *of == at)).count();
        let mut names = Vec::with_capacity(wanted);
        if wanted > 0 {
            for number in tx.free_numbers(&desk.pool.name, desk.pool.slots, count(wanted)).await? {
                names.push(desk.intend(number, random.id(now)?));
            }
        }
        names.reverse();
        made.push(names);
    }
    Ok(made)
}

/// Looks of which kinds the idle slots of a pool are: a replica of another version, or with another configuration, may have made
/// some.
async fn see_kinds(tx: &mut Tx, desk: &mut Desk) -> Result<(), StoreError> {
    if desk.pool.is_places() {
        return Ok(());
    }
    let new = desk.pool.kind_of_new();
    let mut kinds = vec![new.clone()];
    kinds.extend(tx.kinds_of_idle(&desk.pool.name).await?.into_iter().filter(|kind| *kind != new));
    desk.pool.kinds = kinds;
    Ok(())
}

/// An idle slot that was made by an earlier configuration, so that one that has what the pool says now can take its room: one at
/// a time, and only while no other is on its way out or being made.
async fn old_kinds(tx: &mut Tx, desk: &Desk, now: Timestamp) -> Result<Vec<SlotRow>, StoreError> {
    let old = desk.pool.kinds_of_idle().into_iter().skip(1);
    let pool = &desk.pool.name;
    let picks: Vec<Pick> = old.map(|attributes| Pick { pool: pool.clone(), attributes, count: 1 }).collect();
    if picks.is_empty() || !tx.is_quiet(pool).await? {
        return Ok(Vec::new());
    }
    let mut found = tx.pick_idle_slots(&picks, now).await?;
    found.truncate(1);
    Ok(found)
}

/// Makes slots until as many are ready as the pool wants to keep, and lets go of those that are too many, too old, or of another
/// kind than new ones.
pub async fn keep_warm(
    tx: &mut Tx,
    desk: &mut Desk,
    ledger: &mut Ledger,
    random: &Random,
    now: Timestamp,
) -> Result<(), PlacementError> {
    if desk.pool.place.is_none() {
        return Ok(());
    }
    if desk.pool.min_idle > 0 && desk.room() > 0 && !desk.pool.is_places() {
        let (ready, broken) = tx.ready_slots(&desk.pool.name, desk.pool.min_idle, now).await?;
        // Where slots cannot be started, more of them are no help: what is broken is replaced once, and then waited for.
        let hopeless = (broken - desk.pool.min_idle).max(0);
        let missing = (desk.pool.min_idle - ready - hopeless).clamp(0, desk.room()).min(MOST_AT_ONCE);
        if missing > 0 {
            for number in tx.free_numbers(&desk.pool.name, desk.pool.slots, missing).await? {
                let slot = desk.intend(number, random.id(now)?);
                desk.lay_aside(&slot, ledger);
                ledger.looked.made += 1;
            }
        }
    }
    let mut leaving = Vec::new();
    see_kinds(tx, desk).await?;
    if desk.pool.slots > desk.pool.max_slots {
        let draining = tx.draining_slots(&desk.pool.name).await?;
        let excess = (desk.pool.slots - draining - desk.pool.max_slots).max(0);
        let picks = picks(std::iter::once(&desk.pool), &[(None, excess)]);
        leaving = tx.pick_idle_slots(&picks, now).await?;
        let new = desk.pool.kind_of_new();
        leaving.sort_by_key(|slot| (slot.attributes == new, slot.last_used_at, slot.number));
        leaving.truncate(usize::try_from(excess).unwrap_or(0));
    }
    if desk.pool.expire_after_ms.is_some() {
        // They are of no use to anybody any more.
        leaving.extend(tx.expired_slots(&desk.pool.name, now, MOST_LET_GO).await?);
    }
    if leaving.is_empty() {
        leaving = old_kinds(tx, desk, now).await?;
    }
    for slot in leaving {
        let name = slot.name.clone();
        desk.hold(slot, false);
        desk.put(&name, domain::SlotStatus::Draining);
        ledger.looked.let_go += 1;
    }
    Ok(())
}

pub fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}
