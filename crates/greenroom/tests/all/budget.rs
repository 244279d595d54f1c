//! The requests that a provider takes, shared by everyone who asks it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greenroom::providers::budget::{Budget, Urgency};
use greenroom::store::{LONGEST_HOLD, Turn};
use rstest::rstest;

use crate::support::{Backend, Database, until};

const TIME: Duration = Duration::from_millis(600);

async fn budget(database: &Database, most: u32) -> Budget {
    Budget::new(database.open().await, "coolify".to_owned(), most, TIME)
}

async fn take(budget: &Budget, urgency: Urgency, count: usize) {
    for _ in 0..count {
        budget.turn(urgency).await.unwrap();
    }
}

/// Whether a turn comes before the budget is renewed.
async fn comes(budget: &Budget, urgency: Urgency) -> bool {
    tokio::time::timeout(TIME / 4, budget.turn(urgency)).await.is_ok()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn no_more_than_the_budget_is_taken_in_any_such_time_by_replicas_together(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let replicas = [budget(&database, 10).await, budget(&database, 10).await];
    let taken = Arc::new(Mutex::new(Vec::new()));
    let mut all = tokio::task::JoinSet::new();
    for number in 0..6 {
        let (budget, taken) = (replicas[number % 2].clone(), taken.clone());
        all.spawn(async move {
            for _ in 0..5 {
                let asked = Instant::now();
                budget.turn(Urgency::Free).await.unwrap();
                taken.lock().unwrap().push((asked, Instant::now()));
            }
        });
    }
    all.join_all().await;
    let taken = taken.lock().unwrap();
    // A turn came at some moment between the two, so that only these came within the time for certain.
    for (first, _) in taken.iter() {
        let within = taken.iter().filter(|(asked, got)| asked >= first && *got < *first + TIME).count();
        assert!(within <= 10, "{within}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_last_of_it_is_kept_for_what_frees_slots(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    // It is not renewed while the test runs, however slow the machine is.
    let budget = Budget::new(database.open().await, "coolify".to_owned(), 20, TIME * 1_000);
    take(&budget, Urgency::Shown, 10).await;
    assert!(!comes(&budget, Urgency::Shown).await);
    take(&budget, Urgency::Wanted, 8).await;
    assert!(!comes(&budget, Urgency::Wanted).await);
    take(&budget, Urgency::Free, 2).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_is_more_urgent_goes_first_and_who_came_first_before_who_came_later(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = budget(&database, 10).await;
    take(&budget, Urgency::Free, 10).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let asked = [Urgency::Shown, Urgency::Wanted, Urgency::Free, Urgency::Wanted, Urgency::Free];
    let mut all = tokio::task::JoinSet::new();
    for (number, urgency) in asked.into_iter().enumerate() {
        let (waits, order) = (budget.clone(), order.clone());
        all.spawn(async move {
            waits.turn(urgency).await.unwrap();
            order.lock().unwrap().push(number);
        });
        until("it waits in the queue", async || budget.waiting() == number + 1).await;
    }
    all.join_all().await;
    assert_eq!(*order.lock().unwrap(), [2, 4, 1, 3, 0]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn when_the_provider_has_had_enough_no_replica_asks_for_so_long(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let (one, other) = (budget(&database, 10).await, budget(&database, 10).await);
    let begun = Instant::now();
    one.hold_back(TIME).await;
    // A shorter wait that is told later does not end the longer one.
    one.hold_back(TIME / 6).await;
    other.turn(Urgency::Free).await.unwrap();
    assert!(begun.elapsed() >= TIME, "{:?}", begun.elapsed());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn who_goes_away_leaves_the_line_and_takes_nothing(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = budget(&database, 10).await;
    take(&budget, Urgency::Free, 10).await;
    for _ in 0..5 {
        assert!(tokio::time::timeout(TIME / 60, budget.turn(Urgency::Free)).await.is_err());
    }
    assert_eq!(budget.waiting(), 0);
    tokio::time::timeout(TIME * 5, take(&budget, Urgency::Free, 10)).await.unwrap();
    // Another budget has a line of its own.
    let elsewhere = Budget::new(database.open().await, "elsewhere".to_owned(), 1, TIME * 1_000);
    tokio::time::timeout(TIME * 100, elsewhere.turn(Urgency::Free)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_process_without_a_database_keeps_to_it_by_itself() {
    let budget = Budget::in_process("coolify".to_owned(), 20, TIME);
    take(&budget, Urgency::Wanted, 18).await;
    assert!(!comes(&budget, Urgency::Wanted).await);
    take(&budget, Urgency::Free, 2).await;
    assert!(!comes(&budget, Urgency::Free).await);
    budget.hold_back(TIME * 2).await;
    let begun = Instant::now();
    budget.turn(Urgency::Wanted).await.unwrap();
    assert!(begun.elapsed() >= TIME * 2 - Duration::from_millis(20));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_nobody_waiting(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = budget(&database, 10).await;
    take(&budget, Urgency::Free, 10).await;
    database.execute("UPDATE budget_requests SET at = at + 3600000").await;
    // They still count, for as long as the budget says.
    assert!(!comes(&budget, Urgency::Free).await);
    tokio::time::timeout(TIME * 5, budget.turn(Urgency::Free)).await.unwrap().unwrap();

    let store = database.open().await;
    store.hold_back("coolify", TIME).await.unwrap();
    database.execute("UPDATE budgets SET blocked_until = blocked_until + 36000000").await;
    let mut last = LONGEST_HOLD + Duration::from_nanos(1);
    for _ in 0..3 {
        let Turn::Delayed(wait) = store.take_turn("coolify", 10, TIME).await.unwrap() else { panic!("it is held") };
        assert!(wait < last, "{wait:?}");
        last = wait;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_process_holds_back_also_when_it_cannot_tell_the_others() {
    let database = Database::new(Backend::Sqlite).await;
    let budget = budget(&database, 10).await;
    database.execute("DROP TABLE budget_requests; DROP TABLE budgets").await;
    budget.turn(Urgency::Free).await.unwrap_err();
    budget.hold_back(TIME * 10).await;
    assert!(!comes(&budget, Urgency::Free).await);
    assert!(budget.held().is_some_and(|wait| wait > TIME * 5));
    // No answer holds for longer than the longest.
    budget.hold_back(LONGEST_HOLD * 10).await;
    assert!(budget.held().is_some_and(|wait| wait <= LONGEST_HOLD));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_part_of_a_budget_is_shared_by_replicas_as_well(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let [one, other] = [budget(&database, 100).await, budget(&database, 100).await];
    let [one, other] = [one, other].map(|whole| whole.part("looks", 4, TIME));
    take(&one, Urgency::Free, 2).await;
    take(&other, Urgency::Free, 2).await;
    assert!(!comes(&one, Urgency::Free).await && !comes(&other, Urgency::Free).await);
}
