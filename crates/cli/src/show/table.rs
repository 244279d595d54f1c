//! Rows in columns. In a terminal a table is never wider than the window: columns that matter less are left out, and
//! long texts are cut. In a pipe everything is there.

use comfy_table::{Cell, ContentArrangement, Row, presets};

use super::{Tone, clean};

/// Between columns.
const GAP: usize = 2;
/// A column that may be cut keeps so much.
const SHORTEST: usize = 12;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    /// Whether its texts may be cut.
    can_shrink: bool,
    /// Of the columns that may be left out, the one with the highest number goes first. 0 stays.
    rank: u8,
    is_right: bool,
}

impl Column {
    pub const fn new(title: &'static str) -> Self {
        Self { title, can_shrink: false, rank: 0, is_right: false }
    }

    /// May be left out.
    pub const fn rank(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// May be cut.
    pub const fn shrinks(self) -> Self {
        Self { can_shrink: true, ..self }
    }

    pub const fn right(self) -> Self {
        Self { is_right: true, ..self }
    }
}

#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<(String, Tone)>) {
        self.rows.push(cells.into_iter().map(|(text, tone)| (clean(&text), tone)).collect());
    }

    fn width_of(&self, column: usize) -> usize {
        let texts = self.rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| width(text));
        texts.chain([width(self.columns[column].title)]).max().unwrap_or(0)
    }

    /// The columns that fit.
    fn fitting(&self, available: usize) -> Vec<usize> {
        let mut kept: Vec<usize> = (0..self.columns.len()).collect();
        loop {
            let needed: usize = kept
                .iter()
                .map(|&index| {
                    let width = self.width_of(index);
                    if self.columns[index].can_shrink { width.min(SHORTEST) } else { width }
                })
                .sum::<usize>()
                + GAP * kept.len().saturating_sub(1);
            let least = kept.iter().copied().filter(|&index| self.columns[index].rank > 0);
            let least = least.max_by_key(|&index| self.columns[index].rank);
            match least {
                Some(least) if needed > available => kept.retain(|&index| index != least),
                _ => return kept,
            }
        }
    }

    pub fn render(&self, available: Option<u16>, has_color: bool) -> String {
        let kept = match available {
            Some(width) => self.fitting(usize::from(width)),
            None => (0..self.columns.len()).collect(),
        };
        let widths = self.widths(&kept, available.map(usize::from));
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.force_no_tty();
        if has_color {
            table.enforce_styling();
        }
        let header = kept
            .iter()
            .zip(&widths)
            .map(|(&index, &width)| painted(&cut(self.columns[index].title, width), Tone::Quiet, has_color));
        table.set_header(header.collect::<Vec<_>>());
        for row in &self.rows {
            let cells = kept.iter().zip(&widths).map(|(&index, &width)| {
                let (text, tone) = row.get(index).cloned().unwrap_or_default();
                painted(&cut(&text, width), tone, has_color)
            });
            table.add_row(Row::from(cells.collect::<Vec<_>>()));
        }
        for (place, &index) in kept.iter().enumerate() {
            if let Some(column) = table.column_mut(place) {
                let gap = if place + 1 == kept.len() { 0 } else { GAP };
                column.set_padding((0, u16::try_from(gap).unwrap_or(0)));
                if self.columns[index].is_right {
                    column.set_cell_alignment(comfy_table::CellAlignment::Right);
                }
            }
        }
        table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// How wide each column is. What is too much is taken from the widest that may be cut.
    fn widths(&self, kept: &[usize], available: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = kept.iter().map(|&index| self.width_of(index)).collect();
        let Some(available) = available else { return widths };
        let gaps = GAP * kept.len().saturating_sub(1);
        loop {
            let too_much = (widths.iter().sum::<usize>() + gaps).saturating_sub(available);
            if too_much == 0 {
                return widths;
            }
            // In a window that is too narrow for anything, ids and names are cut as well.
            let shrinkable = |all: bool| {
                (0..kept.len())
                    .filter(|&place| {
                        if all {
                            widths[place] > 4
                        } else {
                            self.columns[kept[place]].can_shrink && widths[place] > SHORTEST
                        }
                    })
                    .max_by_key(|&place| widths[place])
            };
            match shrinkable(false).or_else(|| shrinkable(true)) {
                Some(place) => widths[place] -= 1,
                None => return widths,
            }
        }
    }
}

fn painted(text: &str, tone: Tone, has_color: bool) -> Cell {
    use comfy_table::{Attribute, Color};

    let cell = Cell::new(text);
    if !has_color {
        return cell;
    }
    match tone {
        Tone::Plain => cell,
        Tone::Good => cell.fg(Color::DarkGreen),
        Tone::Busy => cell.fg(Color::DarkCyan),
        Tone::Warning => cell.fg(Color::DarkYellow),
        Tone::Bad => cell.fg(Color::DarkRed),
        Tone::Quiet => cell.add_attribute(Attribute::Dim),
        Tone::Strong => cell.add_attribute(Attribute::Bold),
    }
}

/// Columns of a terminal that the text takes.
fn width(text: &str) -> usize {
    ratatui::text::Line::raw(text).width()
}

/// The text, cut to so many columns.
fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if width(&kept) + 1 > columns {
            kept.pop();
            break;
        }
    }
    kept.push('…');
    kept
}

#[cfg(test)]
mod tests {
    use super::{Column, Table, Tone, width};

    fn table() -> Table {
        let mut table = Table::new(&[
            Column::new("BOT"),
            Column::new("STATUS"),
            Column::new("SLOT").rank(1),
            Column::new("MEETING").rank(2),
            Column::new("ERROR").shrinks(),
        ]);
        table.row(
            [
                "0197a3f4-1c2d",
                "failed",
                "pool-google-meet-001",
                "abc-defg-hij",
                "日本 the container exited with code 137",
            ]
            .map(|text| (text.to_owned(), Tone::Plain))
            .to_vec(),
        );
        table
    }

    #[test]
    fn a_table_is_never_wider_than_the_window() {
        for columns in 20..140 {
            for line in table().render(Some(columns), false).lines() {
                assert!(width(line) <= usize::from(columns), "{columns}: {line}");
            }
        }
    }

    #[test]
    fn what_matters_less_goes_first_and_a_pipe_has_everything() {
        let narrow = table().render(Some(60), false);
        assert!(narrow.contains("pool-google-meet-001") && !narrow.contains("MEETING"), "{narrow}");
        assert!(narrow.contains('…'), "{narrow}");
        let piped = table().render(None, false);
        assert!(piped.contains("exited with code 137") && piped.contains("abc-defg-hij"), "{piped}");
        assert!(!piped.contains('\u{1b}'));
        assert!(table().render(Some(200), true).contains('\u{1b}'));
    }
}
