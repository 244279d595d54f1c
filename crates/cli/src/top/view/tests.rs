#![allow(clippy::unwrap_used)]

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Color;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;
use crate::top::explanation::{attention, pool_settings};
use crate::top::input::press;
use crate::top::message::Message;
use crate::top::screen::Link;

/// A minute after everything in the snapshot happened.
const NOW: i64 = 1_800_000_060;

/// A fleet with two pools, of which one has an error, and bots in several statuses.
pub fn busy_screen() -> Screen {
    busy_screen_with(12)
}

pub fn busy_screen_with(slots: i64) -> Screen {
    let since = NOW - 60;
    let id = |number: u128| Uuid::from_u128(0x0197_a1b2_0000_7000_8000_0000_0000_0000 + number);
    let meet: Vec<Value> =
        (1..=slots).map(|number| json!([number, if number <= slots / 2 { 2 } else { 1 }, since, number % 2])).collect();
    // Active, in the lobby, in need of help.
    let status = |number: i64| [7, 5, 6][usize::try_from(number % 3).unwrap()];
    let bots: Vec<Value> = (1..=slots / 2)
        .map(|number| json!([id(number.unsigned_abs().into()), status(number), since, 0, number]))
        .collect();
    let snapshot = json!({
        "slot_statuses": ["creating", "idle", "busy", "error", "draining"],
        "bot_statuses": ["scheduled", "reserved", "queued", "deploying", "starting", "awaiting_admission", "needs_help",
                         "active", "stopping", "completed", "failed"],
        "pools": [["google-meet", "google_meet"], ["zoom", "zoom"]],
        "slots": [meet, [[1, 3, since, 0], [2, 0, since, 0]]],
        "bots": bots,
        "queue": [[id(9_001), "zoom", 100, 0, 1, "zoom", since - 60, since + 240],
                  [id(9_002), "zoom", 100, 0, 2, "zoom", since, since + 300]],
        "gates": [["local", 2, 3, 4]],
        "keepers": [["recovery", since, 12, null, NOW + 240, "one"], ["sync", since, 3, "docker does not answer", NOW, "one"]],
    });
    let mut screen = Screen::new("http://127.0.0.1:7700".to_owned(), None);
    assert!(screen.fleet.apply(&Message::Snapshot(snapshot)));
    screen.settings = pool_settings(&json!({"pools": [
        {"name": "google-meet", "provider": "process", "max_slots": slots + 8, "min_idle": 2, "closed_until": null},
        {"name": "zoom", "provider": "docker", "max_slots": 10, "min_idle": 0, "closed_until": "2027-01-01T00:00:00Z"},
    ]}));
    (screen.attention, screen.attention_more) = attention(&json!({"items": [
        {"severity": "critical", "kind": "needs_help", "subject": id(2), "since": "2027-01-15T08:00:00Z",
         "deadline_at": null, "message": "Bot 2 needs a person", "action": null},
        {"severity": "warning", "kind": "slot_error", "subject": "pool-zoom-001", "since": null, "deadline_at": null,
         "message": "Slot pool-zoom-001 is in error: no such image", "action": {"label": "Recover the slot"}},
    ], "more": 0}));
    screen.now = NOW;
    screen.refresh();
    screen
}

fn drawn(screen: &mut Screen, width: u16, height: u16, has_colour: bool) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            draw(frame.buffer_mut(), area, screen, Theme { has_colour });
        })
        .unwrap();
    terminal.backend().clone()
}

