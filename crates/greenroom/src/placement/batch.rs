//! One transaction of placement: admits the requests, ends the bots, takes the news of slots, settles every line that is
//! touched, and writes all of it at once. There is one such transaction at a time in the whole database: what it has read
//! of limits, pools and slots stays true until its commit, and no two of them can wait for each other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use domain::{BotId, ConnectionId, Deadlines, Platform, SlotName, Status, slot};
use jiff::Timestamp;

use super::desk::Desk;
use super::jobs::{Replies, Sorted};
use super::ledger::Ledger;
use super::{Aftermath, PlacementError, Reserved, SlotNews, line, news};
use crate::admission::{Admission, AdmissionError, Admitted, Request};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::ends::{Ending, Endings};
use crate::store::{BotRow, KnownKey, NewBot, SlotRow, StoreError, Tx};

#[derive(Debug)]
pub struct Placer {
    pub admission: Admission,
    pub lifecycle: Lifecycle,
    pub deadlines: Deadlines,
    pub aftermath: Arc<Aftermath>,
}

type Said = Result<Admitted, AdmissionError>;

impl Placer {
    /// Does all jobs in one transaction. When that is refused, each is done by itself, so that one that cannot be done
    /// does not take the others with it.
    pub async fn place(&self, jobs: Sorted) {
        match self.transact(&jobs).await {
            Ok(replies) => jobs.answer(replies),
            Err(error) if jobs.len() == 1 || is_away(&error) => jobs.refuse(&error),
            Err(error) => {
                tracing::warn!(%error, jobs = jobs.len(), "a batch failed; its jobs are done one by one");
                for alone in jobs.apart() {
                    match self.transact(&alone).await {
                        Ok(replies) => alone.answer(replies),
                        Err(error) => alone.refuse(&error),
                    }
                }
            }
        }
    }

    async fn transact(&self, jobs: &Sorted) -> Result<Replies, PlacementError> {
        let mut tx = self.admission.store.begin_alone().await?;
        let now = self.admission.clock.now();
        let said = self.admission.admit(&mut tx, &jobs.requests, now).await?;
        let mut endings = self.lifecycle.end_all(&mut tx, &jobs.endings).await?;
        let wanted: Vec<NewBot> = said.iter().filter_map(new_bot).cloned().collect();
        let slots = touched_slots(&mut tx, jobs, &endings).await?;
        let mut desks = desks(&mut tx, &wanted, now).await?;
        let mut ledger = Ledger::new(now, self.deadlines.deploy);

        for slot in slots {
            if let Some(desk) = desk_of(&mut desks, &slot.pool) {
                desk.hold(slot, false);
            }
        }
        let silent = self.reconnect_silent(&mut tx, &desks, jobs, &endings, now).await?;
        let told = jobs.news.iter().map(|(name, news)| {
            let heard = matches!(news, SlotNews::Silent { bot, .. } if !silent.contains(bot));
            let desk = desks.iter_mut().find(|desk| desk.slot(name).is_some()).filter(|_| !heard);
            desk.is_some_and(|desk| news::take(desk, name, news, &mut ledger, now))
        });
        let told: Vec<bool> = told.collect();
        // Before new ones are made: their numbers are free again.
        tx.delete_slots(&ledger.gone).await?;
        self.vacate(&mut desks, &jobs.endings, &endings, &mut ledger, now);
        for (platform, desks) in by_platform(&mut desks) {
            let wanted: Vec<NewBot> = wanted.iter().filter(|bot| bot.platform == platform).cloned().collect();
            // Only lines that something has happened to.
            if wanted.is_empty() && !jobs.looks() && desks.iter().all(|desk| desk.open().is_empty()) {
                continue;
            }
            line::settle(&mut tx, desks, wanted, &mut ledger, &self.admission.random, now).await?;
        }
        ledger.keys = idempotency_keys(&said, &jobs.requests, &ledger.bots);
        if jobs.looks() {
            ledger.write_slots(&mut tx, &mut desks).await?;
            for desk in &mut desks {
                line::keep_warm(&mut tx, desk, &mut ledger).await?;
            }
        }
        ledger.write(&mut tx, &mut desks).await?;
        let replies = Replies {
            reserved: reserved(&mut tx, said, &jobs.requests, &desks, &ledger).await?,
            ended: std::mem::take(&mut endings.answers),
            told,
            looked: ledger.looked,
        };
        tx.commit().await?;
        self.tell(ledger, endings);
        Ok(replies)
    }

