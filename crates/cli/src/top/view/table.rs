//! Tables that fit any width: columns shrink to their least width, then the least important ones are left out. Only the
//! visible rows are made.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::theme::Theme;
use crate::top::rows::RowKey;
use crate::top::screen::List;

const GAP: u16 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub least: u16,
    pub most: u16,
    pub align_right: bool,
    /// Columns with the highest rank are left out first.
    pub rank: u8,
}

impl Column {
    pub const fn left(title: &'static str, least: u16, most: u16, rank: u8) -> Self {
        Self { title, least, most, align_right: false, rank }
    }

    pub const fn right(title: &'static str, width: u16, rank: u8) -> Self {
        Self { title, least: width, most: width, align_right: true, rank }
    }

    pub const fn up_to(self, most: u16) -> Self {
        Self { most, ..self }
    }
}

#[derive(Clone, Debug)]
pub enum Cell {
    Text(String, Style),
    /// Parts of a whole, each with its sign.
    Bar(Vec<Part>),
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Cell::Text(text.into(), Style::new())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    pub amount: usize,
    pub sign: char,
    pub style: Style,
}

/// The width of each column; 0 for those that are left out.
pub fn widths(columns: &[Column], available: u16) -> Vec<u16> {
    let mut shown: Vec<bool> = vec![true; columns.len()];
    let needed = |shown: &[bool]| {
        let widths = columns.iter().zip(shown).filter(|(_, shown)| **shown).map(|(column, _)| column.least + GAP);
        widths.sum::<u16>().saturating_sub(GAP)
    };
    while needed(&shown) > available && shown.iter().filter(|shown| **shown).count() > 1 {
        let candidates = columns.iter().enumerate().filter(|(index, _)| shown[*index]);
        let Some((least_important, _)) = candidates.max_by_key(|(_, column)| column.rank) else { break };
        shown[least_important] = false;
    }
    let mut left = available.saturating_sub(needed(&shown));
    let mut widths: Vec<u16> = columns
        .iter()
        .zip(&shown)
        .map(|(column, shown)| if *shown { column.least.min(available) } else { 0 })
        .collect();
    let mut by_rank: Vec<usize> = (0..columns.len()).filter(|index| shown[*index]).collect();
    by_rank.sort_by_key(|index| columns[*index].rank);
    for index in by_rank {
        let more = columns[index].most.saturating_sub(widths[index]).min(left);
        widths[index] += more;
        left -= more;
    }
    widths
}

/// How many letters of a bar each part gets. A part that is not empty gets at least one, if there is room.
pub fn bar_lengths(parts: &[Part], width: usize) -> Vec<usize> {
    let total: usize = parts.iter().map(|part| part.amount).sum();
    if total == 0 {
        return vec![0; parts.len()];
    }
    let mut lengths: Vec<usize> =
        parts.iter().map(|part| if part.amount == 0 { 0 } else { (part.amount * width / total).max(1) }).collect();
    // Rounding gives too many or too few: the largest part takes the difference.
    while lengths.iter().sum::<usize>() != width {
        let sum: usize = lengths.iter().sum();
        let Some(largest) = (0..parts.len()).max_by_key(|index| (lengths[*index], parts[*index].amount)) else { break };
        if sum < width {
            lengths[largest] += width - sum;
        } else if lengths[largest] > 1 {
            lengths[largest] -= 1;
        } else {
            break;
        }
    }
    lengths
}

/// Draws the titles and the rows that fit, and returns how many rows that were.
#[allow(clippy::too_many_arguments)]
pub fn draw(
    buffer: &mut Buffer,
    area: Rect,
    columns: &[Column],
    list: &mut List,
    cells: impl Fn(&RowKey) -> Vec<Cell>,
    has_focus: bool,
    theme: Theme,
) {
    if area.is_empty() {
        return;
    }
    let widths = widths(columns, area.width);
    let has_titles = area.height > 2;
    let mut y = area.y;
    if has_titles {
        let titles = columns.iter().map(|column| Cell::Text(column.title.to_owned(), theme.dim())).collect();
        draw_row(buffer, area, y, columns, &widths, titles);
        y += 1;
    }
    let height = usize::from(area.bottom().saturating_sub(y));
    list.scroll(height);
    for (index, row) in list.rows.iter().enumerate().skip(list.offset).take(height) {
        if index == list.selected {
            let style = if has_focus { theme.selected() } else { theme.marked() };
            buffer.set_style(Rect { y, height: 1, ..area }, style);
        }
        draw_row(buffer, area, y, columns, &widths, cells(row));
        y += 1;
    }
}

