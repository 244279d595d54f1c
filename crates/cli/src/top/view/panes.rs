//! The columns and cells of the panes that are tables.

use uuid::Uuid;

use super::table::{Cell, Column, Part};
use super::theme::{NO_SLOT, Theme, slot_sign};
use crate::top::message::SlotKey;
use crate::top::rows::RowKey;
use crate::top::screen::{Pane, Screen};
use crate::top::text::{duration, milliseconds, words};

pub fn columns(pane: Pane) -> &'static [Column] {
    match pane {
        Pane::Pools => {
            const {
                &[
                    Column::left("POOL", 12, 18, 0),
                    Column::left("PLATFORM", 11, 11, 7),
                    Column::left("PROVIDER", 8, 8, 8),
                    Column::right("BUSY", 5, 2),
                    Column::right("IDLE", 5, 6),
                    Column::right("ERROR", 5, 5),
                    Column::right("SLOTS", 8, 1).up_to(11),
                    Column::right("QUEUE", 5, 4),
                    Column::left("", 10, 60, 3),
                ]
            }
        }
        Pane::Slots => {
            const {
                &[
                    Column::left("SLOT", 22, 30, 0),
                    Column::left("STATUS", 12, 12, 1),
                    Column::right("FOR", 7, 2),
                    Column::left("BOT", 13, 36, 3),
                    Column::left("BOT STATUS", 18, 18, 4),
                ]
            }
        }
        Pane::Bots => {
            const {
                &[
                    Column::left("BOT", 13, 36, 0),
                    Column::left("STATUS", 18, 18, 1),
                    Column::right("FOR", 7, 2),
                    Column::right("AGE", 7, 4),
                    Column::left("SLOT", 22, 40, 3),
                ]
            }
        }
        Pane::Queue => {
            const {
                &[
                    Column::right("POS", 4, 1),
                    Column::left("BOT", 13, 36, 0),
                    Column::left("PLATFORM", 11, 11, 4),
                    Column::right("WAITS", 7, 2),
                    Column::right("TIMEOUT IN", 10, 3),
                    Column::right("PRIORITY", 8, 6),
                    Column::left("POOL", 10, 24, 5),
                ]
            }
        }
        Pane::Keepers => {
            const {
                &[
                    Column::left("KEEPER", 12, 14, 0),
                    Column::right("LAST RUN", 10, 1),
                    Column::right("TOOK", 6, 3),
                    Column::right("NEXT IN", 7, 4),
                    Column::left("ERROR", 12, 200, 2),
                ]
            }
        }
        Pane::Attention => {
            const {
                &[
                    Column::left("SEVERITY", 8, 8, 1),
                    Column::left("WHAT", 18, 20, 4),
                    Column::right("SINCE", 7, 3),
                    Column::right("ACTS IN", 7, 2),
                    Column::left("", 40, 200, 0),
                ]
            }
        }
    }
}

/// The cells of a row. A row that is gone has none.
pub fn cells(screen: &Screen, row: &RowKey, theme: Theme) -> Vec<Cell> {
    let cells = match row {
        RowKey::AllPools => Some(pool(screen, None, theme)),
        RowKey::Pool(index) => Some(pool(screen, Some(*index), theme)),
        RowKey::Slot(key) => slot(screen, *key, theme),
        RowKey::Bot(id) => bot(screen, *id, theme),
        RowKey::Waiting(_, index) => waiting(screen, *index, theme),
        RowKey::Keeper(index) => keeper(screen, *index, theme),
        RowKey::Attention(index) => attention(screen, *index, theme),
    };
    cells.unwrap_or_default()
}

fn pool(screen: &Screen, index: Option<usize>, theme: Theme) -> Vec<Cell> {
    let fleet = screen.shown();
    let pools = || fleet.pools.iter().enumerate().filter(|(at, _)| index.is_none_or(|index| index == *at));
    let settings = || pools().filter_map(|(_, pool)| screen.settings.get(&pool.name));
    let counts = fleet.slot_counts(index);
    let count = |status: &str| counts.iter().find(|(known, _)| *known == status).map_or(0, |(_, count)| *count);
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    let most: usize = settings().map(|settings| settings.max_slots).sum();
    let hot = fleet.hot_idle(index);
    let one = index.and_then(|index| fleet.pools.get(index));
    let queued = match one {
        Some(pool) => fleet.queue.iter().filter(|waiting| waiting.pool == pool.name).count(),
        None => fleet.queue.len(),
    };
    let errors = count("error");
    let set = one.and_then(|pool| screen.settings.get(&pool.name));
    let name = match (one, set) {
        // Its provider refuses requests for a while.
        (Some(pool), Some(set)) if set.is_closed => Cell::Text(format!("{} closed", pool.name), theme.bad()),
        (Some(pool), _) => Cell::text(&pool.name),
        (None, _) => Cell::text("all pools"),
    };
    let part = |status: &str, is_hot: bool, amount: usize| Part {
        amount,
        sign: slot_sign(status, is_hot),
        style: theme.slot(status, is_hot),
    };
    let mut bar = vec![
        part("busy", false, count("busy")),
        part("creating", false, count("creating")),
        part("draining", false, count("draining")),
        part("error", false, errors),
        part("idle", true, hot),
        part("idle", false, count("idle").saturating_sub(hot)),
    ];
    bar.push(Part { amount: most.saturating_sub(total), sign: NO_SLOT, style: theme.dim() });
    let slots = if most > 0 { format!("{total}/{most}") } else { total.to_string() };
    vec![
        name,
        Cell::text(one.map_or("", |pool| &pool.platform)),
        Cell::text(set.map_or("", |set| &set.provider)),
        Cell::text(count("busy").to_string()),
        Cell::text(count("idle").to_string()),
        Cell::Text(errors.to_string(), if errors > 0 { theme.bad() } else { theme.plain() }),
        Cell::text(slots),
        Cell::Text(queued.to_string(), if queued > 0 { theme.warning() } else { theme.plain() }),
        Cell::Bar(bar),
    ]
}