fn text(screen: &mut Screen, width: u16, height: u16) -> String {
    let backend = drawn(screen, width, height, false);
    let cells: Vec<&str> = backend.buffer().content().iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(usize::from(width)).map(|line| line.concat().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn type_keys(screen: &mut Screen, keys: &str) {
    for key in keys.chars() {
        press(screen, KeyEvent::from(KeyCode::Char(key)));
    }
}

#[test]
fn a_wide_terminal_shows_every_pane_at_once() {
    let text = text(&mut busy_screen(), 160, 45);
    for expected in [
        "● live",
        "1 Pools 2",
        "2 Slots 14",
        "3 Bots 6",
        "4 Queue 2",
        "5 Keepers 2",
        "6 Attention 2",
        "awaiting admission",
        "needs help",
        "oldest 2m00s",
        "local 2/4 +3 wait",
        "docker does not answer",
        "1 critical, 1 warning: Bot 2 needs a person",
        "closed",
        "12/20",
        "0197a1b2-0000",
    ] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
}

#[test]
fn a_terminal_of_80_by_24_shows_the_pools_and_the_chosen_pane() {
    let mut screen = busy_screen();
    let pools = text(&mut screen, 80, 24);
    assert!(pools.contains("1 Pools") && pools.contains("2 Slots") && !pools.contains("3 Bots"), "{pools}");
    type_keys(&mut screen, "3");
    let bots = text(&mut screen, 80, 24);
    assert!(bots.contains("1 Pools") && bots.contains("3 Bots 6") && bots.contains("needs help"), "{bots}");
    assert!(bots.contains("pool-google-meet-002"), "{bots}");
    for (key, expected) in [("4", "TIMEOUT IN"), ("5", "docker does not answer"), ("6", "Slot pool-zoom-001")] {
        type_keys(&mut screen, key);
        let text = text(&mut screen, 80, 24);
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
}

#[test]
fn no_size_is_too_small_or_too_large_in_any_mode() {
    for (width, height) in
        [(1, 1), (2, 3), (5, 2), (10, 5), (20, 6), (40, 10), (60, 15), (79, 23), (120, 30), (400, 120)]
    {
        for keys in ["", "2", "3", "4", "5", "6", "?", "/x", "2v", "5\n", "p"] {
            let mut screen = busy_screen();
            for key in keys.chars() {
                let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
                press(&mut screen, KeyEvent::from(code));
            }
            let text = text(&mut screen, width, height);
            assert!(!text.trim().is_empty(), "{width}x{height} {keys:?}");
        }
    }
}

#[test]
fn an_empty_fleet_is_said_to_be_empty() {
    let mut screen = Screen::new("http://127.0.0.1:7700".to_owned(), None);
    screen.refresh();
    let text = text(&mut screen, 160, 45);
    for expected in ["There are no slots", "No bot runs", "No bot waits for a slot", "nothing needs a person"] {
        assert!(text.contains(expected), "{expected} is missing:\n{text}");
    }
}

#[test]
fn a_lost_connection_is_said_with_the_age_of_the_picture_which_stays() {
    let mut screen = busy_screen();
    screen.link = Link::Lost { since: NOW - 12, problem: "Connection refused".to_owned(), retry_at: NOW + 2 };
    let text = text(&mut screen, 120, 30);
    assert!(text.contains("reconnecting in 2s, the picture is 12s old: Connection refused"), "{text}");
    assert!(text.contains("needs help"), "{text}");
}

#[test]
fn a_pause_holds_the_picture_and_its_ages() {
    let mut screen = busy_screen();
    type_keys(&mut screen, "3");
    let before = text(&mut screen, 80, 24);
    type_keys(&mut screen, "p");
    screen.fleet.apply(&Message::Change(json!({"bots_gone": ["0197a1b2-0000-7000-8000-000000000001"]})));
    screen.now += 100;
    screen.refresh();
    let paused = text(&mut screen, 80, 24);
    assert!(paused.contains("paused for 1m40s"), "{paused}");
    let rows = |text: &str| {
        text.lines().skip(1).filter(|line| line.contains("0197a1b2")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(rows(&paused), rows(&before));
    type_keys(&mut screen, "p");
    let after = text(&mut screen, 80, 24);
    assert_eq!(rows(&after).len(), rows(&before).len() - 1, "{after}");
}

#[test]
fn colours_are_used_unless_they_are_not_wanted_and_errors_have_a_sign_of_their_own() {
    let has_colour = |backend: &TestBackend| backend.buffer().content().iter().any(|cell| cell.fg != Color::Reset);
    assert!(has_colour(&drawn(&mut busy_screen(), 160, 45, true)));
    assert!(!has_colour(&drawn(&mut busy_screen(), 160, 45, false)));
    let text = text(&mut busy_screen(), 160, 45);
    assert!(text.contains("! error") && text.contains("! +"), "{text}");
}

#[test]
fn of_ten_thousand_slots_only_the_visible_rows_are_made() {
    let mut screen = busy_screen_with(10_000);
    type_keys(&mut screen, "2v");
    let made = std::cell::Cell::new(0);
    let mut list = screen.list(Pane::Slots).clone();
    list.selected = 9_000;
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    let cells = |row: &_| {
        made.set(made.get() + 1);
        panes::cells(&screen, row, Theme { has_colour: true })
    };
    let area = *buffer.area();
    table::draw(&mut buffer, area, panes::columns(Pane::Slots), &mut list, cells, true, Theme { has_colour: true });
    assert_eq!(made.get(), 23);
    let shown: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
    assert!(shown.contains("pool-google-meet-9001"), "{shown}");
    // The grid has room for all of them on a large screen, and scrolls on a small one.
    type_keys(&mut screen, "vG");
    let last = text(&mut screen, 80, 24);
    assert!(last.contains("◆ pool-zoom-002"), "{last}");
}

#[test]
fn what_a_server_sends_cannot_reach_the_terminal_as_control_characters() {
    let mut screen = busy_screen();
    screen.fleet.apply(&Message::Change(json!({
        "keepers": [["sy\u{1b}[2Jnc", 1, 1, "a\u{7}b\u{9b}31mc\u{202e}", 1, "\u{1b}c"]],
        "gates": [["ho\u{1b}]0;pwned\u{7}st", 1, 1, 1]],
    })));
    screen.refresh();
    for (width, height) in [(160, 45), (80, 24)] {
        let text = text(&mut screen, width, height);
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
        assert!(!text.contains('\u{202e}'));
    }
}
