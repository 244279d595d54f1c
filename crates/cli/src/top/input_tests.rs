#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::top::message::Message;
use crate::top::view::tests::busy_screen;

fn type_codes(screen: &mut Screen, codes: &[KeyCode]) -> Option<Effect> {
    codes.iter().map(|code| press(screen, KeyEvent::from(*code))).last().flatten()
}

fn type_text(screen: &mut Screen, text: &str) -> Option<Effect> {
    type_codes(screen, &text.chars().map(KeyCode::Char).collect::<Vec<_>>())
}

#[test]
fn q_and_control_c_quit_and_q_in_a_filter_is_a_letter() {
    let mut screen = busy_screen();
    assert_eq!(type_text(&mut screen, "q"), Some(Effect::Quit));
    assert_eq!(type_text(&mut screen, "/q"), None);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(&mut screen, control_c), Some(Effect::Quit));
}

#[test]
fn tab_goes_round_the_panes_in_both_directions() {
    let mut screen = busy_screen();
    for expected in [Pane::Slots, Pane::Bots, Pane::Queue, Pane::Keepers, Pane::Attention, Pane::Pools] {
        type_codes(&mut screen, &[KeyCode::Tab]);
        assert_eq!(screen.focus, expected);
    }
    type_codes(&mut screen, &[KeyCode::BackTab]);
    assert_eq!(screen.focus, Pane::Attention);
}

