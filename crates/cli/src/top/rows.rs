//! Which rows each pane lists: those of the chosen pool, with the words of the filter.

use std::fmt::Write;

use uuid::Uuid;

use super::message::SlotKey;
use super::screen::{Pane, Screen};
use super::state::Fleet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKey {
    AllPools,
    Pool(usize),
    Slot(SlotKey),
    Bot(Uuid),
    /// A bot in the queue, and its index there.
    Waiting(Uuid, usize),
    Keeper(usize),
    Attention(usize),
}

impl RowKey {
    /// Whether both are the same thing, wherever it is now.
    pub fn is_same(&self, other: &RowKey) -> bool {
        match (self, other) {
            (RowKey::Waiting(one, _), RowKey::Waiting(two, _)) => one == two,
            _ => self == other,
        }
    }
}

/// The rows of a pane, and how many there are without the filter.
pub fn rows(screen: &Screen, pane: Pane) -> (Vec<RowKey>, usize) {
    let fleet = screen.shown();
    let all: Vec<RowKey> = match pane {
        Pane::Pools => std::iter::once(RowKey::AllPools).chain((0..fleet.pools.len()).map(RowKey::Pool)).collect(),
        Pane::Slots => slots(fleet, screen.scope_index()).collect(),
        Pane::Bots => bots(fleet, screen.scope_index()).collect(),
        Pane::Queue => waiting(fleet, screen.scope_index()).collect(),
        Pane::Keepers => (0..fleet.keepers.len()).map(RowKey::Keeper).collect(),
        Pane::Attention => (0..screen.attention.len()).map(RowKey::Attention).collect(),
    };
    let (total, filter) = (all.len(), screen.list(pane).filter.to_lowercase());
    if filter.trim().is_empty() {
        return (all, total);
    }
    let (words, mut text) = (filter.split_whitespace().collect::<Vec<_>>(), String::new());
    let has_words = |row: &RowKey| {
        text.clear();
        describe(screen, row, &mut text);
        text.make_ascii_lowercase();
        words.iter().all(|word| text.contains(word))
    };
    (all.into_iter().filter(has_words).collect(), total)
}

/// By pool and number, so that a slot keeps its place.
fn slots(fleet: &Fleet, scope: Option<usize>) -> impl Iterator<Item = RowKey> {
    let pools = fleet.pools.iter().enumerate().filter(move |(index, _)| scope.is_none_or(|scope| scope == *index));
    pools.flat_map(|(index, pool)| pool.slots.keys().map(move |number| RowKey::Slot((index, *number))))
}

/// Those that have left the queue, the newest first: ids grow with time.
fn bots(fleet: &Fleet, scope: Option<usize>) -> impl Iterator<Item = RowKey> {
    let is_listed = move |status: &str, pool: Option<usize>| {
        !matches!(status, "queued" | "scheduled") && scope.is_none_or(|scope| pool == Some(scope))
    };
    let listed = fleet
        .bots
        .iter()
        .rev()
        .filter(move |(_, bot)| is_listed(fleet.bot_status(bot), bot.slot.map(|(pool, _)| pool)));
    listed.map(|(id, _)| RowKey::Bot(*id))
}

/// All bots of the platform, because the pools of a platform share its queue.
fn waiting(fleet: &Fleet, scope: Option<usize>) -> impl Iterator<Item = RowKey> {
    let platform = scope.and_then(|pool| fleet.pools.get(pool)).map(|pool| pool.platform.as_str());
    let listed = fleet.queue.iter().enumerate();
    let listed = listed.filter(move |(_, waiting)| platform.is_none_or(|platform| platform == waiting.platform));
    listed.map(|(index, waiting)| RowKey::Waiting(waiting.bot, index))
}

/// The text that a filter is compared with.
fn describe(screen: &Screen, row: &RowKey, text: &mut String) {
    let fleet = screen.shown();
    // Writing to a text cannot fail.
    let _ = match row {
        RowKey::AllPools => write!(text, "all"),
        RowKey::Pool(pool) => match fleet.pools.get(*pool) {
            Some(pool) => write!(text, "{} {}", pool.name, pool.platform),
            None => Ok(()),
        },
        RowKey::Slot(key) => {
            let slot = fleet.slot(*key);
            let _ = write!(text, "{}", fleet.slot_name(*key));
            if let Some(slot) = slot {
                let hot = if slot.hot { "hot" } else { "" };
                let _ = write!(text, " {} {hot}", fleet.slot_status(slot));
            }
            match fleet.bot_in(*key) {
                Some((id, bot)) => write!(text, " {id} {}", fleet.bot_status(bot).replace('_', " ")),
                None => Ok(()),
            }
        }
        RowKey::Bot(id) => match fleet.bots.get(id) {
            Some(bot) => {
                let slot = bot.slot.map(|slot| fleet.slot_name(slot)).unwrap_or_default();
                write!(text, "{id} {} {slot}", fleet.bot_status(bot).replace('_', " "))
            }
            None => Ok(()),
        },
        RowKey::Waiting(id, index) => match fleet.queue.get(*index) {
            Some(waiting) => write!(text, "{id} {} {}", waiting.platform, waiting.pool),
            None => Ok(()),
        },
        RowKey::Keeper(index) => match fleet.keepers.get(*index) {
            Some(keeper) => write!(text, "{} {}", keeper.name, keeper.error.as_deref().unwrap_or_default()),
            None => Ok(()),
        },
        RowKey::Attention(index) => match screen.attention.get(*index) {
            Some(item) => write!(text, "{} {} {}", item.kind.replace('_', " "), item.subject, item.message),
            None => Ok(()),
        },
    };
}
