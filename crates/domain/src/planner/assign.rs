//! Assigns free slots to waiting bots. All pools of one platform serve one queue. If no slot meets a bot's requirements
//! now, the bot is skipped and does not delay the bots behind it.

use jiff::Timestamp;

use super::MOST_AT_ONCE;
use super::bot::OpenBot;
use super::bugs::{Bug, has};
use super::draft::Draft;
use super::queue::{Order, queue_key};
use crate::{Attributes, BotId, Platform, SlotName, requirements};

/// A candidate for a bot: a free slot, or a new slot of this pool.
enum Candidate {
    Free(SlotName),
    New(String),
}

/// Decides which bots may try a pool that provisions per bot. Of the bots that returned from such a pool with the same
/// requirements, only the first may try again when its pause is over. A bot may also try when a fitting runner came
/// free. The others would get the same result.
struct RetryGate {
    now: Timestamp,
    came_free: Vec<Attributes>,
    /// The groups of which a bot has tried.
    tried: Vec<String>,
}

impl RetryGate {
    fn admits(&self, bot: &OpenBot) -> bool {
        let Some(not_before) = bot.queued.as_ref().and_then(|queued| queued.not_before) else { return true };
        let required = bot.requirements.as_ref();
        let is_first = !self.tried.contains(&queue_key(bot));
        (not_before <= self.now && is_first) || self.came_free.iter().any(|free| requirements::fits(required, free))
    }

    fn passes(&mut self, bot: &OpenBot) {
        let required = bot.requirements.as_ref();
        if let Some(at) = self.came_free.iter().position(|free| requirements::fits(required, free)) {
            self.came_free.swap_remove(at);
        } else if bot.queued.as_ref().is_some_and(|queued| queued.not_before.is_some()) {
            self.tried.push(queue_key(bot));
        }
    }
}

/// A group that may still get a slot, and its first bot.
struct Head {
    key: String,
    order: Order,
    bot: BotId,
}

/// Gives the free slots of a platform's pools, and new slots while there is room, to the waiting bots in order.
pub fn serve_queue(draft: &mut Draft<'_>, platform: Platform, came_free: &[Attributes]) {
    if draft.configured_pools(platform).next().is_none() {
        return;
    }
    let mut gate = RetryGate { now: draft.now, came_free: came_free.to_vec(), tried: Vec::new() };
    let mut heads: Vec<Head> = Vec::new();
    for key in draft.groups(platform).into_keys() {
        heads.extend(head(draft, platform, key, None));
    }
    let mut given = 0;
    while let Some(at) = first(&heads) {
        let Head { key, order, bot: id } = heads.swap_remove(at);
        let Some(bot) = draft.bot(id).cloned() else { continue };
        if given == MOST_AT_ONCE {
            draft.changes.unfinished = true;
            return;
        }
        // If this bot gets no slot, the bots behind it in its group get none either. The group is done.
        let Some(candidate) = candidate(draft, &bot, gate.admits(&bot)) else { continue };
        if let Some(slot) = slot_of(draft, candidate) {
            let pool = draft.slot(&slot).and_then(|slot| draft.pool(&slot.pool));
            if pool.is_some_and(|pool| pool.provisioned_per_bot()) {
                gate.passes(&bot);
            }
            draft.give(&slot, id);
            given += 1;
        }
        heads.extend(head(draft, platform, key, Some(order)));
    }
}

fn head(draft: &Draft<'_>, platform: Platform, key: String, after: Option<Order>) -> Option<Head> {
    draft.next_in_queue(platform, &key, after).map(|(order, bot)| Head { key, order, bot })
}

/// The group whose first bot is next.
fn first(heads: &[Head]) -> Option<usize> {
    let order = |head: &Head| {
        let mut order = head.order;
        if has(Bug::PriorityIgnored) {
            order.priority = 0;
        }
        order
    };
    (0..heads.len()).min_by_key(|at| order(&heads[*at]))
}

fn candidate(draft: &mut Draft<'_>, bot: &OpenBot, may_provision: bool) -> Option<Candidate> {
    if let Some(slot) = draft.best_slot(bot, may_provision) {
        return Some(Candidate::Free(slot));
    }
    let room = |room: i64| room > 0 || has(Bug::PoolOvergrown);
    let pools = draft.configured_pools(bot.platform).filter(|pool| room(pool.room()));
    let pools = pools.filter(|pool| bot.allows(pool) || has(Bug::PoolIgnored));
    let pools = pools.filter(|pool| may_provision || !pool.provisioned_per_bot());
    let sized = pools.filter_map(|pool| {
        let size = pool.size_of_new(bot.requirements.as_ref())?;
        Some(((pool.provisioned_per_bot(), size, pool.fill_order), pool.name.clone()))
    });
    sized.min().map(|(_, pool)| Candidate::New(pool))
}

fn slot_of(draft: &mut Draft<'_>, candidate: Candidate) -> Option<SlotName> {
    match candidate {
        Candidate::Free(slot) => Some(slot),
        Candidate::New(pool) => draft.make_slot(&pool),
    }
}
