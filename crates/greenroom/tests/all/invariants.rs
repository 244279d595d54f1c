//! The keeper that proves what must always hold: each violation is planted past the store, told, and mended by the book.

use std::sync::Arc;

use domain::planner::invariants::Violation;
use domain::{BotId, SlotStatus, Status};
use greenroom::keepers::Keeper;
use greenroom::keepers::invariants::Invariants;
use greenroom::placement::copy_check::{CopyCheck, CopyDifference};
use greenroom::store::{Changed, PoolRow};
use rstest::rstest;

use crate::support::{Backend, Database, House, Plan, pool, written};

async fn house(backend: Backend, max_slots: i64) -> (House, Invariants) {
    let plan = Plan::of([PoolRow { max_slots, ..pool("meet") }]);
    let house = House::planned(Database::new(backend).await.into(), &plan).await;
    let keeper = Invariants::new(house.lifecycle.clone(), house.placement.clone());
    assert_eq!(told(&keeper).await, 0, "nothing is wrong");
    (house, keeper)
}

async fn told(keeper: &Invariants) -> u64 {
    keeper.run().await.unwrap().counts.get("violations").copied().unwrap_or(0)
}

/// Runs SQL past the store, and leaves the token as it is.
async fn tamper(house: &House, sql: String) {
    house.database.reader().await.execute(sql).await;
}

