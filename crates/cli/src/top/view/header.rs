//! The lines at the top: server and connection, bots, slots, queue and gates, and what needs a person.

use ratatui::text::{Line, Span};

use super::theme::Theme;
use crate::top::screen::{Link, Screen};
use crate::top::text::{counted, duration, words};

/// The most important lines first, as many as there is room for.
pub fn lines(screen: &Screen, theme: Theme, room: usize) -> Vec<Line<'static>> {
    let all = [
        title(screen, theme),
        bots(screen, theme),
        slots(screen, theme),
        queue(screen, theme),
        attention(screen, theme),
    ];
    // With little room, what needs a person comes before the counts.
    let order: &[usize] = match room {
        0 => &[],
        1 => &[0],
        2 => &[0, 4],
        3 => &[0, 1, 4],
        4 => &[0, 1, 3, 4],
        _ => &[0, 1, 2, 3, 4],
    };
    order.iter().map(|line| all[*line].clone()).collect()
}

fn title(screen: &Screen, theme: Theme) -> Line<'static> {
    let mut line =
        Line::from(vec![Span::styled("greenroom ", theme.focus()), Span::raw(format!("{}  ", screen.server))]);
    match &screen.link {
        Link::Live => line.push_span(Span::styled("● live", theme.good())),
        Link::Lost { since, problem, retry_at } => {
            let next = (retry_at - screen.now).max(0);
            let text =
                format!("○ reconnecting in {next}s, the picture is {} old: {problem}", duration(screen.now - since));
            line.push_span(Span::styled(text, theme.warning()));
        }
    }
    if let Some(frozen) = &screen.frozen {
        let text = format!("  ‖ paused for {}, p continues", duration(screen.now - frozen.now));
        line.push_span(Span::styled(text, theme.warning()));
    }
    line
}

fn counts(line: &mut Line<'static>, theme: Theme, all: impl Iterator<Item = (String, usize, ratatui::style::Style)>) {
    for (name, count, style) in all {
        line.push_span(Span::styled(format!("{name} "), theme.dim()));
        line.push_span(Span::styled(format!("{count}  "), style));
    }
}

fn label(name: &str, theme: Theme) -> Line<'static> {
    Line::from(Span::styled(format!("{name:<10}"), theme.bold()))
}

fn bots(screen: &Screen, theme: Theme) -> Line<'static> {
    let (mut line, fleet) = (label("Bots", theme), screen.shown());
    line.push_span(Span::styled(format!("{:<6}", fleet.bots.len()), theme.bold()));
    // A status that nobody has is not worth its place, except those that a person looks for.
    let is_shown = |status: &str, count: usize| count > 0 || matches!(status, "active" | "needs_help");
    let shown = fleet.bot_counts().into_iter().filter(|(status, count)| is_shown(status, *count));
    let shown =
        shown.map(|(status, count)| (words(status), count, if count > 0 { theme.bot(status) } else { theme.dim() }));
    counts(&mut line, theme, shown);
    line
}

fn slots(screen: &Screen, theme: Theme) -> Line<'static> {
    let (mut line, fleet) = (label("Slots", theme), screen.shown());
    line.push_span(Span::styled(format!("{:<6}", fleet.slots_total()), theme.bold()));
    let all = fleet.slot_counts(None).into_iter();
    let style = |status: &str, count| if count > 0 { theme.slot(status, false) } else { theme.dim() };
    counts(&mut line, theme, all.map(|(status, count)| (words(status), count, style(status, count))));
    let hot = fleet.hot_idle(None);
    counts(&mut line, theme, std::iter::once(("hot".to_owned(), hot, theme.slot("idle", true))));
    line
}

fn queue(screen: &Screen, theme: Theme) -> Line<'static> {
    let (mut line, fleet) = (label("Queue", theme), screen.shown());
    let waits = fleet.queue.len();
    let style = if waits > 0 { theme.warning() } else { theme.bold() };
    line.push_span(Span::styled(format!("{waits:<6}"), style));
    if let Some(oldest) = fleet.oldest_wait() {
        line.push_span(Span::styled("oldest ", theme.dim()));
        line.push_span(Span::styled(format!("{}  ", duration(screen.shown_now() - oldest)), theme.warning()));
    }
    line.push_span(Span::styled("Gates ", theme.bold()));
    if fleet.gates.is_empty() {
        line.push_span(Span::styled("no starts", theme.dim()));
    }
    for gate in &fleet.gates {
        line.push_span(Span::styled(format!("{} ", gate.host), theme.dim()));
        line.push_span(Span::raw(format!("{}/{}", gate.active, gate.max_concurrent)));
        if gate.queued > 0 {
            line.push_span(Span::styled(format!(" +{} wait", gate.queued), theme.warning()));
        }
        line.push_span(Span::raw("  "));
    }
    line
}

fn attention(screen: &Screen, theme: Theme) -> Line<'static> {
    let Some(first) = screen.attention.first() else {
        return Line::from(vec![
            Span::styled(format!("{:<10}", "Attention"), theme.bold()),
            Span::styled("nothing needs a person", theme.dim()),
        ]);
    };
    let critical = screen.attention.iter().filter(|item| item.is_critical).count();
    let others = screen.attention.len() - critical + screen.attention_more;
    let count = match (critical, others) {
        (0, others) => counted(others, "warning"),
        (critical, 0) => format!("{critical} critical"),
        (critical, others) => format!("{critical} critical, {}", counted(others, "warning")),
    };
    let style = if critical > 0 { theme.bad() } else { theme.warning() };
    Line::from(vec![
        Span::styled(format!("{:<10}", "Attention"), theme.bold()),
        Span::styled(format!("{count}: "), style),
        Span::raw(first.message.clone()),
    ])
}