/// The status of a slot in words, with what distinguishes a hot one.
pub fn slot_words(status: &str, is_hot: bool) -> String {
    if is_hot && status == "idle" { "idle, hot".to_owned() } else { words(status) }
}

fn slot(screen: &Screen, key: SlotKey, theme: Theme) -> Option<Vec<Cell>> {
    let fleet = screen.shown();
    let slot = fleet.slot(key)?;
    let (status, bot) = (fleet.slot_status(slot), fleet.bot_in(key));
    Some(vec![
        Cell::text(fleet.slot_name(key)),
        Cell::Text(slot_words(status, slot.hot), theme.slot(status, slot.hot)),
        Cell::text(duration(screen.shown_now() - slot.since)),
        Cell::text(bot.map(|(id, _)| id.to_string()).unwrap_or_default()),
        match bot {
            Some((_, bot)) => Cell::Text(words(fleet.bot_status(bot)), theme.bot(fleet.bot_status(bot))),
            None => Cell::text(""),
        },
    ])
}

fn bot(screen: &Screen, id: Uuid, theme: Theme) -> Option<Vec<Cell>> {
    let (fleet, now) = (screen.shown(), screen.shown_now());
    let bot = fleet.bots.get(&id)?;
    let status = fleet.bot_status(bot);
    // The first part of an id is the time of the request.
    let asked_at = id.get_timestamp().filter(|_| id.get_version_num() == 7);
    let asked_at = asked_at.and_then(|time| i64::try_from(time.to_unix().0).ok());
    Some(vec![
        Cell::text(id.to_string()),
        Cell::Text(words(status), theme.bot(status)),
        Cell::text(duration(now - bot.since)),
        Cell::text(asked_at.map(|at| duration(now - at)).unwrap_or_default()),
        Cell::text(bot.slot.map(|slot| fleet.slot_name(slot)).unwrap_or_default()),
    ])
}

fn waiting(screen: &Screen, index: usize, theme: Theme) -> Option<Vec<Cell>> {
    let (waiting, now) = (screen.shown().queue.get(index)?, screen.shown_now());
    let left = waiting.timeout_at - now;
    Some(vec![
        Cell::text(waiting.position.to_string()),
        Cell::text(waiting.bot.to_string()),
        Cell::text(&waiting.platform),
        Cell::text(duration(now - waiting.queued_at)),
        Cell::Text(duration(left), if left < 30 { theme.warning() } else { theme.plain() }),
        Cell::text(waiting.priority.to_string()),
        Cell::text(&waiting.pool),
    ])
}

fn keeper(screen: &Screen, index: usize, theme: Theme) -> Option<Vec<Cell>> {
    let (keeper, now) = (screen.shown().keepers.get(index)?, screen.shown_now());
    let next = keeper.next_run.map(|at| if at < now { "now".to_owned() } else { duration(at - now) });
    Some(vec![
        Cell::text(&keeper.name),
        Cell::text(keeper.last_run.map_or("never".to_owned(), |at| format!("{} ago", duration(now - at)))),
        Cell::text(keeper.took_ms.map(milliseconds).unwrap_or_default()),
        Cell::text(next.unwrap_or_default()),
        match &keeper.error {
            Some(error) => Cell::Text(error.clone(), theme.bad()),
            None => Cell::Text("none".to_owned(), theme.dim()),
        },
    ])
}

fn attention(screen: &Screen, index: usize, theme: Theme) -> Option<Vec<Cell>> {
    let (item, now) = (screen.attention.get(index)?, screen.now);
    let (severity, style) = if item.is_critical { ("critical", theme.bad()) } else { ("warning", theme.warning()) };
    Some(vec![
        Cell::Text(severity.to_owned(), style),
        Cell::text(words(&item.kind)),
        Cell::text(item.since.map(|at| duration(now - at)).unwrap_or_default()),
        Cell::text(item.deadline_at.map(|at| duration(at - now)).unwrap_or_default()),
        Cell::text(&item.message),
    ])
}
