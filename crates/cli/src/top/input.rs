//! What a key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::explanation::ExplanationLine;
use super::rows::RowKey;
use super::screen::{Detail, Mode, Pane, Screen, Subject};
use super::text::words;

/// What is to be done outside of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    /// Ask the server to explain this.
    Explain(Subject),
    /// Draw everything again, because something else has written to the terminal.
    Repaint,
}

/// The keys and what they do, for the help.
pub const KEYS: [(&str, &str); 14] = [
    ("↑ ↓ j k", "move; in the grid of slots also ← → h l"),
    ("PgUp PgDn", "move by a page"),
    ("Home End g G", "move to the first or the last row"),
    ("Tab Shift-Tab", "go to the next or the previous pane"),
    ("1 … 6", "go to pools, slots, bots, queue, keepers, attention"),
    ("Enter", "on a pool: show its slots; else explain the bot or the slot"),
    ("a", "show all pools again"),
    ("/", "filter the pane: only rows with all of these words"),
    ("Esc", "close the window, or remove the filter"),
    ("v", "show slots as a grid or as a list"),
    ("p", "pause: hold the picture; p again continues"),
    ("r", "in an explanation: ask the server again"),
    ("Ctrl-L", "draw the screen again"),
    ("q Ctrl-C", "quit"),
];

const MAX_FILTER: usize = 60;

/// Does what a key does. Keys that mean nothing are ignored.
pub fn press(screen: &mut Screen, key: KeyEvent) -> Option<Effect> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if control => return Some(Effect::Quit),
        KeyCode::Char('l') if control => return Some(Effect::Repaint),
        KeyCode::Char(_) if control => return None,
        _ => {}
    }
    match screen.mode {
        Mode::Normal => in_pane(screen, key.code),
        Mode::Filter => {
            in_filter(screen, key.code);
            None
        }
        Mode::Help => {
            if matches!(key.code, KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q' | '?')) {
                screen.mode = Mode::Normal;
            }
            None
        }
        Mode::Detail(_) => in_detail(screen, key.code),
    }
}

fn in_pane(screen: &mut Screen, code: KeyCode) -> Option<Effect> {
    match code {
        KeyCode::Char('q') => return Some(Effect::Quit),
        KeyCode::Char('?') => screen.mode = Mode::Help,
        KeyCode::Char('/') => screen.mode = Mode::Filter,
        KeyCode::Char('p') => screen.toggle_pause(),
        KeyCode::Char('v') => screen.is_grid = !screen.is_grid,
        KeyCode::Char('a') => {
            screen.scope = None;
            screen.refresh();
        }
        KeyCode::Char(digit @ '1'..='6') => {
            let index = usize::try_from(u32::from(digit) - u32::from('1')).unwrap_or(0);
            screen.focus = Pane::ALL[index];
        }
        KeyCode::Tab => screen.focus = screen.focus.next(),
        KeyCode::BackTab => screen.focus = screen.focus.previous(),
        KeyCode::Enter => return open(screen),
        KeyCode::Esc => {
            let list = screen.list_mut(screen.focus);
            match list.filter.is_empty() {
                true => return None,
                false => list.filter.clear(),
            }
            screen.refresh();
        }
        code => {
            if let Some(by) = step(screen, code) {
                screen.list_mut(screen.focus).step(by);
                if screen.focus == Pane::Pools {
                    screen.choose_pool();
                }
            }
        }
    }
    None
}

/// By how many rows a key moves.
fn step(screen: &Screen, code: KeyCode) -> Option<isize> {
    let in_grid = screen.focus == Pane::Slots && screen.is_grid;
    let line = if in_grid { screen.grid_columns.max(1) } else { 1 };
    let page = screen.list(screen.focus).height.max(1) * line;
    let signed = |rows: usize| isize::try_from(rows).unwrap_or(isize::MAX);
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -signed(line),
        KeyCode::Down | KeyCode::Char('j') => signed(line),
        KeyCode::Left | KeyCode::Char('h') if in_grid => -1,
        KeyCode::Right | KeyCode::Char('l') if in_grid => 1,
        KeyCode::PageUp => -signed(page),
        KeyCode::PageDown => signed(page),
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

fn in_filter(screen: &mut Screen, code: KeyCode) {
    let list = screen.list_mut(screen.focus);
    match code {
        KeyCode::Enter => screen.mode = Mode::Normal,
        KeyCode::Esc => {
            list.filter.clear();
            screen.mode = Mode::Normal;
            screen.refresh();
        }
        KeyCode::Backspace => {
            list.filter.pop();
            screen.refresh();
        }
        KeyCode::Char(letter) if list.filter.chars().count() < MAX_FILTER && !letter.is_control() => {
            list.filter.push(letter);
            (list.selected, list.offset) = (0, 0);
            screen.refresh();
        }
        _ => {}
    }
}

fn in_detail(screen: &mut Screen, code: KeyCode) -> Option<Effect> {
    let Mode::Detail(detail) = &mut screen.mode else { return None };
    // The view limits it to the length of the text.
    let by = match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -10,
        KeyCode::PageDown | KeyCode::Char(' ') => 10,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        KeyCode::Esc | KeyCode::Enter | KeyCode::Char('q') => {
            screen.mode = Mode::Normal;
            return None;
        }
        KeyCode::Char('r') => {
            let subject = detail.subject.clone().filter(|_| !detail.is_loading)?;
            screen.note_asked(&subject);
            return Some(Effect::Explain(subject));
        }
        _ => return None,
    };
    detail.scroll = detail.scroll.saturating_add_signed(by);
    None
}

/// Opens what the selected row stands for.
fn open(screen: &mut Screen) -> Option<Effect> {
    let row = screen.list(screen.focus).selected()?.clone();
    let fleet = screen.shown();
    let subject = match row {
        RowKey::AllPools | RowKey::Pool(_) => {
            screen.choose_pool();
            screen.focus = Pane::Slots;
            return None;
        }
        RowKey::Slot(key) => Subject::Slot(fleet.slot_name(key)),
        RowKey::Bot(id) | RowKey::Waiting(id, _) => Subject::Bot(id),
        RowKey::Keeper(index) => {
            let keeper = fleet.keepers.get(index)?;
            let text = keeper.error.clone().unwrap_or_else(|| "The last run had no error.".to_owned());
            let lines = vec![ExplanationLine::Text(text)];
            let title = format!("Keeper {}", keeper.name);
            screen.mode = Mode::Detail(Detail { title, lines, ..Detail::default() });
            return None;
        }
        RowKey::Attention(index) => {
            let item = screen.attention.get(index)?;
            match (item.kind.as_str(), item.subject.parse()) {
                ("slot_error", _) => Subject::Slot(item.subject.clone()),
                (_, Ok(id)) => Subject::Bot(id),
                _ => {
                    let mut lines = vec![ExplanationLine::Text(item.message.clone())];
                    lines.extend(item.action.clone().map(ExplanationLine::Heading));
                    let title = format!("{} {}", words(&item.kind), item.subject);
                    screen.mode = Mode::Detail(Detail { title, lines, ..Detail::default() });
                    return None;
                }
            }
        }
    };
    let (title, subject) = (subject.title(), subject);
    screen.mode = Mode::Detail(Detail { title, subject: Some(subject.clone()), ..Detail::default() });
    screen.note_asked(&subject);
    Some(Effect::Explain(subject))
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
