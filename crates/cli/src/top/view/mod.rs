//! Draws the screen. A wide terminal shows all panes, a smaller one the pools and the chosen pane, and the smallest
//! only the chosen pane. Only visible rows are drawn.
//!
//! - this file: where the panes are
//! - [`header`]: the lines at the top
//! - [`panes`]: the columns and cells of the panes
//! - [`grid`]: slots as a grid
//! - [`overlay`]: the explanation, and the help
//! - [`table`]: tables that fit any width
//! - [`theme`]: colours and signs

mod grid;
mod header;
mod overlay;
pub mod panes;
pub mod table;
pub mod theme;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Borders, Padding, Paragraph, Widget};

use super::screen::{Mode, Pane, Screen};
use theme::Theme;

/// From this size on all panes are shown.
const WIDE: (u16, u16) = (120, 30);

/// Draws everything into the area.
pub fn draw(buffer: &mut Buffer, area: Rect, screen: &mut Screen, theme: Theme) {
    if area.is_empty() {
        return;
    }
    let header_height = match area.height {
        0..6 => 1,
        6..12 => 2,
        12..18 => 3,
        _ => 5,
    };
    let lines = header::lines(screen, theme, header_height);
    for (y, line) in (area.y..).zip(&lines) {
        line.render(Rect { y, height: 1, ..area }, buffer);
    }
    let used = u16::try_from(lines.len()).unwrap_or(0);
    let footer = u16::from(area.height >= 6);
    let body = Rect { y: area.y + used, height: area.height.saturating_sub(used + footer), ..area };
    for (pane, rect) in layout(screen, body) {
        let style = if area.width >= WIDE.0 && area.height >= WIDE.1 { Frame::Box } else { Frame::Line };
        draw_pane(buffer, rect, screen, pane, style, theme);
    }
    if footer == 1 {
        draw_footer(buffer, Rect { y: area.bottom() - 1, height: 1, ..area }, screen, theme);
    }
    match &mut screen.mode {
        Mode::Help => overlay::help(buffer, area, theme),
        Mode::Detail(detail) => overlay::detail(buffer, area, detail, theme),
        Mode::Normal | Mode::Filter => {}
    }
}

/// Where each visible pane is.
fn layout(screen: &Screen, body: Rect) -> Vec<(Pane, Rect)> {
    let rows = |pane: Pane| u16::try_from(screen.list(pane).rows.len()).unwrap_or(u16::MAX);
    // A frame and the titles of the columns.
    let wanted = |pane: Pane, most: u16| rows(pane).saturating_add(3).clamp(4, most.max(4));
    if body.width >= WIDE.0 && body.height >= WIDE.1 - 6 {
        let left = body.width / 2;
        let mut left = Rect { width: left, ..body };
        let mut right = Rect { x: body.x + left.width, width: body.width - left.width, ..body };
        let pools = wanted(Pane::Pools, body.height / 3);
        let attention = wanted(Pane::Attention, body.height / 4);
        let keepers = wanted(Pane::Keepers, body.height / 3);
        let mut panes = vec![(Pane::Pools, cut_top(&mut left, pools)), (Pane::Keepers, cut_bottom(&mut left, keepers))];
        panes.push((Pane::Slots, left));
        panes.push((Pane::Attention, cut_bottom(&mut right, attention)));
        let queue = wanted(Pane::Queue, right.height / 2);
        panes.push((Pane::Queue, cut_bottom(&mut right, queue)));
        panes.push((Pane::Bots, right));
        return panes;
    }
    let mut body = body;
    let pools = rows(Pane::Pools).saturating_add(2).min(body.height / 3);
    if screen.focus != Pane::Pools && (body.height < 12 || pools < 4) {
        return vec![(screen.focus, body)];
    }
    if body.height < 12 {
        return vec![(Pane::Pools, body)];
    }
    let top = cut_top(&mut body, pools.max(4));
    let below = if screen.focus == Pane::Pools { Pane::Slots } else { screen.focus };
    vec![(Pane::Pools, top), (below, body)]
}

fn cut_top(from: &mut Rect, height: u16) -> Rect {
    let height = height.min(from.height);
    let cut = Rect { height, ..*from };
    (from.y, from.height) = (from.y + height, from.height - height);
    cut
}

