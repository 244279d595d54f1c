//! The pickup manager on moto's SQS: which messages it drops, which it returns and how, who gets which runner, and when
//! there is none.

use std::time::Duration;

use domain::{Attributes, Requirements, UsageClass};

use crate::support::{World, eventually, large, on_demand, spot, xlarge};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn invalid_messages_are_dropped() {
    let world = World::new(vec![large(), xlarge()]).await;
    let good = world.attributes("large", UsageClass::OnDemand);
    world.send("large", "not an announcement").await;
    world.send("large", r#"{"instanceId": "i-1"}"#).await;
    world.send("large", world.announcement("i-expired", &good, Duration::ZERO).body()).await;
    let other = world.attributes("xlarge", UsageClass::OnDemand);
    world.send("large", world.announcement("i-other", &other, MINUTE).body()).await;
    let unknown = Attributes { resource_class: Some("unheard-of".into()), ..good.clone() };
    world.send("large", world.announcement("i-unknown", &unknown, MINUTE).body()).await;
    let small = Attributes { mem: good.mem - 1, ..good.clone() };
    world.send("large", world.announcement("i-small", &small, MINUTE).body()).await;
    world.send("large", world.announcement("i-good", &good, MINUTE).body()).await;

    let pool = world.pool().await;
    let picked = pool.pick(Some(&on_demand())).await.unwrap().unwrap();
    assert_eq!(picked.instance, "i-good");
    assert_eq!(pool.pick(None).await.unwrap(), None);
    assert_eq!(world.messages("large").await, 0);
}

#[tokio::test]
async fn a_message_that_does_not_fit_is_returned_unchanged_for_three_seconds() {
    let world = World::new(vec![large()]).await;
    let attributes = world.attributes("large", UsageClass::OnDemand);
    // Unknown fields and the order of all fields stay unchanged.
    let body = world.announcement("i-1", &attributes, MINUTE).body().replacen('{', r#"{ "more": [1],  "#, 1);
    world.send("large", &body).await;
    let pool = world.pool().await;
    assert_eq!(pool.pick(Some(&spot())).await.unwrap(), None);
    eventually("a message that is delayed", async || (world.delayed("large").await == 1).then_some(())).await;
    let (back, delay) = world.receive("large").await;
    assert_eq!(back, body);
    assert!((3000..10_000).contains(&delay), "{delay}");
}

#[tokio::test]
async fn a_message_is_offered_to_every_waiting_request_before_it_is_returned() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let (wants_spot, wants_it) = (spot(), on_demand());
    let (first, second) = tokio::join!(pool.pick(Some(&wants_spot)), pool.pick(Some(&wants_it)));
    assert_eq!(first.unwrap(), None);
    assert_eq!(second.unwrap().unwrap().instance, "i-1");
    assert_eq!(world.messages("large").await, 0);
}

#[tokio::test]
async fn requests_are_served_in_the_order_of_their_arrival() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1", "i-2"]).await;
    let (first, second, third) = tokio::join!(pool.pick(None), pool.pick(None), pool.pick(None));
    let mut served = [first, second].map(|picked| picked.unwrap().unwrap().instance);
    served.sort();
    assert_eq!(served, ["i-1", "i-2"]);
    assert_eq!(third.unwrap(), None);
}

#[tokio::test]
async fn an_empty_queue_is_exhausted_for_every_request() {
    let world = World::new(vec![large(), xlarge()]).await;
    let pool = world.pool().await;
    let wanted = on_demand();
    let (one, other) = tokio::join!(pool.pick(None), pool.pick(Some(&wanted)));
    assert_eq!((one.unwrap(), other.unwrap()), (None, None));
}

#[tokio::test]
async fn a_queue_is_exhausted_for_a_request_that_has_seen_the_same_runner_too_often() {
    let mut settings = crate::moto::settings(vec![large()]);
    // A message that does not fit is available again at once, so that the queue is never empty.
    settings.pace.redelivery = Duration::ZERO;
    let world = World::with(settings, false).await;
    let pool = world.pool().await;
    let names: Vec<_> = (0..30).map(|number| format!("i-{number}")).collect();
    world.idle(&pool, "large", &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(pool.pick(Some(&spot())).await.unwrap(), None);
    eventually("all messages", async || (world.messages("large").await == 30).then_some(())).await;
}

#[tokio::test]
async fn a_request_waits_for_a_fitting_message_that_was_just_returned() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    assert_eq!(pool.pick(Some(&spot())).await.unwrap(), None);
    assert_eq!(pool.pick(Some(&on_demand())).await.unwrap().unwrap().instance, "i-1");
}

#[tokio::test]
async fn the_smallest_class_that_has_one_is_asked_first() {
    let world = World::new(vec![xlarge(), large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "xlarge", &["i-bigger"]).await;
    world.idle(&pool, "large", &["i-smaller"]).await;
    for expected in [Some("i-smaller"), Some("i-bigger"), None] {
        let picked = pool.pick(None).await.unwrap();
        assert_eq!(picked.as_ref().map(|picked| picked.instance.as_str()), expected);
    }
}

#[tokio::test]
async fn a_message_for_a_cancelled_request_is_returned_at_once() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    pool.pause_at(Some(aws::Step::Deleted));
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.pick(None).await }
    });
    crate::support::stands(&pool).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    pool.pause_at(None);
    assert_eq!(pool.pick(None).await.unwrap().unwrap().instance, "i-1");
}

#[tokio::test]
async fn a_missing_queue_is_reported_with_the_command_that_creates_it() {
    let mut settings = crate::moto::settings(vec![large()]);
    aws::init(&settings).await.unwrap();
    settings.queue_prefix = crate::moto::prefix();
    let pool = aws::RunnerPool::connect(settings).await;
    let error = pool.pick(None).await.unwrap_err();
    assert!(!error.retryable());
    assert!(error.to_string().contains("greenroom aws init"), "{error}");
}

#[tokio::test]
async fn without_an_answer_the_error_is_transient() {
    // Nothing listens at this address.
    let settings =
        aws::Settings { endpoint: Some("http://127.0.0.1:1".into()), ..crate::moto::settings(vec![large()]) };
    let pool = aws::RunnerPool::connect(settings).await;
    let error = pool.pick(None).await.unwrap_err();
    assert!(error.retryable(), "{error}");
    assert!(pool.ping().await.unwrap_err().retryable());
}

#[tokio::test]
async fn the_one_runner_in_a_hundred_that_fits_is_found_and_the_others_stay_available() {
    let world = World::new(vec![crate::moto::class("large", 1, &["c6i.large", "r6i.large"], 200, 0)]).await;
    let pool = world.pool().await;
    let usual = world.attributes("large", UsageClass::OnDemand);
    let rare = Attributes { instance_type: Some("r6i.large".into()), ..usual.clone() };
    let runner = |number: usize| (format!("i-{number}"), if number % 100 == 50 { rare.clone() } else { usual.clone() });
    pool.fill(&(0..200).map(runner).collect::<Vec<_>>()).await.unwrap();
    let allowed = Some("r*".to_owned().try_into().unwrap());
    let wanted = Requirements { allowed_instance_types: allowed, ..on_demand() };
    let (one, other) = tokio::join!(pool.pick(Some(&wanted)), pool.pick(Some(&wanted)));
    let mut found = [one, other].map(|picked| picked.unwrap().unwrap().instance);
    found.sort();
    assert_eq!(found, ["i-150", "i-50"]);
    eventually("the others", async || (world.messages("large").await == 198).then_some(())).await;
}