fn draw_row(buffer: &mut Buffer, area: Rect, y: u16, columns: &[Column], widths: &[u16], cells: Vec<Cell>) {
    let mut x = area.x;
    for ((column, width), cell) in columns.iter().zip(widths).zip(cells) {
        if *width == 0 {
            continue;
        }
        match cell {
            Cell::Text(text, style) => {
                let length = u16::try_from(Span::raw(&text).width()).unwrap_or(u16::MAX);
                let indent = if column.align_right { width.saturating_sub(length) } else { 0 };
                let text = if length > *width { shorten(&text, usize::from(*width)) } else { text };
                buffer.set_stringn(x + indent, y, text, usize::from(*width - indent), style);
            }
            Cell::Bar(parts) => {
                let lengths = bar_lengths(&parts, usize::from(*width));
                let mut at = x;
                for (part, length) in parts.iter().zip(lengths) {
                    let text: String = std::iter::repeat_n(part.sign, length).collect();
                    let room = usize::from((x + width).saturating_sub(at));
                    // A bar that is reversed with its row would show the opposite.
                    let style = part.style.remove_modifier(Modifier::REVERSED);
                    (at, _) = buffer.set_stringn(at, y, text, room, style);
                }
            }
        }
        x = (x + width + GAP).min(area.right());
    }
}

/// Cuts a text, and says so. An id is cut without a mark: its beginning is a name for it.
fn shorten(text: &str, width: usize) -> String {
    let is_id = text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id || width < 4 {
        return text.chars().take(width).collect();
    }
    let mut cut = String::new();
    for letter in text.chars() {
        if Span::raw(&cut).width() + Span::raw(letter.to_string()).width() >= width {
            break;
        }
        cut.push(letter);
    }
    cut.push('…');
    cut
}

/// The same as text, without colours, for pipes. Each column is as wide as its widest cell.
pub fn plain(columns: &[Column], rows: Vec<Vec<Cell>>) -> Vec<String> {
    let is_text = |column: usize| rows.iter().all(|row| matches!(row.get(column), Some(Cell::Text(..)) | None));
    let shown: Vec<usize> = (0..columns.len()).filter(|column| is_text(*column)).collect();
    let text = |row: &[Cell], column: usize| match row.get(column) {
        Some(Cell::Text(text, _)) => text.clone(),
        _ => String::new(),
    };
    let mut lines: Vec<Vec<String>> = vec![shown.iter().map(|column| columns[*column].title.to_owned()).collect()];
    lines.extend(rows.iter().map(|row| shown.iter().map(|column| text(row, *column)).collect()));
    let width = |at: usize| lines.iter().map(|line| Span::raw(&line[at]).width()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..shown.len()).map(width).collect();
    let aligned = |line: Vec<String>| {
        let cells = line.into_iter().enumerate().map(|(at, text)| {
            let space = " ".repeat(widths[at].saturating_sub(Span::raw(&text).width()));
            if columns[shown[at]].align_right { format!("{space}{text}") } else { format!("{text}{space}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.into_iter().map(aligned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] =
        [Column::left("NAME", 6, 20, 0), Column::right("FOR", 5, 1), Column::left("NOTE", 8, 50, 2)];

    #[test]
    fn columns_shrink_and_then_the_least_important_ones_go() {
        assert_eq!(widths(&COLUMNS, 100), [20, 5, 50]);
        assert_eq!(widths(&COLUMNS, 40), [20, 5, 11]);
        assert_eq!(widths(&COLUMNS, 23), [6, 5, 8]);
        assert_eq!(widths(&COLUMNS, 22), [15, 5, 0]);
        assert_eq!(widths(&COLUMNS, 12), [12, 0, 0]);
        assert_eq!(widths(&COLUMNS, 3), [3, 0, 0]);
    }

    #[test]
    fn a_bar_is_full_and_shows_every_part_that_is_not_empty() {
        let part = |amount| Part { amount, sign: 'x', style: Style::new() };
        let lengths = |amounts: &[usize], width| {
            bar_lengths(&amounts.iter().map(|amount| part(*amount)).collect::<Vec<_>>(), width)
        };
        assert_eq!(lengths(&[10, 10], 10), [5, 5]);
        assert_eq!(lengths(&[9_999, 1, 0], 10), [9, 1, 0]);
        assert_eq!(lengths(&[1, 1, 1], 10).iter().sum::<usize>(), 10);
        assert_eq!(lengths(&[0, 0], 10), [0, 0]);
        assert_eq!(lengths(&[1, 1, 1], 2), [1, 1, 1], "the last one is cut");
    }
}
