//! The request budget that all slots share, and the order in which requests get their turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::config::provider::CoolifyConfig;
use greenroom::providers::Provider;
use rstest::rstest;

use crate::support::{Backend, CoolifyFault as Fault, CoolifyFixture, CoolifyOperation as Operation, Database, until};

#[tokio::test]
async fn many_waiting_calls_share_their_status_requests() {
    let fixture = CoolifyFixture::new(|settings| {
        settings.deployment = Duration::from_millis(200);
        settings.deployments_at_once = 100;
    })
    .await;
    let provider = std::sync::Arc::new(fixture.process());
    let mut all = tokio::task::JoinSet::new();
    for number in 1..=20 {
        let provider = provider.clone();
        all.spawn(async move {
            provider.start(&CoolifyFixture::spec(number, "a")).await.unwrap();
            provider.stop(&CoolifyFixture::slot(number), true).await.unwrap();
        });
    }
    all.join_all().await;
    let own = [Operation::Describe, Operation::Start, Operation::Stop].map(|operation| fixture.count(operation));
    assert_eq!(own, [20, 20, 20]);
    assert_eq!(fixture.count(Operation::Create) + fixture.count(Operation::BulkEnvs), 40);
    assert_eq!(fixture.count(Operation::Logs), 20);
    assert_eq!(fixture.count(Operation::Inspect) + fixture.count(Operation::Deployment), 0);
    let listings = fixture.count(Operation::List);
    assert!(listings < 60, "{listings}");
    fixture.no_violations();
}

#[tokio::test]
async fn only_the_latest_description_is_sent_and_a_start_includes_it() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    provider.create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    for number in 0..50 {
        provider.describe(&CoolifyFixture::slot(1), &format!("[BUSY] Bot #{number}")).await;
    }
    until("it is described", async || fixture.only().description.as_deref() == Some("[BUSY] Bot #49")).await;
    assert!(fixture.count(Operation::Describe) <= 2, "{}", fixture.count(Operation::Describe));
    let before = fixture.count(Operation::Describe);
    // If the application does not exist yet, the request that creates it contains the description.
    provider.describe(&CoolifyFixture::slot(2), "[BUSY] Bot #1").await;
    let uuid = provider.start(&CoolifyFixture::spec(2, "a")).await.unwrap();
    assert_eq!(fixture.fake.application(&uuid).unwrap().description.as_deref(), Some("[BUSY] Bot #1"));
    assert_eq!(fixture.count(Operation::Describe), before + 1);
    assert_eq!(provider.list().await.unwrap().len(), 2);
    fixture.no_violations();
}

#[tokio::test]
async fn a_description_waits_for_its_turn_and_is_finally_sent() {
    let database = Database::new(Backend::Sqlite).await;
    let minute = Duration::from_millis(1_500);
    let fixture = CoolifyFixture::on(database.into(), 20, minute, |_| {}).await;
    let provider = fixture.process();
    provider.create(&CoolifyFixture::spec(1, "a")).await.unwrap();
    // More than half of the budget is used, so descriptions wait.
    while fixture.fake.calls().len() < 12 {
        provider.last_lines(&CoolifyFixture::slot(1)).await.unwrap();
    }
    let begun = Instant::now();
    provider.describe(&CoolifyFixture::slot(1), "[IDLE] Available").await;
    assert!(begun.elapsed() < Duration::from_millis(100));
    fixture.fake.break_next(Operation::Describe, Fault::Fail, 1);
    until("it is described", async || fixture.only().description.as_deref() == Some("[IDLE] Available")).await;
    // Once at the creation, and twice because the first attempt failed.
    assert_eq!((fixture.count(Operation::Describe), fixture.fake.throttled()), (3, 0));
}

#[tokio::test]
async fn a_call_waits_after_a_429_and_then_succeeds() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    for operation in [Operation::List, Operation::Create, Operation::Start] {
        fixture.fake.break_next(operation, Fault::Throttle(1), 1);
    }
    let begun = Instant::now();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(3));
    fixture.fake.break_next(Operation::Stop, Fault::Throttle(1), 1);
    provider.stop(&CoolifyFixture::slot(1), true).await.unwrap();
    assert_eq!(fixture.fake.throttled(), 4);
    assert_eq!(fixture.fake.deployments(), ["finished"]);
}

