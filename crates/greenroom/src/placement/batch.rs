//! One transaction of placement: admits the requests, ends the bots, takes the news of slots, settles every line that is
//! touched, and writes all of it at once. There is one such transaction at a time in the whole database: what it has read
//! of limits, pools and slots stays true until its commit, and no two of them can wait for each other.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::{BotId, ConnectionId, Deadlines, Platform, Requirements, SlotName, Status, slot};
use jiff::Timestamp;

use super::desk::Desk;
use super::jobs::{Replies, Sorted};
use super::ledger::Ledger;
use super::{Aftermath, PlacementError, Reserved, SlotNews, line, news};
use crate::admission::{Admission, AdmissionError, Admitted, Request};
use crate::lifecycle::Lifecycle;
use crate::lifecycle::ends::{Ending, Endings};
use crate::store::{BotRow, KnownKey, NewBot, Pick, PoolRow, SlotRow, StoreError, Tx};

/// How long a bot is passed over that was put back in line, unless something comes free.
const PASSED_OVER: Duration = Duration::from_secs(3);
/// Each time twice as long, so often.
const MOST_DOUBLED: u32 = 3;

/// What is asked for: a slot of a platform that meets this.
type Asked<'a> = (Platform, Option<&'a Requirements>);

#[derive(Debug)]
pub struct Placer {
    pub admission: Admission,
    pub lifecycle: Lifecycle,
    pub deadlines: Deadlines,
    pub aftermath: Arc<Aftermath>,
    /// The pools as they were read last: what of theirs is worth looking for is known before they are read again.
    pub known: Mutex<Vec<PoolRow>>,
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
        let asked: Vec<Asked> =
            jobs.requests.iter().map(|Request { wish, .. }| (wish.meeting.platform, wish.wants.as_ref())).collect();
        let mut desks = self.desks(&mut tx, &asked, now).await?;
        let possible: Vec<bool> = asked.iter().map(|asked| could_fit(&desks, *asked)).collect();
        let said = self.admission.admit(&mut tx, &jobs.requests, &possible, now).await?;
        let mut endings = self.lifecycle.end_all(&mut tx, &jobs.endings).await?;
        let wanted: Vec<NewBot> = said.iter().filter_map(new_bot).cloned().collect();
        let slots = touched_slots(&mut tx, jobs, &endings).await?;
        let mut ledger = Ledger::new(now, self.deadlines.deploy);

