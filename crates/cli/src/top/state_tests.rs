#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;

const A: &str = "0197a1b2-0000-7000-8000-00000000000a";
const B: &str = "0197a1b2-0000-7000-8000-00000000000b";

fn snapshot() -> Value {
    json!({
        "slot_statuses": ["creating", "idle", "busy", "error", "draining"],
        "bot_statuses": ["queued", "deploying", "active"],
        "pools": [["meet", "google_meet"], ["zoom", "zoom"]],
        "slots": [[[1, 2, 100, 1], [2, 1, 101, 1]], [[1, 3, 102, 0]]],
        "bots": [[A, 2, 103, 0, 1], [B, 0, 104]],
        "queue": [[B, "google_meet", 100, 0, 7, "meet", 104, 404]],
        "gates": [["local", 1, 0, 4]],
        "keepers": [["sync", 90, 12, null, 150, "one"], ["stats", null, null, "no\u{1b}[2J answer", null, null]],
    })
}

fn fleet() -> Fleet {
    let mut fleet = Fleet::default();
    assert!(fleet.apply(&Message::Snapshot(snapshot())));
    fleet
}

fn change(fleet: &mut Fleet, change: Value) {
    assert!(fleet.apply(&Message::Change(change)));
}

#[test]
fn a_snapshot_has_pools_slots_bots_queue_gates_and_keepers() {
    let fleet = fleet();
    assert_eq!(fleet.slot_name((0, 2)), "pool-meet-002");
    assert_eq!(fleet.slot_counts(None), [("creating", 0), ("idle", 1), ("busy", 1), ("error", 1), ("draining", 0)]);
    assert_eq!(fleet.slot_counts(Some(1))[3], ("error", 1));
    assert_eq!((fleet.hot_idle(None), fleet.hot_idle(Some(1)), fleet.slots_total()), (1, 0, 3));
    assert_eq!(fleet.bot_counts(), [("queued", 1), ("deploying", 0), ("active", 1)]);
    let (id, bot) = fleet.bot_in((0, 1)).unwrap();
    assert_eq!((id.to_string().as_str(), fleet.bot_status(bot)), (A, "active"));
    assert_eq!((fleet.queue[0].position, fleet.oldest_wait()), (1, Some(104)));
    assert_eq!(fleet.gates[0].max_concurrent, 4);
    assert_eq!(fleet.keepers[1].error.as_deref(), Some("no [2J answer"), "without the control character");
}

#[test]
fn changes_add_replace_and_remove() {
    let mut fleet = fleet();
    change(
        &mut fleet,
        json!({
            "slots": [[0, 1, 4, 200, 0], [0, 3, 0, 201, 0]], "slots_gone": [[1, 1]],
            "bots": [[B, 1, 202, 0, 3]], "bots_gone": [A], "queue_gone": [B], "gates": [], "keepers": [],
        }),
    );
    assert_eq!(fleet.slot_counts(None), [("creating", 1), ("idle", 1), ("busy", 0), ("error", 0), ("draining", 1)]);
    assert_eq!(fleet.bot_counts(), [("queued", 0), ("deploying", 1), ("active", 0)]);
    assert_eq!(fleet.bot_in((0, 1)), None);
    assert_eq!(fleet.bot_in((0, 3)).unwrap().0.to_string(), B);
    assert!(fleet.queue.is_empty() && fleet.gates.is_empty() && fleet.keepers.is_empty());
    assert_eq!(fleet.oldest_wait(), None);
}

#[test]
fn a_change_without_a_field_leaves_it_as_it_was() {
    let (mut fleet, before) = (fleet(), fleet());
    change(&mut fleet, json!({}));
    assert_eq!(fleet, before);
}

#[test]
fn unknown_slots_pools_bots_and_fields_do_no_harm() {
    let (mut fleet, before) = (fleet(), fleet());
    change(
        &mut fleet,
        json!({
            "weather": ["sunny"], "slots": [[9, 1, 1, 0, 0], ["x"], null, 7], "slots_gone": [[0, 99], [9, 1], []],
            "bots_gone": ["not an id", "0197a1b2-0000-7000-8000-0000000000ff"], "queue_gone": [7], "bots": [[1], {}],
        }),
    );
    assert_eq!(fleet, before);
    // A newer server adds elements to entries, and statuses that this program does not know.
    change(
        &mut fleet,
        json!({"slots": [[0, 1, 77, 5, 1, "more", {"and": "more"}]], "bots": [[A, 77, 5, 0, 1, "more"]]}),
    );
    assert_eq!(fleet.slot_status(fleet.slot((0, 1)).unwrap()), "unknown");
    assert_eq!(fleet.bot_status(fleet.bot_in((0, 1)).unwrap().1), "unknown");
    assert_eq!(fleet.slots_total(), 3);
}

#[test]
fn a_message_that_is_no_snapshot_changes_nothing() {
    let (mut fleet, before) = (fleet(), fleet());
    for other in [json!(null), json!([]), json!({"pools": 7}), json!("<html>")] {
        assert!(!fleet.apply(&Message::Snapshot(other)));
    }
    assert_eq!(fleet, before);
}

#[test]
fn a_bot_of_a_slot_that_comes_later_is_found_in_it() {
    let mut fleet = fleet();
    change(&mut fleet, json!({"bots": [[B, 1, 300, 1, 5]]}));
    assert_eq!(fleet.slot((1, 5)), None);
    change(&mut fleet, json!({"slots": [[1, 5, 2, 300, 0]]}));
    assert_eq!(fleet.bot_in((1, 5)).unwrap().0.to_string(), B);
    // The slot goes to another bot in the message in which the first one goes.
    change(&mut fleet, json!({"bots": [[A, 1, 301, 1, 5]], "bots_gone": [B]}));
    assert_eq!(fleet.bot_in((1, 5)).unwrap().0.to_string(), A);
}

#[test]
fn the_queue_is_in_the_order_in_which_bots_are_served() {
    let mut fleet = fleet();
    let id = |last: u8| Uuid::from_u128(u128::from(last)).to_string();
    change(
        &mut fleet,
        json!({"queue": [
            [id(1), "zoom", 100, 0, 9, "zoom", 1, 2], [id(2), "google_meet", 50, 0, 9, "meet", 1, 2],
            [id(3), "google_meet", 100, 0, 3, "meet", 1, 2],
        ]}),
    );
    let order: Vec<(String, usize)> =
        fleet.queue.iter().map(|waiting| (waiting.bot.to_string(), waiting.position)).collect();
    assert_eq!(order, [(id(2), 1), (id(3), 2), (B.to_owned(), 3), (id(1), 1)]);
}

#[test]
fn ten_thousand_slots_are_counted_as_they_change() {
    let slots: Vec<Value> = (1..=10_000).map(|number| json!([number, 1, 5, 1])).collect();
    let mut fleet = Fleet::default();
    let snapshot = json!({"slot_statuses": ["creating", "idle", "busy"], "bot_statuses": [],
                          "pools": [["meet", "google_meet"]], "slots": [slots]});
    assert!(fleet.apply(&Message::Snapshot(snapshot)));
    for number in 1..=10_000 {
        change(&mut fleet, json!({"slots": [[0, number, 2, 6, 1]]}));
    }
    assert_eq!(fleet.slot_counts(None), [("creating", 0), ("idle", 0), ("busy", 10_000)]);
    assert_eq!(fleet.hot_idle(None), 0);
}
