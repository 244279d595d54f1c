//! Slots as a grid: one sign for each, pool by pool. Below it is the selected slot in words.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use super::panes::slot_words;
use super::theme::{Theme, slot_sign};
use crate::top::message::SlotKey;
use crate::top::rows::RowKey;
use crate::top::screen::{Pane, Screen};
use crate::top::text::{duration, words};

/// A line of the grid: the name of a pool, or slots by their index in the rows.
#[derive(Debug, PartialEq, Eq)]
enum GridLine {
    Pool(usize),
    Slots(std::ops::Range<usize>),
}

pub fn draw(buffer: &mut Buffer, area: Rect, screen: &mut Screen, has_focus: bool, theme: Theme) {
    if area.is_empty() {
        return;
    }
    let rows = std::mem::take(&mut screen.list_mut(Pane::Slots).rows);
    let legend = u16::from(area.height >= 6);
    let height = usize::from(area.height.saturating_sub(1 + legend)).max(1);
    // A space between slots, where they fit with it.
    let wide = usize::from(area.width).div_ceil(2).max(1);
    let narrow = usize::from(area.width).max(1);
    let (columns, gap) = if lines(&rows, wide).len() <= height { (wide, 2) } else { (narrow, 1) };
    let lines = lines(&rows, columns);
    screen.grid_columns = columns;
    let selected = screen.list(Pane::Slots).selected;
    let line = lines.iter().position(|line| matches!(line, GridLine::Slots(slots) if slots.contains(&selected)));
    let list = screen.list_mut(Pane::Slots);
    list.height = height;
    let (line, last) = (line.unwrap_or(0), lines.len().saturating_sub(height));
    let lowest = (line + 1).saturating_sub(height);
    // The name above the first slots is shown with them.
    list.offset = list.offset.clamp(lowest, line.saturating_sub(1).max(lowest)).min(last);
    let offset = list.offset;
    for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(offset).take(height)) {
        match line {
            GridLine::Pool(pool) => {
                let name = screen.shown().pools.get(*pool).map_or("", |pool| pool.name.as_str());
                buffer.set_stringn(area.x, y, name, usize::from(area.width), theme.dim());
            }
            GridLine::Slots(slots) => {
                for (x, index) in (area.x..area.right()).step_by(gap).zip(slots.clone()) {
                    let Some(RowKey::Slot(key)) = rows.get(index) else { continue };
                    draw_slot(buffer, (x, y), screen, *key, index == selected && has_focus, theme);
                }
            }
        }
    }
    let last_line = Rect { y: area.bottom() - 1, height: 1, ..area };
    if let Some(RowKey::Slot(key)) = rows.get(selected) {
        describe(screen, *key, theme).render(last_line, buffer);
    }
    if legend == 1 {
        self::legend(theme).render(Rect { y: area.bottom() - 2, ..last_line }, buffer);
    }
    screen.list_mut(Pane::Slots).rows = rows;
}

/// The lines of the grid. The name of a pool is left out where there is only one.
fn lines(rows: &[RowKey], columns: usize) -> Vec<GridLine> {
    let pool_of = |row: &RowKey| match row {
        RowKey::Slot((pool, _)) => *pool,
        _ => usize::MAX,
    };
    let has_many = rows.first().map(pool_of) != rows.last().map(pool_of);
    let (mut lines, mut start) = (Vec::new(), 0);
    for slots in rows.chunk_by(|one, two| pool_of(one) == pool_of(two)) {
        if has_many {
            lines.push(GridLine::Pool(pool_of(&slots[0])));
        }
        let end = start + slots.len();
        while start < end {
            let next = (start + columns).min(end);
            lines.push(GridLine::Slots(start..next));
            start = next;
        }
    }
    lines
}

fn draw_slot(buffer: &mut Buffer, at: (u16, u16), screen: &Screen, key: SlotKey, is_selected: bool, theme: Theme) {
    let Some(slot) = screen.shown().slot(key) else { return };
    let status = screen.shown().slot_status(slot);
    let Some(cell) = buffer.cell_mut(at) else { return };
    cell.set_char(slot_sign(status, slot.hot)).set_style(theme.slot(status, slot.hot));
    if is_selected {
        // A full block looks the same when it is reversed.
        cell.set_char('◆').set_style(theme.selected());
    }
}

fn describe(screen: &Screen, key: SlotKey, theme: Theme) -> Line<'static> {
    let fleet = screen.shown();
    let Some(slot) = fleet.slot(key) else { return Line::default() };
    let status = fleet.slot_status(slot);
    let mut line = Line::from(vec![
        Span::styled(format!("◆ {} ", fleet.slot_name(key)), theme.bold()),
        Span::styled(slot_words(status, slot.hot), theme.slot(status, slot.hot)),
        Span::raw(format!(" for {}", duration(screen.shown_now() - slot.since))),
    ]);
    if let Some((id, bot)) = fleet.bot_in(key) {
        let status = fleet.bot_status(bot);
        line.push_span(Span::raw(format!("  {} ", &id.to_string()[..13])));
        line.push_span(Span::styled(words(status), theme.bot(status)));
    }
    line
}

fn legend(theme: Theme) -> Line<'static> {
    let signs =
        [("busy", false), ("idle", true), ("idle", false), ("creating", false), ("error", false), ("draining", false)];
    let mut line = Line::default();
    for (status, is_hot) in signs {
        line.push_span(Span::styled(slot_sign(status, is_hot).to_string(), theme.slot(status, is_hot)));
        let name = if is_hot { "hot" } else { status };
        line.push_span(Span::styled(format!(" {name}  "), theme.dim()));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_grid_end_with_the_pool_and_name_it_where_there_are_several() {
        let slots = |pool: usize, count: i64| (1..=count).map(move |number| RowKey::Slot((pool, number)));
        let one: Vec<RowKey> = slots(0, 5).collect();
        assert_eq!(lines(&one, 4), [GridLine::Slots(0..4), GridLine::Slots(4..5)]);
        let two: Vec<RowKey> = slots(0, 5).chain(slots(1, 1)).collect();
        let expected =
            [GridLine::Pool(0), GridLine::Slots(0..4), GridLine::Slots(4..5), GridLine::Pool(1), GridLine::Slots(5..6)];
        assert_eq!(lines(&two, 4), expected);
        assert_eq!(lines(&[], 4), []);
    }
}