    /// Gives the bots that nothing was heard of a new connection, so that whoever speaks under the old one comes too late;
    /// and says which they are. One that spoke meanwhile is not among them.
    async fn reconnect_silent(
        &self,
        tx: &mut Tx,
        desks: &[Desk],
        jobs: &Sorted,
        endings: &Endings,
        now: Timestamp,
    ) -> Result<HashSet<BotId>, PlacementError> {
        let mut silent = Vec::new();
        for (name, news) in &jobs.news {
            let bot = desks.iter().find_map(|desk| news::silent_bot(desk, name, news));
            // One that ends in this batch needs no connection any more.
            if let Some(bot) = bot.filter(|bot| !endings.ended.contains_key(bot)) {
                silent.push((bot, ConnectionId(self.admission.random.id(now)?)));
            }
        }
        Ok(tx.reconnect_unheard(&silent, now).await?.into_iter().collect())
    }

    /// Takes the slots of the bots that end.
    fn vacate(&self, desks: &mut [Desk], asked: &[Ending], endings: &Endings, ledger: &mut Ledger, now: Timestamp) {
        let mut seen = HashSet::new();
        for ending in asked {
            let Some(ended) = endings.ended.get(&ending.bot()).filter(|_| seen.insert(ending.bot())) else { continue };
            ledger.events.push(ended.event.clone());
            ledger.ends.push((ended.bot.id, ended.change.clone()));
            let Some(name) = &ended.bot.slot else { continue };
            match desks.iter_mut().find(|desk| desk.slot(name).is_some()) {
                Some(desk) => news::vacate(desk, ending, ended, ledger, now),
                None => ledger.to_clear.push(ended.bot.id),
            }
        }
    }

    /// After the commit: wakes whom it concerns.
    fn tell(&self, ledger: Ledger, endings: Endings) {
        for slot in &ledger.woken {
            self.lifecycle.feed.wake_slot(slot);
        }
        if ledger.stirs_gate() {
            self.aftermath.asked.notify_one();
        }
        if !ledger.queued.is_empty() {
            self.aftermath.queued.notify_one();
        }
        if ledger.cooled {
            self.aftermath.cooled.notify_one();
        }
        for bot in &ledger.to_clear {
            self.lifecycle.to_clear.add(*bot);
        }
        if !ledger.described.is_empty() {
            let mut described = self.aftermath.described.lock().unwrap_or_else(PoisonError::into_inner);
            described.extend(ledger.described.into_iter().map(|described| (described.slot.clone(), described)));
            drop(described);
            self.aftermath.redescribed.notify_one();
        }
        for bot in &ledger.bots {
            let slot = bot.slot.as_ref().map_or("", SlotName::as_str);
            tracing::info!(bot = %bot.id, pool = bot.pool, slot, priority = bot.priority, "bot reserved");
        }
        for grant in &ledger.grants {
            tracing::info!(bot = %grant.bot_id, slot = %grant.slot, "bot got its slot");
        }
        for ended in endings.ended.into_values() {
            self.lifecycle.tell_ended(ended);
        }
    }
}

fn is_away(error: &PlacementError) -> bool {
    matches!(error, PlacementError::Admission(AdmissionError::Store(StoreError::Unavailable { .. })))
}

fn new_bot(said: &Said) -> Option<&NewBot> {
    match said {
        Ok(Admitted::New(bot)) => Some(bot),
        _ => None,
    }
}

fn desk_of<'a>(desks: &'a mut [Desk], pool: &str) -> Option<&'a mut Desk> {
    desks.iter_mut().find(|desk| desk.pool.name == pool)
}

/// The slots that there is news of, and those of bots that end.
async fn touched_slots(tx: &mut Tx, jobs: &Sorted, endings: &Endings) -> Result<Vec<SlotRow>, StoreError> {
    let of_bots = endings.ended.values().filter_map(|ended| ended.bot.in_slot.clone());
    let names: Vec<SlotName> = jobs.news.iter().map(|(name, _)| name.clone()).collect();
    let mut slots = if names.is_empty() { Vec::new() } else { tx.slots_by_name(&names).await? };
    slots.extend(of_bots);
    Ok(slots)
}

