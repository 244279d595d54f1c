//! The windows over the panes: the explanation of a bot or a slot, and the help.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Paragraph, Widget};

use super::theme::Theme;
use crate::top::explanation::ExplanationLine;
use crate::top::input::KEYS;
use crate::top::screen::Detail;
use crate::top::text::wrap;

/// The largest size of an explanation.
const WIDTH: u16 = 110;
const HEIGHT: u16 = 40;

/// A window in the middle, or everything where there is little room.
fn window(area: Rect, width: u16, height: u16) -> Rect {
    let width = if area.width < 60 { area.width } else { width.min(area.width - 4) };
    let height = if area.height < 16 { area.height } else { height.min(area.height - 2) };
    Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height }
}

fn frame(buffer: &mut Buffer, area: Rect, title: String, bottom: &'static str, theme: Theme) -> Rect {
    Clear.render(area, buffer);
    let block = Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(theme.focus())
        .title(Span::styled(format!(" {title} "), theme.bold()))
        .title_bottom(Span::styled(bottom, theme.dim()));
    let inner = block.inner(area);
    block.render(area, buffer);
    Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner }
}

pub fn detail(buffer: &mut Buffer, area: Rect, detail: &mut Detail, theme: Theme) {
    // A frame and a space on each side.
    let width = usize::from(window(area, WIDTH, HEIGHT).width.saturating_sub(4));
    let mut lines: Vec<Line<'_>> = Vec::new();
    if let Some(problem) = &detail.problem {
        lines.extend(wrap(problem, width).into_iter().map(|line| Line::styled(line, theme.bad())));
    }
    if detail.is_loading && detail.lines.is_empty() {
        lines.push(Line::styled("The server is asked …", theme.dim()));
    }
    for line in &detail.lines {
        match line {
            ExplanationLine::Heading(text) => {
                lines.push(Line::default());
                lines.push(Line::styled(text.clone(), theme.focus()));
            }
            ExplanationLine::Text(text) => lines.extend(wrap(text, width).into_iter().map(Line::raw)),
        }
    }
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX);
    let bottom = if detail.subject.is_some() { " esc close  r ask again  ↑↓ scroll " } else { " esc close " };
    let inner = frame(buffer, window(area, WIDTH, height.min(HEIGHT)), detail.title.clone(), bottom, theme);
    detail.scroll = detail.scroll.min(lines.len().saturating_sub(usize::from(inner.height)));
    let scroll = u16::try_from(detail.scroll).unwrap_or(u16::MAX);
    Paragraph::new(lines).scroll((scroll, 0)).render(inner, buffer);
}

pub fn help(buffer: &mut Buffer, area: Rect, theme: Theme) {
    let height = u16::try_from(KEYS.len() + 2).unwrap_or(u16::MAX);
    let inner = frame(buffer, window(area, 84, height), "Keys".to_owned(), " esc close ", theme);
    let line = |(keys, does): &(&'static str, &'static str)| {
        Line::from(vec![Span::styled(format!("{keys:<15}"), theme.bold()), Span::raw(*does)])
    };
    Paragraph::new(KEYS.iter().map(line).collect::<Vec<_>>()).render(inner, buffer);
}
