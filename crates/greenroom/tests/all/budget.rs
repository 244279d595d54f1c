//! The budget of requests to a provider, which all its callers share.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use greenroom::providers::budget::{Budget, Urgency};
use greenroom::store::{LONGEST_HOLD, Turn};
use rstest::rstest;

use crate::support::{Backend, Database, until};

const TIME: Duration = Duration::from_millis(600);
const LASTING: Duration = Duration::from_mins(10);

async fn budget(database: &Database, most: u32) -> Budget {
    Budget::new(database.open().await, "coolify".to_owned(), most, TIME)
}

/// A budget that is not renewed while a test runs, however slow the machine is, unless the test renews it.
async fn lasting_budget(database: &Database, most: u32) -> Budget {
    Budget::new(database.open().await, "coolify".to_owned(), most, LASTING)
}

/// Makes all requests so old that they no longer count.
async fn renew(database: &Database) {
    database.execute("UPDATE budget_requests SET at = at - 1200000").await;
}

async fn take(budget: &Budget, urgency: Urgency, count: usize) {
    for _ in 0..count {
        budget.turn(urgency).await.unwrap();
    }
}

/// Whether a turn is granted before the budget is renewed.
async fn comes(budget: &Budget, urgency: Urgency) -> bool {
    tokio::time::timeout(TIME / 4, budget.turn(urgency)).await.is_ok()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn replicas_together_never_use_more_than_the_budget_in_any_window(#[case] backend: Backend) {
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
    // Each turn was granted at some moment between the two times. So only these turns are certain to be within the
    // window.
    for (first, _) in taken.iter() {
        let within = taken.iter().filter(|(asked, got)| asked >= first && *got < *first + TIME).count();
        assert!(within <= 10, "{within}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_last_part_of_the_budget_is_reserved_for_requests_that_free_slots(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = lasting_budget(&database, 20).await;
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
async fn urgent_requests_go_first_and_then_by_arrival(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = lasting_budget(&database, 10).await;
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
    renew(&database).await;
    // A caller that leaves the queue wakes the others, which would wait for the end of the period.
    assert!(tokio::time::timeout(Duration::ZERO, budget.turn(Urgency::Shown)).await.is_err());
    all.join_all().await;
    assert_eq!(*order.lock().unwrap(), [2, 4, 1, 3, 0]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn after_a_429_no_replica_sends_requests_for_the_given_time(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let (one, other) = (budget(&database, 10).await, budget(&database, 10).await);
    let begun = Instant::now();
    one.hold_back(TIME).await;
    // A later, shorter wait does not end a longer one.
    one.hold_back(TIME / 6).await;
    other.turn(Urgency::Free).await.unwrap();
    assert!(begun.elapsed() >= TIME, "{:?}", begun.elapsed());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_cancelled_request_leaves_the_queue_and_uses_no_budget(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = lasting_budget(&database, 10).await;
    take(&budget, Urgency::Free, 10).await;
    for _ in 0..5 {
        assert!(tokio::time::timeout(TIME / 60, budget.turn(Urgency::Free)).await.is_err());
    }
    assert_eq!(budget.waiting(), 0);
    renew(&database).await;
    take(&budget, Urgency::Free, 10).await;
    // Another budget has its own queue.
    let elsewhere = Budget::new(database.open().await, "elsewhere".to_owned(), 1, TIME * 1_000);
    tokio::time::timeout(TIME * 100, elsewhere.turn(Urgency::Free)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_process_without_a_database_keeps_to_the_budget_by_itself() {
    let lasting = Budget::in_process("coolify".to_owned(), 20, LASTING);
    take(&lasting, Urgency::Wanted, 18).await;
    assert!(!comes(&lasting, Urgency::Wanted).await);
    take(&lasting, Urgency::Free, 2).await;
    assert!(!comes(&lasting, Urgency::Free).await);
    let budget = Budget::in_process("coolify".to_owned(), 20, TIME);
    budget.hold_back(TIME * 2).await;
    let begun = Instant::now();
    budget.turn(Urgency::Wanted).await.unwrap();
    assert!(begun.elapsed() >= TIME * 2 - Duration::from_millis(20));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_clock_that_is_set_back_delays_no_request(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let budget = budget(&database, 10).await;
    take(&budget, Urgency::Free, 10).await;
    database.execute("UPDATE budget_requests SET at = at + 3600000").await;
    // They still count, for the whole window of the budget.
    assert!(!comes(&budget, Urgency::Free).await);
    tokio::time::timeout(TIME * 5, budget.turn(Urgency::Free)).await.unwrap().unwrap();

    let store = database.open().await;
    store.hold_back("coolify", TIME).await.unwrap();
    database.execute("UPDATE budgets SET blocked_until = blocked_until + 36000000").await;
    let mut last = LONGEST_HOLD + Duration::from_nanos(1);
    for _ in 0..3 {
        let Turn::Delayed(wait) = store.take_turn("coolify", 10, TIME).await.unwrap() else {
            panic!("requests are held back")
        };
        assert!(wait < last, "{wait:?}");
        last = wait;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_process_holds_back_also_if_it_cannot_inform_the_others() {
    let database = Database::new(Backend::Sqlite).await;
    let budget = budget(&database, 10).await;
    database.execute("DROP TABLE budget_requests; DROP TABLE budgets").await;
    budget.turn(Urgency::Free).await.unwrap_err();
    budget.hold_back(TIME * 10).await;
    assert!(!comes(&budget, Urgency::Free).await);
    assert!(budget.held().is_some_and(|wait| wait > TIME * 5));
    // No answer of a provider can hold back requests for longer than the maximum.
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
    let [one, other] = [one, other].map(|whole| whole.part("looks", 4, LASTING));
    take(&one, Urgency::Free, 2).await;
    take(&other, Urgency::Free, 2).await;
    assert!(!comes(&one, Urgency::Free).await && !comes(&other, Urgency::Free).await);
}