/// A desk for each pool, with as many idle slots as are wanted. Those of one platform are together, in the order of the
/// configuration.
async fn desks(tx: &mut Tx, wanted: &[NewBot], now: Timestamp) -> Result<Vec<Desk>, StoreError> {
    let platforms = wanted.iter().map(|bot| bot.platform).collect();
    let mut pools = tx.pools_with_lines(&platforms, line::count(wanted.len())).await?;
    pools.sort_by_key(|of| (of.pool.platform, of.pool.place.is_none(), of.pool.place));
    Ok(pools.into_iter().map(|of| Desk::new(of, now)).collect())
}

/// The desks of each platform that some pool of the configuration serves.
fn by_platform(desks: &mut [Desk]) -> impl Iterator<Item = (Platform, &mut [Desk])> {
    desks
        .chunk_by_mut(|one, other| one.pool.platform == other.pool.platform)
        .filter(|desks| desks[0].pool.place.is_some())
        .map(|desks| (desks[0].pool.platform, desks))
}

/// The keys of the bots that are really made.
fn idempotency_keys(said: &[Said], requests: &[Request], made: &[NewBot]) -> Vec<(domain::UserId, String, KnownKey)> {
    let made: HashSet<BotId> = made.iter().map(|bot| bot.id).collect();
    let keys = said.iter().zip(requests).filter_map(|(said, request)| {
        let bot = new_bot(said).filter(|bot| made.contains(&bot.id))?;
        let (key, body_hash) = request.wish.idempotency.clone()?;
        Some((bot.user_id, key, KnownKey { body_hash, bot_id: bot.id }))
    });
    keys.collect()
}

/// What each request is told.
async fn reserved(
    tx: &mut Tx,
    said: Vec<Said>,
    requests: &[Request],
    desks: &[Desk],
    ledger: &Ledger,
) -> Result<Vec<Result<Reserved, PlacementError>>, StoreError> {
    let known = said.iter().filter_map(|said| match said {
        Ok(Admitted::Known(bot)) => Some(*bot),
        _ => None,
    });
    let known: Vec<BotId> = known.collect();
    let found: HashMap<_, _> = tx.bots_by_id(&known).await?.into_iter().map(|bot| (bot.id, bot)).collect();
    let mut in_line = ledger.queued.clone();
    in_line.extend(found.values().filter(|bot| bot.status == Status::Reserved && bot.slot.is_none()).map(|bot| bot.id));
    let positions: HashMap<_, _> = tx.queue_positions(&in_line).await?.into_iter().collect();
    let made: HashMap<_, _> = ledger.bots.iter().map(|bot| (bot.id, bot)).collect();
    let reserved = |bot: BotRow, is_new: bool| {
        let queue_position = positions.get(&bot.id).copied();
        let pools = desks.iter().map(|desk| &desk.pool).filter(|pool| pool.platform == bot.platform);
        let pools = pools.map(|pool| (pool.mean_hold_ms, pool.slots));
        let estimated_wait_ms = queue_position.and_then(|place| slot::estimated_wait_ms(place, pools));
        Ok(Reserved { bot, is_new, queue_position, estimated_wait_ms })
    };
    let answers = said.into_iter().zip(requests).map(|(said, request)| match said {
        Ok(Admitted::New(bot)) => match made.get(&bot.id) {
            Some(bot) => reserved((*bot).clone().into_row(ledger.now), true),
            None => Err(PlacementError::NoPool(bot.platform)),
        },
        Ok(Admitted::Known(bot)) => match (found.get(&bot), made.get(&bot)) {
            (Some(bot), _) => reserved(bot.clone(), false),
            (None, Some(bot)) => reserved((*bot).clone().into_row(ledger.now), false),
            // The first one under this key, in this batch, found no pool.
            (None, None) => Err(PlacementError::NoPool(request.wish.meeting.platform)),
        },
        Err(error) => Err(error.into()),
    });
    Ok(answers.collect())
}