/// The same, as somebody would who replaces the token.
async fn change(house: &House, sql: String) {
    let token = uuid::Uuid::new_v4();
    tamper(house, format!("{sql}; UPDATE placement SET token = '{token}';")).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_somebody_changed_past_the_server_is_told_and_read_again(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 3).await;
    house.reserved(1).await;
    assert_eq!(told(&keeper).await, 0);
    tamper(&house, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    assert_eq!(told(&keeper).await, 1);
    assert_eq!(told(&keeper).await, 0, "it was read again");
    let attempts = house.placement.look(|copy, _| copy.slots().map(|slot| slot.recovery_attempts).sum::<i64>());
    assert_eq!(attempts.await.unwrap(), 7);
}

#[tokio::test]
async fn a_slot_that_is_stored_twice_on_postgres_is_told() {
    let (house, keeper) = house(Backend::Postgres, 3).await;
    house.reserved(1).await;
    let copy = "CREATE TEMP TABLE twin AS SELECT * FROM slots; UPDATE twin SET epoch = epoch + 1;
                INSERT INTO slots SELECT * FROM twin;";
    tamper(&house, copy.to_owned()).await;
    assert_eq!(told(&keeper).await, 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_is_in_no_queue_and_in_no_slot_is_told_and_ended(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 1).await;
    house.reserved(1).await;
    let waiting = house.reserved(2).await;
    change(&house, format!("DELETE FROM queue WHERE bot_id = '{waiting}'")).await;
    assert_eq!(told(&keeper).await, 1);
    assert_eq!(house.stands(waiting).await, (Status::Failed, Some("deploy_failed".to_owned())));
    let bot = house.store.bot(waiting).await.unwrap().unwrap();
    assert!(bot.error.is_some_and(|error| error.contains("no queue")), "its user knows why");
    assert_eq!(told(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_second_slot_that_names_a_bot_is_told_and_cleared(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 2).await;
    let [one, other]: [BotId; 2] = [house.reserved(1).await, house.reserved(2).await];
    let row = house.store.bot(one).await.unwrap().unwrap();
    let own = row.slot.unwrap();
    change(&house, format!("UPDATE slots SET bot_id = '{one}', status = 'busy' WHERE bot_id = '{other}'")).await;
    assert!(told(&keeper).await > 0);
    let waits = house.placement.look(|copy, _| {
        copy.slots().filter(|slot| slot.awaits_clearing).map(|slot| slot.name.clone()).collect::<Vec<_>>()
    });
    let waits = waits.await.unwrap();
    assert_eq!(waits.len(), 1, "one of the two is cleared");
    assert_ne!(waits[0], own, "and not the one that the bot is in");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_limit_that_is_lowered_is_no_violation_and_one_that_is_passed_is(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 3).await;
    for number in 1..=3 {
        house.reserved(number).await;
    }
    change(&house, format!("UPDATE users SET max_concurrent_bots = 2 WHERE id = '{}'", house.user)).await;
    change(&house, "UPDATE pools SET max_slots = 2".to_owned()).await;
    // A user is looked up when it asks.
    assert!(house.placement.reserve(house.key(), crate::support::wish(9)).await.is_err());
    assert_eq!([told(&keeper).await, told(&keeper).await], [0, 0], "what was there before may stay");
    let mut slot = house.store.slots(None, None).await.unwrap().remove(0);
    (slot.name, slot.number) = (domain::SlotName::new("meet", 9), 9);
    (slot.bot_id, slot.status, slot.incarnation) = (None, SlotStatus::Idle, uuid::Uuid::new_v4());
    written::write_slots(&house.store, vec![slot], true, house.clock.now()).await;
    change(&house, "UPDATE pools SET slots = 4".to_owned()).await;
    assert_eq!(told(&keeper).await, 1, "a pool grew although it is too large");
    assert_eq!(told(&keeper).await, 0, "it is told once");
}

/// What is violated, in the copy as it is now.
async fn kinds(house: &House) -> Vec<&'static str> {
    let found = house.placement.look(|copy, _| domain::planner::invariants::violations(copy)).await.unwrap();
    found.iter().map(Violation::kind).collect()
}

/// Runs the keeper, which must find this kind and nothing else, in one piece and in parts of one row.
async fn expect_told(house: &House, keeper: &Invariants, kind: &str) {
    assert_eq!(kinds(house).await, [kind]);
    let in_parts = Invariants::new(house.lifecycle.clone(), house.placement.clone()).in_parts_of(1);
    let mut found = 0;
    for _ in 0..4 {
        found += told(&in_parts).await;
    }
    assert!(found > 0, "it is told in parts");
    if !kinds(house).await.is_empty() {
        assert_eq!(told(keeper).await, 1, "it is told in one piece");
    }
}

async fn slot_of(house: &House, bot: BotId) -> String {
    house.store.bot(bot).await.unwrap().unwrap().slot.unwrap().to_string()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_bots_that_have_one_slot_are_told_and_left_to_a_person(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 2).await;
    let [one, other] = [house.reserved(1).await, house.reserved(2).await];
    let (slot, left) = (slot_of(&house, one).await, slot_of(&house, other).await);
    let sql = format!(
        "UPDATE bots SET slot = '{slot}' WHERE id = '{other}';
         UPDATE slots SET bot_id = NULL, status = 'error' WHERE name = '{left}'"
    );
    change(&house, sql).await;
    expect_told(&house, &keeper, "slot_of_two_bots").await;
    assert_eq!(house.stands(other).await.0, Status::Reserved, "which of them is right is not known");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_bots_of_a_user_at_one_meeting_are_told(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 2).await;
    let [one, other] = [house.reserved(1).await, house.reserved(2).await];
    let sql = format!(
        "UPDATE bots SET native_meeting_id = (SELECT native_meeting_id FROM bots WHERE id = '{one}') WHERE id = '{other}'"
    );
    change(&house, sql).await;
    expect_told(&house, &keeper, "two_at_a_meeting").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_in_a_slot_of_another_platform_is_told(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 1).await;
    house.reserved(1).await;
    change(&house, "UPDATE pools SET platform = 'zoom'".to_owned()).await;
    expect_told(&house, &keeper, "wrong_platform").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_waits_although_it_has_a_slot_is_told_and_leaves_the_queue(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 1).await;
    let placed = house.reserved(1).await;
    let waiting = house.reserved(2).await;
    change(&house, format!("UPDATE queue SET bot_id = '{placed}' WHERE bot_id = '{waiting}'")).await;
    // The other has no place any more.
    assert_eq!(told(&keeper).await, 2);
    assert_eq!(house.store.queue().await.unwrap(), []);
    assert_eq!(house.stands(placed).await.0, Status::Reserved, "it keeps its slot");
    assert_eq!(told(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_whose_row_counts_its_slots_wrong_is_told_and_counted_anew(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 3).await;
    house.reserved(1).await;
    tamper(&house, "UPDATE pools SET slots = 7;".to_owned()).await;
    assert_eq!(told(&keeper).await, 1);
    assert_eq!(house.store.pools().await.unwrap()[0].slots, 1);
    assert_eq!(told(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_user_with_more_bots_than_its_limit_is_told_once(#[case] backend: Backend) {
    let (house, keeper) = house(backend, 5).await;
    let eve = house.another_user(1).await;
    let own = house.placement.reserve(eve, crate::support::wish(7)).await.unwrap().bot.user_id;
    let moved = house.reserved(1).await;
    assert_eq!(told(&keeper).await, 0);
    let sql = format!(
        "UPDATE bots SET user_id = '{own}' WHERE id = '{moved}';
         UPDATE open_bots SET user_id = '{own}' WHERE bot_id = '{moved}'"
    );
    // The limit stays known: only the bots are read again.
    let changed = serde_json::to_string(&Changed::bot(moved, None)).unwrap();
    let [before, after] = [house.store.placement_position().await.unwrap().token, uuid::Uuid::new_v4()];
    let now = format!("{:.6}", house.clock.now());
    tamper(
        &house,
        format!(
            "{sql}; UPDATE placement SET token = '{after}';
             INSERT INTO placement_journal (before, token, at, changed) VALUES ('{before}', '{after}', '{now}', '{changed}');"
        ),
    )
    .await;
    assert_eq!(told(&keeper).await, 1);
    assert_eq!(told(&keeper).await, 0, "it is told once");
}

/// Something that the tables and the copy of a replica may differ in.
struct Tampering {
    sql: &'static str,
    difference: fn(&CopyDifference) -> bool,
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn whatever_only_the_tables_or_only_the_copy_has_is_found_and_taken_over(#[case] backend: Backend) {
    let tamperings = [
        Tampering {
            sql: "DELETE FROM slots WHERE name = 'pool-meet-001'",
            difference: |found| matches!(found, CopyDifference::Slot(_)),
        },
        Tampering {
            sql: "UPDATE slots SET description = 'other'",
            difference: |found| matches!(found, CopyDifference::Slot(_)),
        },
        Tampering { sql: "DELETE FROM queue", difference: |found| matches!(found, CopyDifference::Bot(_)) },
        Tampering { sql: "UPDATE bots SET priority = 3", difference: |found| matches!(found, CopyDifference::Bot(_)) },
        Tampering { sql: "DELETE FROM open_bots", difference: |found| matches!(found, CopyDifference::Bot(_)) },
        Tampering {
            sql: "UPDATE pools SET max_slots = 9",
            difference: |found| matches!(found, CopyDifference::Pool(_)),
        },
        Tampering {
            sql: "INSERT INTO pools (name, platform, provider, standby, recycle_after, max_slots, min_idle,
                                     configured_max_slots, configured_min_idle, attribute_sets)
                  SELECT 'other', platform, provider, standby, recycle_after, max_slots, min_idle,
                         configured_max_slots, configured_min_idle, attribute_sets FROM pools",
            difference: |found| matches!(found, CopyDifference::Pool(_)),
        },
        Tampering { sql: "DELETE FROM pools", difference: |found| matches!(found, CopyDifference::Pool(_)) },
    ];
    for Tampering { sql, difference } in tamperings {
        let (house, _) = house(backend, 2).await;
        for number in 1..=3 {
            house.reserved(number).await;
        }
        let check = CopyCheck::new(house.store.clone(), house.placement.clone()).in_parts_of(1);
        tamper(&house, format!("{sql};")).await;
        let mut found = Vec::new();
        for _ in 0..6 {
            found.extend(check.run().await.unwrap().differences);
        }
        assert!(found.iter().any(difference), "{sql}: {found:?}");
        for _ in 0..6 {
            let left = check.run().await.unwrap().differences;
            let left: Vec<_> = left.iter().filter(|found| !matches!(found, CopyDifference::PoolCount(_))).collect();
            assert!(left.is_empty(), "{sql}: {left:?} is left");
        }
        let stored = house.store.load_snapshot().await.unwrap();
        let [copied, read] = house
            .placement
            .look(move |copy, _| {
                [copy, &stored].map(|of| {
                    let mut slots: Vec<_> = of.slots().map(|slot| format!("{slot:?}")).collect();
                    slots.extend(of.bots().map(|bot| format!("{bot:?}")));
                    slots.extend(of.pools().map(|state| format!("{:?}", state.pool)));
                    slots.sort();
                    slots
                })
            })
            .await
            .unwrap();
        assert_eq!(copied, read, "{sql}");
    }
}

#[tokio::test]
async fn a_difference_is_found_on_postgres_while_others_replace_the_token_without_pause() {
    let (house, _) = house(Backend::Postgres, 3).await;
    house.reserved(1).await;
    let mut changing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, user) = (house.store.clone(), house.user);
        changing.spawn(async move {
            loop {
                let tx = store.begin_changing(&Changed::user(user), jiff::Timestamp::now()).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    let check = CopyCheck::new(house.store.clone(), house.placement.clone());
    assert_eq!(check.run().await.unwrap().differences, []);
    tamper(&house, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    assert!(matches!(check.run().await.unwrap().differences[..], [CopyDifference::Slot(_)]));
    assert_eq!(check.run().await.unwrap().differences, []);
    changing.shutdown().await;
}

#[tokio::test]
async fn each_replica_of_postgres_finds_what_its_own_copy_has_otherwise() {
    let database: Arc<Database> = Database::new(Backend::Postgres).await.into();
    let plan = Plan::of([PoolRow { max_slots: 3, ..pool("meet") }]);
    let [one, other] = [House::planned(database.clone(), &plan).await, House::planned(database, &plan).await];
    one.reserved(1).await;
    other.reserved(2).await;
    let checks = [&one, &other].map(|house| CopyCheck::new(house.store.clone(), house.placement.clone()));
    for house in [&one, &other] {
        assert_eq!(house.placement.look(|copy, _| copy.slots().len()).await.unwrap(), 2, "it follows the other");
    }
    tamper(&one, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    for check in checks {
        assert_eq!(check.run().await.unwrap().differences.len(), 2);
        assert_eq!(check.run().await.unwrap().differences, []);
    }
}