fn cut_bottom(from: &mut Rect, height: u16) -> Rect {
    let height = height.min(from.height);
    from.height -= height;
    Rect { y: from.bottom(), height, ..*from }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frame {
    /// A box around the pane.
    Box,
    /// Only a line above it.
    Line,
}

fn draw_pane(buffer: &mut Buffer, area: Rect, screen: &mut Screen, pane: Pane, frame: Frame, theme: Theme) {
    if area.is_empty() {
        return;
    }
    let has_focus = screen.focus == pane;
    let title = pane_title(screen, pane, has_focus, theme);
    let borders = if frame == Frame::Box { Borders::ALL } else { Borders::TOP };
    let border_style = if has_focus { theme.focus() } else { theme.dim() };
    let block = Block::new().borders(borders).border_type(BorderType::Rounded).border_style(border_style).title(title);
    let block = if frame == Frame::Box { block.padding(Padding::horizontal(1)) } else { block };
    let inner = block.inner(area);
    block.render(area, buffer);
    if screen.list(pane).rows.is_empty() {
        let text = empty_text(screen, pane);
        Paragraph::new(Line::styled(text, theme.dim())).render(inner, buffer);
        return;
    }
    if pane == Pane::Slots && screen.is_grid {
        grid::draw(buffer, inner, screen, has_focus, theme);
        return;
    }
    let mut list = std::mem::take(screen.list_mut(pane));
    let cells = |row: &_| panes::cells(screen, row, theme);
    table::draw(buffer, inner, panes::columns(pane), &mut list, cells, has_focus, theme);
    *screen.list_mut(pane) = list;
}

fn pane_title(screen: &Screen, pane: Pane, has_focus: bool, theme: Theme) -> Line<'static> {
    let list = screen.list(pane);
    let style = if has_focus { theme.focus() } else { theme.bold() };
    let mut title = Line::from(vec![
        Span::styled(format!(" {} ", pane as usize + 1), theme.dim()),
        Span::styled(format!("{} ", pane.title()), style),
    ]);
    let count = match pane {
        Pane::Pools => screen.shown().pools.len(),
        _ => list.total,
    };
    let count = match (&screen.scope, pane) {
        (Some(pool), Pane::Slots | Pane::Bots | Pane::Queue) => format!("{count} of {pool} "),
        _ => format!("{count} "),
    };
    title.push_span(Span::raw(count));
    if !list.filter.is_empty() {
        title.push_span(Span::styled(format!("/{} → {} ", list.filter, list.rows.len()), theme.warning()));
    }
    title
}

fn empty_text(screen: &Screen, pane: Pane) -> String {
    let list = screen.list(pane);
    if !list.filter.is_empty() {
        return format!("No row has {}", list.filter);
    }
    match pane {
        Pane::Pools => "There are no pools",
        Pane::Slots => "There are no slots",
        Pane::Bots => "No bot runs",
        Pane::Queue => "No bot waits for a slot",
        Pane::Keepers => "No keeper has run",
        Pane::Attention => "Nothing needs attention",
    }
    .to_owned()
}

fn draw_footer(buffer: &mut Buffer, area: Rect, screen: &Screen, theme: Theme) {
    if matches!(screen.mode, Mode::Filter) {
        let filter = &screen.list(screen.focus).filter;
        let line = Line::from(vec![
            Span::styled(format!("/{filter}█"), theme.bold()),
            Span::styled("  enter keep  esc remove", theme.dim()),
        ]);
        line.render(area, buffer);
        return;
    }
    let keys = [
        ("q", "quit"),
        ("?", "help"),
        ("tab", "pane"),
        ("↑↓", "move"),
        ("enter", "explain"),
        ("/", "filter"),
        ("p", "pause"),
        ("v", "grid/list"),
    ];
    let mut line = Line::default();
    for (key, does) in keys {
        line.push_span(Span::styled(key, theme.bold()));
        line.push_span(Span::styled(format!(" {does}  "), theme.dim()));
    }
    line.render(area, buffer);
}

/// The whole picture as text, for pipes: everything in the header, and the panes as tables.
pub fn plain_header(screen: &Screen, theme: Theme) -> Vec<String> {
    let lines = header::lines(screen, theme, 5);
    lines.iter().map(|line| line.to_string().trim_end().to_owned()).collect()
}

#[cfg(test)]
pub mod tests;