#[tokio::test]
async fn a_ping_costs_a_request_a_minute_at_most() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    for _ in 0..20 {
        provider.ping().await.unwrap();
    }
    assert_eq!(fixture.fake.calls().len(), 1);
    let wrong = fixture.process_with(CoolifyConfig { api_token: "wrong".into(), ..fixture.config() });
    for _ in 0..20 {
        let error = wrong.ping().await.unwrap_err();
        assert!(error.message.contains("does not accept the token"), "{error:?}");
    }
    assert_eq!(fixture.fake.calls().len(), 2);
}

#[tokio::test]
async fn listings_of_all_replicas_leave_most_of_the_budget() {
    let minute = Duration::from_secs(2);
    let fixture = CoolifyFixture::on(Database::new(Backend::Sqlite).await.into(), 100, minute, |_| {}).await;
    let begun = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let provider = fixture.process();
        all.spawn(async move {
            while begun.elapsed() < minute {
                provider.list().await.unwrap();
            }
        });
    }
    all.join_all().await;
    let (listings, minutes) = (fixture.count(Operation::List), begun.elapsed().as_secs_f64() / minute.as_secs_f64());
    // A fifth of the budget, plus the burst at the beginning.
    #[allow(clippy::cast_precision_loss)]
    let listings = listings as f64;
    assert!(listings <= 20.0 * minutes + 4.0 && listings >= 10.0 * minutes, "{listings} in {minutes} minutes");
}

/// Coolify answers 429, and the call waits.
async fn held(
    fixture: &CoolifyFixture,
    fault: Fault,
) -> (Arc<greenroom::providers::coolify::CoolifyProvider>, impl Sized) {
    let provider = Arc::new(fixture.process());
    fixture.fake.break_next(Operation::List, fault, 1);
    let waits = provider.clone();
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move { waits.list().await });
    until("Coolify has answered 429", async || fixture.fake.throttled() == 1).await;
    (provider, waiting)
}

#[tokio::test]
async fn a_coolify_that_answers_429_counts_as_available() {
    let fixture = CoolifyFixture::plain().await;
    let (provider, _waiting) = held(&fixture, Fault::Throttle(60)).await;
    tokio::time::timeout(Duration::from_secs(1), provider.ping()).await.unwrap().unwrap();
    // Another replica learns this while it waits for its turn.
    fixture.process().ping().await.unwrap();
    assert_eq!(fixture.count(Operation::Version), 0);
    // The ping itself may get the answer 429.
    let other = CoolifyFixture::plain().await;
    other.fake.break_next(Operation::Version, Fault::Throttle(60), 1);
    tokio::time::timeout(Duration::from_secs(1), other.process().ping()).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_call_that_waits_too_long_fails_with_the_reason_that_coolify_limits_requests() {
    let fixture = CoolifyFixture::plain().await;
    let provider = fixture.process();
    provider.start(&CoolifyFixture::spec(1, "a")).await.unwrap();
    fixture.fake.break_next(Operation::Stop, Fault::Throttle(60), 1);
    for error in [
        provider.stop(&CoolifyFixture::slot(1), true).await.unwrap_err(),
        provider.delete(&CoolifyFixture::slot(1)).await.unwrap_err(),
        provider.inspect(&CoolifyFixture::slot(1)).await.unwrap_err(),
    ] {
        assert!(error.retryable && error.message.contains("accepts no requests"), "{error:?}");
    }
}

#[tokio::test]
async fn a_log_is_not_requested_while_others_wait() {
    let fixture = CoolifyFixture::plain().await;
    let (provider, _waiting) = held(&fixture, Fault::Throttle(60)).await;
    let lines = tokio::time::timeout(Duration::from_secs(1), provider.last_lines(&CoolifyFixture::slot(1))).await;
    assert_eq!(lines.unwrap().unwrap(), None);
}

#[rstest]
#[case::until_a_moment(Fault::ThrottleUntil(3), 2_000)]
#[case::not_said(Fault::ThrottleSilently, 1_200)]
#[tokio::test]
async fn the_wait_after_a_429_may_be_a_time_or_missing(#[case] fault: Fault, #[case] least: u64) {
    let fixture = CoolifyFixture::plain().await;
    fixture.fake.break_next(Operation::List, fault, 1);
    let begun = Instant::now();
    fixture.process().list().await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(least) && waited < Duration::from_secs(5), "{waited:?}");
}
