//! The keeper that proves what must always hold: each violation is planted past the store, told, and mended by the book.

use domain::{BotId, SlotStatus, Status};
use greenroom::keepers::Keeper;
use greenroom::keepers::invariants::Invariants;
use greenroom::store::PoolRow;
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
    assert_eq!(told(&keeper).await, 1, "a pool grew although it is too large");
    assert_eq!(told(&keeper).await, 0, "it is told once");
}