#[test]
fn choosing_a_pool_shows_only_its_slots_bots_and_the_queue_of_its_platform() {
    let mut screen = busy_screen();
    let count = |screen: &Screen, pane| screen.list(pane).rows.len();
    assert_eq!((count(&screen, Pane::Slots), count(&screen, Pane::Bots), count(&screen, Pane::Queue)), (14, 6, 2));
    type_text(&mut screen, "j");
    assert_eq!(screen.scope.as_deref(), Some("google-meet"));
    assert_eq!((count(&screen, Pane::Slots), count(&screen, Pane::Bots), count(&screen, Pane::Queue)), (12, 6, 0));
    type_codes(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!((screen.scope.as_deref(), screen.focus), (Some("zoom"), Pane::Slots));
    assert_eq!((count(&screen, Pane::Slots), count(&screen, Pane::Bots), count(&screen, Pane::Queue)), (2, 0, 2));
    type_text(&mut screen, "a");
    assert_eq!((screen.scope.as_deref(), count(&screen, Pane::Slots)), (None, 14));
}

#[test]
fn a_filter_keeps_the_rows_that_have_all_words() {
    let mut screen = busy_screen();
    type_text(&mut screen, "3/Needs HELP");
    assert_eq!((screen.list(Pane::Bots).rows.len(), screen.list(Pane::Bots).total), (2, 6));
    type_codes(&mut screen, &[KeyCode::Char(' '), KeyCode::Char('x'), KeyCode::Backspace, KeyCode::Enter]);
    assert!(matches!(screen.mode, Mode::Normal));
    type_text(&mut screen, "2/idle hot");
    assert_eq!(screen.list(Pane::Slots).rows.len(), 3);
    type_codes(&mut screen, &[KeyCode::Esc]);
    assert_eq!(screen.list(Pane::Slots).rows.len(), 14);
    type_text(&mut screen, "3");
    type_codes(&mut screen, &[KeyCode::Esc]);
    assert_eq!(screen.list(Pane::Bots).rows.len(), 6, "Esc removes a filter that was kept");
}

#[test]
fn enter_asks_the_server_to_explain_the_bot_or_the_slot() {
    let mut screen = busy_screen();
    let effect = type_codes(&mut screen, &[KeyCode::Char('3'), KeyCode::Down, KeyCode::Enter]);
    let Some(Effect::Explain(Subject::Bot(id))) = effect else { panic!("{effect:?}") };
    let subject = Subject::Bot(id);
    assert_eq!(subject.path(), format!("/admin/bots/{id}/explain"));
    screen.explained(&subject, Ok(vec![ExplanationLine::Text("It is in the meeting.".to_owned())]));
    assert_eq!(screen.outdated_subject(), None);
    // When the bot changes, the server is asked again, once.
    screen.fleet.apply(&Message::Change(json!({"bots": [[id, 8, 1_800_000_061, 0, 5]]})));
    assert_eq!(screen.outdated_subject(), Some(subject.clone()));
    assert_eq!(screen.outdated_subject(), None);
    // What was explained stays readable when the next call fails.
    screen.explained(&subject, Err("no answer".to_owned()));
    let Mode::Detail(detail) = &screen.mode else { panic!("{:?}", screen.mode) };
    assert_eq!((detail.lines.len(), detail.problem.as_deref()), (1, Some("no answer")));
    assert_eq!(type_text(&mut screen, "r"), Some(Effect::Explain(subject.clone())));
    assert_eq!(type_text(&mut screen, "q"), None, "q closes the window first");
    screen.explained(&subject, Ok(vec![]));
    assert!(matches!(screen.mode, Mode::Normal), "a late answer opens nothing");

    type_text(&mut screen, "2");
    let effect = type_codes(&mut screen, &[KeyCode::End, KeyCode::Enter]);
    assert_eq!(effect, Some(Effect::Explain(Subject::Slot("pool-zoom-002".to_owned()))));
}

#[test]
fn what_needs_attention_and_the_error_of_a_keeper_can_be_opened() {
    let mut screen = busy_screen();
    let effect = type_codes(&mut screen, &[KeyCode::Char('6'), KeyCode::Down, KeyCode::Enter]);
    assert_eq!(effect, Some(Effect::Explain(Subject::Slot("pool-zoom-001".to_owned()))));
    let effect = type_codes(&mut screen, &[KeyCode::Esc, KeyCode::Up, KeyCode::Enter]);
    assert!(matches!(effect, Some(Effect::Explain(Subject::Bot(_)))), "{effect:?}");
    type_codes(&mut screen, &[KeyCode::Esc, KeyCode::Char('5'), KeyCode::Down, KeyCode::Enter]);
    let Mode::Detail(detail) = &screen.mode else { panic!("{:?}", screen.mode) };
    assert_eq!(detail.lines, [ExplanationLine::Text("docker does not answer".to_owned())]);
}

#[test]
fn the_selected_row_stays_selected_when_others_come_and_go() {
    let mut screen = busy_screen();
    type_codes(&mut screen, &[KeyCode::Char('3'), KeyCode::Down, KeyCode::Down]);
    let selected = screen.list(Pane::Bots).selected().cloned();
    let newer = "0197a1b2-0000-7000-8000-0000000000ff";
    screen.fleet.apply(&Message::Change(json!({"bots": [[newer, 7, 1_800_000_061, 0, 12]]})));
    screen.refresh();
    assert_eq!(screen.list(Pane::Bots).selected().cloned(), selected);
    // At the top the newest bot comes into view.
    type_codes(&mut screen, &[KeyCode::Home]);
    let newest = "0197a1b2-0000-7000-8000-000000000fff";
    screen.fleet.apply(&Message::Change(json!({"bots": [[newest, 7, 1_800_000_061]]})));
    screen.refresh();
    assert_eq!(screen.list(Pane::Bots).selected(), Some(&RowKey::Bot(newest.parse().unwrap())));
    // Everything goes.
    let gone: Vec<String> = screen.fleet.bots.keys().map(ToString::to_string).collect();
    type_codes(&mut screen, &[KeyCode::End]);
    screen.fleet.apply(&Message::Change(json!({"bots_gone": gone})));
    screen.refresh();
    assert_eq!(screen.list(Pane::Bots).selected(), None);
    assert_eq!(type_codes(&mut screen, &[KeyCode::Enter]), None);
}

#[test]
fn arrows_move_through_the_grid_by_slot_and_by_line() {
    let mut screen = busy_screen();
    screen.grid_columns = 5;
    type_codes(&mut screen, &[KeyCode::Char('2'), KeyCode::Down, KeyCode::Right]);
    assert_eq!(screen.list(Pane::Slots).selected, 6);
    type_codes(&mut screen, &[KeyCode::Up, KeyCode::Left]);
    assert_eq!(screen.list(Pane::Slots).selected, 0);
    type_codes(&mut screen, &[KeyCode::Char('G')]);
    assert_eq!(screen.list(Pane::Slots).selected, 13);
    type_codes(&mut screen, &[KeyCode::Char('v'), KeyCode::Char('k')]);
    assert_eq!(screen.list(Pane::Slots).selected, 12);
}
