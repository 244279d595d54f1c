//! The feed returns every committed event once and in order, in whatever order the transactions commit.

use domain::{BotId, EventId, UserId};
use greenroom::bus::Bus;
use greenroom::lifecycle::feed::Follower;
use greenroom::store::{Actor, Kind, NewEvent, Store, Tx};
use jiff::Timestamp;
use rstest::rstest;
use uuid::Uuid;

use crate::support::{Backend, CoreFixture, Database, Plan, pool};

async fn begun(store: &Store) -> Tx {
    let mut tx = store.begin().await.unwrap();
    tx.record(&event(), Timestamp::now()).await.unwrap();
    tx
}

fn event() -> NewEvent {
    NewEvent {
        bot_id: BotId(Uuid::nil()),
        user_id: UserId(Uuid::nil()),
        kind: Kind::Created,
        from: None,
        to: None,
        reason: None,
        actor: Actor::User,
        start_kind: None,
    }
}

async fn seen(follower: &mut Follower, store: &Store) -> Vec<i64> {
    let step = follower.step(store).await.unwrap();
    step.events.iter().map(|event| event.id.0).collect()
}

/// Steps until the follower has found its position.
async fn settled(store: &Store) -> Follower {
    let mut follower = Follower::default();
    while follower.step(store).await.unwrap().position.is_none() {}
    follower
}

#[tokio::test]
async fn on_postgres_an_event_that_commits_late_is_waited_for_and_read_in_order() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let mut follower = settled(&store).await;
    let late = begun(&store).await;
    begun(&store).await.commit().await.unwrap();
    for _ in 0..5 {
        assert_eq!(seen(&mut follower, &store).await, Vec::<i64>::new(), "the second must wait for the first");
    }
    late.commit().await.unwrap();
    assert_eq!(seen(&mut follower, &store).await, [1, 2]);
}

#[tokio::test]
async fn on_postgres_an_event_that_was_rolled_back_is_not_waited_for_any_longer() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let mut follower = settled(&store).await;
    let undone = begun(&store).await;
    begun(&store).await.commit().await.unwrap();
    assert_eq!(seen(&mut follower, &store).await, Vec::<i64>::new());
    drop(undone);
    let mut heard = Vec::new();
    while heard.is_empty() {
        heard = seen(&mut follower, &store).await;
    }
    assert_eq!(heard, [2]);
}

#[tokio::test]
async fn on_postgres_a_new_follower_starts_before_events_that_are_not_committed_yet() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let late = begun(&store).await;
    begun(&store).await.commit().await.unwrap();
    let mut follower = Follower::default();
    for _ in 0..5 {
        assert_eq!(follower.step(&store).await.unwrap().position, None, "event 1 may still be committed");
    }
    late.commit().await.unwrap();
    let position = loop {
        if let Some(position) = follower.step(&store).await.unwrap().position {
            break position;
        }
    };
    assert_eq!(position, EventId(2));
    let events = store.events_of_user(UserId(Uuid::nil()), EventId(0), position, 10).await.unwrap();
    assert_eq!(events.len(), 2, "a reader up to the position misses nothing");
}

#[tokio::test]
async fn on_postgres_a_second_gap_is_waited_for_too() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let mut follower = settled(&store).await;
    let first = begun(&store).await;
    begun(&store).await.commit().await.unwrap();
    assert_eq!(seen(&mut follower, &store).await, Vec::<i64>::new());
    let third = begun(&store).await;
    begun(&store).await.commit().await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(seen(&mut follower, &store).await, [1, 2], "the third is not committed yet");
    third.commit().await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.extend(seen(&mut follower, &store).await);
    }
    assert_eq!(heard, [3, 4]);
}

#[tokio::test]
async fn on_postgres_a_long_transaction_elsewhere_does_not_hold_up_the_feed() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    // This transaction writes, so it has a transaction id. It stays open until the end of the test.
    let mut elsewhere = store.begin().await.unwrap();
    elsewhere.keep_setting("x", "y").await.unwrap();
    let mut follower = settled(&store).await;
    drop(begun(&store).await);
    begun(&store).await.commit().await.unwrap();
    let mut heard = Vec::new();
    while heard.is_empty() {
        heard = seen(&mut follower, &store).await;
    }
    assert_eq!(heard, [2]);
    elsewhere.commit().await.unwrap();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn with_many_writers_every_committed_event_is_read_once_and_in_order(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let mut follower = settled(&store).await;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..120 {
        let store = store.clone();
        writers.spawn(async move {
            let mut tx = store.begin().await.unwrap();
            for _ in 0..=number % 3 {
                tx.record(&event(), Timestamp::now()).await.unwrap();
            }
            if number % 5 != 0 {
                tx.commit().await.unwrap();
                number % 3 + 1
            } else {
                0
            }
        });
    }
    let mut heard = Vec::new();
    while !writers.is_empty() {
        heard.extend(seen(&mut follower, &store).await);
        while writers.try_join_next().is_some() {}
    }
    let committed = store.events_after(EventId(0), 1_000).await.unwrap();
    while heard.len() < committed.len() {
        heard.extend(seen(&mut follower, &store).await);
    }
    let committed: Vec<i64> = committed.iter().map(|event| event.id.0).collect();
    assert_eq!(heard, committed);
}

#[tokio::test]
async fn placements_of_another_replica_on_postgres_arrive_through_the_journal_before_any_poll() {
    let database: std::sync::Arc<Database> = Database::new(Backend::Postgres).await.into();
    let plan = Plan::of([greenroom::store::PoolRow { max_slots: 5, ..pool("meet") }]);
    let [places, hears] =
        [CoreFixture::planned(database.clone(), &plan).await, CoreFixture::planned(database, &plan).await];
    let feed = hears.lifecycle.feed().clone().polling_every(std::time::Duration::from_secs(3_600));
    tokio::spawn(feed.clone().follow(hears.store.clone(), Bus::default(), Default::default()));
    let mut listener = feed.listen_to_user(places.user);
    listener.position().await.unwrap();
    for number in 0..3 {
        let bot = places.reserved(number).await;
        let heard = tokio::time::timeout(std::time::Duration::from_secs(30), listener.live.recv()).await;
        assert_eq!(heard.expect("the journal has it").unwrap().bot_id, bot);
    }
}
