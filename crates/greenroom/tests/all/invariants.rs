//! The keeper that checks the invariants. Each test writes a violation without the store. The keeper reports it, and
//! repairs it as documented.

use std::sync::Arc;

use domain::planner::invariants::Violation;
use domain::{BotId, SlotStatus, Status};
use greenroom::keepers::Keeper;
use greenroom::keepers::invariants::Invariants;
use greenroom::placement::copy_check::{CopyCheck, CopyDifference};
use greenroom::store::{Changed, PoolRow};
use rstest::rstest;

use crate::support::{Backend, CoreFixture, Database, Plan, placement_writes, pool};

async fn core(backend: Backend, max_slots: i64) -> (CoreFixture, Invariants) {
    let plan = Plan::of([PoolRow { max_slots, ..pool("meet") }]);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
    let keeper = Invariants::new(core.context.clone(), core.placement.clone());
    assert_eq!(violations_reported(&keeper).await, 0, "there is no violation");
    (core, keeper)
}

async fn violations_reported(keeper: &Invariants) -> u64 {
    keeper.run().await.unwrap().counts.get("violations").copied().unwrap_or(0)
}

/// Runs SQL without the store, and keeps the token.
async fn tamper(core: &CoreFixture, sql: String) {
    core.database.reader().await.execute(sql).await;
}