        for slot in slots {
            if let Some(desk) = desk_of(&mut desks, &slot.pool) {
                desk.hold(slot, false);
            }
        }
        let silent = self.reconnect_silent(&mut tx, &desks, jobs, &endings, now).await?;
        let unplaced = self.unplace(&mut tx, &mut desks, jobs, &endings, &mut ledger).await?;
        let told = jobs.news.iter().map(|(name, news)| {
            let heard = match news {
                SlotNews::Silent { bot, .. } => !silent.contains(bot),
                SlotNews::Full { bot, .. } => !unplaced.contains(bot),
                _ => false,
            };
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
            if wanted.is_empty()
                && !jobs.looks()
                && jobs.came_free.is_empty()
                && desks.iter().all(|desk| desk.open().is_empty())
            {
                continue;
            }
            line::settle(&mut tx, desks, wanted, &jobs.came_free, &mut ledger, &self.admission.random, now).await?;
        }
        ledger.keys = idempotency_keys(&said, &jobs.requests, &ledger.bots);
        if jobs.looks() {
            ledger.write_slots(&mut tx, &mut desks).await?;
            for desk in &mut desks {
                line::keep_warm(&mut tx, desk, &mut ledger, &self.admission.random, now).await?;
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

    /// A desk for each pool, with the idle slots that those who are wanted could use. Those of one platform are together, in
    /// the order of the configuration. One statement, unless a pool has changed since it was read last.
    async fn desks(&self, tx: &mut Tx, wanted: &[Asked<'_>], now: Timestamp) -> Result<Vec<Desk>, StoreError> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let asked = picks(&known, wanted);
        let mut pools = tx.pools_with_lines(&asked, now).await?;
        let known: Vec<PoolRow> = pools.iter().map(|of| of.pool.clone()).collect();
        let mut missed = picks(&known, wanted);
        missed.retain(|pick| !asked.contains(pick));
        for slot in tx.pick_idle_slots(&missed, now).await? {
            let of = pools.iter_mut().find(|of| of.pool.name == slot.pool);
            if let Some(of) = of.filter(|of| of.idle.iter().all(|known| known.name != slot.name)) {
                of.idle.push(slot);
            }
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        pools.sort_by_key(|of| (of.pool.platform, of.pool.place.is_none(), of.pool.place));
        Ok(pools.into_iter().map(|of| Desk::new(of, now)).collect())
    }

    /// Takes their slots from the bots for which there is no room and puts them back in line, and says which they are. One that
    /// spoke, was stopped, or was begun by another meanwhile is not among them.
    async fn unplace(
        &self,
        tx: &mut Tx,
        desks: &mut [Desk],
        jobs: &Sorted,
        endings: &Endings,
        ledger: &mut Ledger,
    ) -> Result<HashSet<BotId>, StoreError> {
        let (mut unplaced, now) = (HashSet::new(), ledger.now);
        for (name, news) in &jobs.news {
            let SlotNews::Full { bot, holder, words } = news else { continue };
            let fits = desks.iter().any(|desk| news::full_bot(desk, name, news).is_some());
            if !fits || endings.ended.contains_key(bot) {
                continue;
            }
            let Some(back) = tx.unplace_unheard(*bot, name, *holder, now).await? else { continue };
            let pause = PASSED_OVER * 2_u32.pow(u32::try_from(back.returns - 1).unwrap_or(0).min(MOST_DOUBLED));
            tx.return_to_line(&back, now, now.saturating_add(pause).unwrap_or(Timestamp::MAX)).await?;
            if back.returns == 1 {
                ledger.requeued(*bot, back.user_id, words);
            }
            ledger.returned = true;
            for desk in desks.iter_mut().filter(|desk| desk.pool.platform == back.platform) {
                desk.waiting += 1;
            }
            unplaced.insert(*bot);
        }
        Ok(unplaced)
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
        if !ledger.queued.is_empty() || ledger.returned {
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

/// Whether a slot that one of the pools has or could have would do.
fn could_fit(desks: &[Desk], (platform, wants): Asked<'_>) -> bool {
    let pools = desks.iter().map(|desk| &desk.pool).filter(|pool| pool.platform == platform && pool.place.is_some());
    pools.into_iter().any(|pool| pool.could_fit(wants))
}

/// Why there is nothing for a bot of a platform.
fn none_for(desks: &[Desk], platform: Platform) -> PlacementError {
    match desks.iter().any(|desk| desk.pool.platform == platform && desk.pool.place.is_some()) {
        true => PlacementError::NoneFits(platform),
        false => PlacementError::NoPool(platform),
    }
}

/// What is wanted of a platform, and how many want the same.
fn wants_of(wanted: &[Asked<'_>], platform: Platform) -> Vec<(Option<Requirements>, i64)> {
    let mut all: Vec<(Option<Requirements>, i64)> = Vec::new();
    for (_, wants) in wanted.iter().filter(|(of, _)| *of == platform) {
        match all.iter_mut().find(|(known, _)| known.as_ref() == *wants) {
            Some((_, count)) => *count += 1,
            None => all.push((wants.cloned(), 1)),
        }
    }
    all
}

/// The idle slots that would do for what is wanted.
fn picks(pools: &[PoolRow], wanted: &[Asked<'_>]) -> Vec<Pick> {
    let of = |platform: Platform| {
        line::picks(pools.iter().filter(|pool| pool.platform == platform), &wants_of(wanted, platform))
    };
    Platform::ALL.into_iter().filter(|platform| wanted.iter().any(|(of, _)| of == platform)).flat_map(of).collect()
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
        let pools = pools.filter(|pool| pool.could_fit(bot.wants().as_ref()));
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
            (None, None) => Err(none_for(desks, request.wish.meeting.platform)),
        },
        Err(AdmissionError::NothingFits) => Err(none_for(desks, request.wish.meeting.platform)),
        Err(error) => Err(error.into()),
    });
    Ok(answers.collect())
}