/// Runs SQL without the store, and replaces the token.
async fn change(core: &CoreFixture, sql: String) {
    let token = uuid::Uuid::new_v4();
    tamper(core, format!("{sql}; UPDATE placement SET token = '{token}';")).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_was_changed_without_the_server_is_reported_and_read_again(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 3).await;
    core.reserved(1).await;
    assert_eq!(violations_reported(&keeper).await, 0);
    tamper(&core, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    assert_eq!(violations_reported(&keeper).await, 1);
    assert_eq!(violations_reported(&keeper).await, 0, "the copy was read again");
    let attempts = core.placement.read_snapshot(|copy, _| copy.slots().map(|slot| slot.recovery_attempts).sum::<i64>());
    assert_eq!(attempts.await.unwrap(), 7);
}

#[tokio::test]
async fn a_slot_that_is_stored_twice_on_postgres_is_reported() {
    let (core, keeper) = core(Backend::Postgres, 3).await;
    core.reserved(1).await;
    let copy = "CREATE TEMP TABLE twin AS SELECT * FROM slots; UPDATE twin SET epoch = epoch + 1;
                INSERT INTO slots SELECT * FROM twin;";
    tamper(&core, copy.to_owned()).await;
    assert_eq!(violations_reported(&keeper).await, 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_without_a_slot_and_outside_the_queue_is_reported_and_ended(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 1).await;
    core.reserved(1).await;
    let waiting = core.reserved(2).await;
    change(&core, format!("DELETE FROM queue WHERE bot_id = '{waiting}'")).await;
    assert_eq!(violations_reported(&keeper).await, 1);
    assert_eq!(core.stands(waiting).await, (Status::Failed, Some("deploy_failed".to_owned())));
    let bot = core.store.bot(waiting).await.unwrap().unwrap();
    assert!(bot.error.is_some_and(|error| error.contains("no queue")), "the user sees the reason");
    assert_eq!(violations_reported(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_second_slot_of_a_bot_is_reported_and_cleared(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 2).await;
    let [one, other]: [BotId; 2] = [core.reserved(1).await, core.reserved(2).await];
    let row = core.store.bot(one).await.unwrap().unwrap();
    let own = row.slot.unwrap();
    change(&core, format!("UPDATE slots SET bot_id = '{one}', status = 'busy' WHERE bot_id = '{other}'")).await;
    assert!(violations_reported(&keeper).await > 0);
    let waits = core.placement.read_snapshot(|copy, _| {
        copy.slots().filter(|slot| slot.awaits_clearing).map(|slot| slot.name.clone()).collect::<Vec<_>>()
    });
    let waits = waits.await.unwrap();
    assert_eq!(waits.len(), 1, "one of the two is cleared");
    assert_ne!(waits[0], own, "the slot that the bot is in is not cleared");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_lowered_limit_is_no_violation_but_an_exceeded_one_is(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 3).await;
    for number in 1..=3 {
        core.reserved(number).await;
    }
    change(&core, format!("UPDATE users SET max_concurrent_bots = 2 WHERE id = '{}'", core.user)).await;
    change(&core, "UPDATE pools SET max_slots = 2".to_owned()).await;
    // Placement reads a user when the user sends a request.
    assert!(core.placement.reserve(core.key(), crate::support::bot_request(9)).await.is_err());
    assert_eq!(
        [violations_reported(&keeper).await, violations_reported(&keeper).await],
        [0, 0],
        "an earlier excess may stay"
    );
    let mut slot = core.store.slots(None, None).await.unwrap().remove(0);
    (slot.name, slot.number) = (domain::SlotName::new("meet", 9), 9);
    (slot.bot_id, slot.status, slot.incarnation) = (None, SlotStatus::Idle, uuid::Uuid::new_v4());
    placement_writes::write_slots(&core.store, vec![slot], true, core.clock.now()).await;
    change(&core, "UPDATE pools SET slots = 4".to_owned()).await;
    assert_eq!(violations_reported(&keeper).await, 1, "the pool grew although it is too large");
    assert_eq!(violations_reported(&keeper).await, 0, "the keeper reports it once");
}

/// The kinds of violations in the current copy.
async fn violation_kinds(core: &CoreFixture) -> Vec<&'static str> {
    let found = core.placement.read_snapshot(|copy, _| domain::planner::invariants::violations(copy)).await.unwrap();
    found.iter().map(Violation::kind).collect()
}

/// Runs the keeper, which must find this kind and nothing else: in one pass, and in parts of one row.
async fn expect_told(core: &CoreFixture, keeper: &Invariants, kind: &str) {
    assert_eq!(violation_kinds(core).await, [kind]);
    let in_parts = Invariants::new(core.context.clone(), core.placement.clone()).in_parts_of(1);
    let mut found = 0;
    for _ in 0..4 {
        found += violations_reported(&in_parts).await;
    }
    assert!(found > 0, "the keeper reports it in parts");
    if !violation_kinds(core).await.is_empty() {
        assert_eq!(violations_reported(keeper).await, 1, "the keeper reports it in one pass");
    }
}

async fn slot_of(core: &CoreFixture, bot: BotId) -> String {
    core.store.bot(bot).await.unwrap().unwrap().slot.unwrap().to_string()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_bots_in_one_slot_are_reported_and_left_to_the_operator(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 2).await;
    let [one, other] = [core.reserved(1).await, core.reserved(2).await];
    let (slot, left) = (slot_of(&core, one).await, slot_of(&core, other).await);
    let sql = format!(
        "UPDATE bots SET slot = '{slot}' WHERE id = '{other}';
         UPDATE slots SET bot_id = NULL, status = 'error' WHERE name = '{left}'"
    );
    change(&core, sql).await;
    expect_told(&core, &keeper, "slot_of_two_bots").await;
    assert_eq!(core.stands(other).await.0, Status::Reserved, "the keeper cannot know which of them is right");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_bots_of_a_user_in_one_meeting_are_reported(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 2).await;
    let [one, other] = [core.reserved(1).await, core.reserved(2).await];
    let sql = format!(
        "UPDATE bots SET native_meeting_id = (SELECT native_meeting_id FROM bots WHERE id = '{one}') WHERE id = '{other}'"
    );
    change(&core, sql).await;
    expect_told(&core, &keeper, "two_at_a_meeting").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_in_a_slot_of_another_platform_is_reported(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 1).await;
    core.reserved(1).await;
    change(&core, "UPDATE pools SET platform = 'zoom'".to_owned()).await;
    expect_told(&core, &keeper, "wrong_platform").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_with_a_slot_in_the_queue_is_reported_and_leaves_the_queue(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 1).await;
    let placed = core.reserved(1).await;
    let waiting = core.reserved(2).await;
    change(&core, format!("UPDATE queue SET bot_id = '{placed}' WHERE bot_id = '{waiting}'")).await;
    // The other bot is no longer in the queue.
    assert_eq!(violations_reported(&keeper).await, 2);
    assert_eq!(core.store.queue().await.unwrap(), []);
    assert_eq!(core.stands(placed).await.0, Status::Reserved, "the bot keeps its slot");
    assert_eq!(violations_reported(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_wrong_slot_count_of_a_pool_is_reported_and_corrected(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 3).await;
    core.reserved(1).await;
    tamper(&core, "UPDATE pools SET slots = 7;".to_owned()).await;
    assert_eq!(violations_reported(&keeper).await, 1);
    assert_eq!(core.store.pools().await.unwrap()[0].slots, 1);
    assert_eq!(violations_reported(&keeper).await, 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_user_with_more_bots_than_its_limit_is_reported_once(#[case] backend: Backend) {
    let (core, keeper) = core(backend, 5).await;
    let eve = core.another_user(1).await;
    let own = core.placement.reserve(eve, crate::support::bot_request(7)).await.unwrap().bot.user_id;
    let moved = core.reserved(1).await;
    assert_eq!(violations_reported(&keeper).await, 0);
    let sql = format!(
        "UPDATE bots SET user_id = '{own}' WHERE id = '{moved}';
         UPDATE open_bots SET user_id = '{own}' WHERE bot_id = '{moved}'"
    );
    // The limit stays in memory: only the bots are read again.
    let changed = serde_json::to_string(&Changed::bot(moved, None)).unwrap();
    let [before, after] = [core.store.placement_position().await.unwrap().token, uuid::Uuid::new_v4()];
    let now = format!("{:.6}", core.clock.now());
    tamper(
        &core,
        format!(
            "{sql}; UPDATE placement SET token = '{after}';
             INSERT INTO placement_journal (before, token, at, changed) VALUES ('{before}', '{after}', '{now}', '{changed}');"
        ),
    )
    .await;
    assert_eq!(violations_reported(&keeper).await, 1);
    assert_eq!(violations_reported(&keeper).await, 0, "the keeper reports it once");
}

/// A difference between the tables and the copy of a replica.
struct Tampering {
    sql: &'static str,
    difference: fn(&CopyDifference) -> bool,
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn rows_that_only_the_tables_or_only_the_copy_have_are_found_and_the_copy_is_corrected(#[case] backend: Backend) {
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
        let (core, _) = core(backend, 2).await;
        for number in 1..=3 {
            core.reserved(number).await;
        }
        let check = CopyCheck::new(core.store.clone(), core.placement.clone()).in_parts_of(1);
        tamper(&core, format!("{sql};")).await;
        let mut found = Vec::new();
        for _ in 0..6 {
            found.extend(check.run().await.unwrap().differences);
        }
        assert!(found.iter().any(difference), "{sql}: {found:?}");
        for _ in 0..6 {
            let left = check.run().await.unwrap().differences;
            let left: Vec<_> = left.iter().filter(|found| !matches!(found, CopyDifference::PoolCount(_))).collect();
            assert!(left.is_empty(), "{sql}: {left:?} remains");
        }
        let stored = core.store.load_snapshot().await.unwrap();
        let [copied, read] = core
            .placement
            .read_snapshot(move |copy, _| {
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
    let (core, _) = core(Backend::Postgres, 3).await;
    core.reserved(1).await;
    let mut changing = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (store, user) = (core.store.clone(), core.user);
        changing.spawn(async move {
            loop {
                let tx = store.begin_changing(&Changed::user(user), jiff::Timestamp::now()).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    let check = CopyCheck::new(core.store.clone(), core.placement.clone());
    assert_eq!(check.run().await.unwrap().differences, []);
    tamper(&core, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    assert!(matches!(check.run().await.unwrap().differences[..], [CopyDifference::Slot(_)]));
    assert_eq!(check.run().await.unwrap().differences, []);
    changing.shutdown().await;
}

#[tokio::test]
async fn each_replica_on_postgres_finds_the_differences_of_its_own_copy() {
    let database: Arc<Database> = Database::new(Backend::Postgres).await.into();
    let plan = Plan::of([PoolRow { max_slots: 3, ..pool("meet") }]);
    let [one, other] =
        [CoreFixture::planned(database.clone(), &plan).await, CoreFixture::planned(database, &plan).await];
    one.reserved(1).await;
    other.reserved(2).await;
    let checks = [&one, &other].map(|core| CopyCheck::new(core.store.clone(), core.placement.clone()));
    for core in [&one, &other] {
        assert_eq!(
            core.placement.read_snapshot(|copy, _| copy.slots().len()).await.unwrap(),
            2,
            "the replica follows the other"
        );
    }
    tamper(&one, "UPDATE slots SET recovery_attempts = 7;".to_owned()).await;
    for check in checks {
        assert_eq!(check.run().await.unwrap().differences.len(), 2);
        assert_eq!(check.run().await.unwrap().differences, []);
    }
}
