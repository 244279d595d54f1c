//! The image lock: one pull for each image and host, however many slots need the image at once.

use std::time::Duration;

use domain::{Deadlines, SlotName, Status};
use greenroom::deployment::ProviderTimeouts;
use greenroom::providers::{Image, ProviderError};
use greenroom::store::{Holder, Lease, LeaseClaim, PoolRow};
use rstest::rstest;
use uuid::Uuid;

use crate::support::{Backend, Call, CoreFixture, Database, DeploymentFixture, Fake, Plan, bot_request, pool, until};

const SLOTS: usize = 10;

fn meet() -> PoolRow {
    PoolRow { max_slots: SLOTS as i64, ..pool("meet") }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn ten_slots_whose_image_is_missing_pull_it_once(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let answers = fixture.core.ask_at_once((0..SLOTS).map(bot_request)).await;
    until("one pulls, and the others have left the gate", async || {
        fixture.at_gate().await == (1, SLOTS - 1) && fixture.fake.count(&Call::Pull) == 1
    })
    .await;
    assert_eq!(fixture.fake.starting(), 0, "nothing starts without its image");
    until("the progress of the pull is shown", async || {
        let pulls = fixture.core.store.pulls(fixture.core.clock.now()).await.unwrap();
        let shown = pulls.iter().map(|pull| (pull.image.name.as_str(), pull.pulled.layers, pull.pulled.bytes_done));
        shown.collect::<Vec<_>>() == [("bot", 3, 500)]
    })
    .await;
    fixture.fake.release(1 + SLOTS);
    for answer in answers {
        fixture.runs(answer.bot.id).await;
    }
    assert_eq!(fixture.fake.count(&Call::Pull), 1);
    assert_eq!(fixture.fake.starts().len(), SLOTS);
    assert_eq!(fixture.core.store.pulls(fixture.core.clock.now()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_continues_when_its_first_bot_is_stopped() {
    let fixture =
        DeploymentFixture::with(Backend::Sqlite, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let first = fixture.core.reserved(0).await;
    until("it is being pulled", async || fixture.fake.count(&Call::Pull) == 1).await;
    let second = fixture.core.reserved(1).await;
    let caller = fixture.caller_of(&fixture.bot(first).await).unwrap();
    fixture.core.exited(caller, 0).await.unwrap();
    // The deployment checks every few seconds whether its bot still needs it, and gives up if not.
    until("it is cleared", async || fixture.fake.count(&Call::Stop(SlotName::new("meet", 1))) == 1).await;
    fixture.fake.release(10);
    fixture.runs(second).await;
    assert_eq!(fixture.fake.count(&Call::Pull), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_postgres_pull_an_image_once() {
    let left =
        DeploymentFixture::with(Backend::Postgres, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let right = left.beside(SLOTS as u32).await;
    let (some, others) = tokio::join!(
        left.core.ask_at_once((0..5).map(bot_request)),
        right.core.ask_at_once((5..SLOTS).map(bot_request))
    );
    until("one pulls, and the others have left the gate", async || {
        left.at_gate().await == (1, SLOTS - 1) && left.fake.count(&Call::Pull) == 1
    })
    .await;
    left.fake.release(1 + SLOTS);
    for answer in some.iter().chain(&others) {
        left.runs(answer.bot.id).await;
    }
    assert_eq!(left.fake.count(&Call::Pull), 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_pull_the_next_bot_pulls_again(#[case] backend: Backend) {
    let fake = Fake::default().without_image().failing_pulls([ProviderError::permanent("unauthorized: sign in first")]);
    let fixture = DeploymentFixture::with(backend, [meet()], SLOTS as u32, fake).await;
    let answers = fixture.core.ask_at_once((0..SLOTS).map(bot_request)).await;
    until("no deployment is at the gate", async || fixture.at_gate().await == (0, 0)).await;
    let mut errors = Vec::new();
    for answer in answers {
        errors.extend(fixture.bot(answer.bot.id).await.error);
    }
    assert_eq!(errors, ["unauthorized: sign in first"], "one bot fails, with the provider's message");
    assert_eq!(fixture.fake.count(&Call::Pull), 2);
    assert_eq!(fixture.fake.starts().len(), SLOTS - 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_pull_is_ended_with_its_last_message_and_retried(#[case] backend: Backend) {
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet()])).await;
    let timeouts = ProviderTimeouts { pull_stall: Duration::from_millis(300), ..ProviderTimeouts::default() };
    let fixture = DeploymentFixture::patient(core, 4, Fake::hanging().without_image().into(), timeouts).await;
    let answers = fixture.core.ask_at_once((0..3).map(bot_request)).await;
    let expected = "the image bot cannot be pulled: no progress for 0.3 s; the last step was: layer 2 Downloading";
    until("the reason is shown", async || {
        let deployments = fixture.core.store.deployments().await.unwrap();
        deployments.iter().any(|row| row.last_error.as_deref() == Some(expected))
    })
    .await;
    until("it is pulled again", async || fixture.fake.count(&Call::Pull) >= 2).await;
    until("the stalled pull is gone", async || fixture.fake.pulling() <= 1).await;
    fixture.fake.release(100);
    for answer in answers {
        fixture.runs(answer.bot.id).await;
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_bot_that_waits_for_an_image_is_outside_the_gate_and_fails_at_its_deadline(#[case] backend: Backend) {
    let plan = Plan::of([meet()]);
    let plan = Plan { deadlines: Deadlines { deploy: Duration::from_secs(60), ..plan.deadlines }, ..plan };
    let fixture = DeploymentFixture::planned(backend, &plan, 2, Fake::hanging().without_image()).await;
    let answers = fixture.core.ask_at_once((0..4).map(bot_request)).await;
    until("one pulls, and no other is inside the gate", async || {
        fixture.fake.count(&Call::Pull) == 1 && fixture.at_gate().await == (1, 3)
    })
    .await;
    fixture.keep("deployment").await;
    assert_eq!(fixture.at_gate().await, (1, 3), "no bot passes the gate only to wait for the image");
    fixture.core.clock.advance(Duration::from_secs(60));
    fixture.keep("queue_expiry").await;
    let mut ends = Vec::new();
    for answer in answers {
        ends.push(fixture.core.stands(answer.bot.id).await);
    }
    let late = (Status::Failed, Some("deploy_timeout".to_owned()));
    assert_eq!(ends.iter().filter(|end| **end == late).count(), 3, "{ends:?}");
    fixture.fake.release(10);
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.starts().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_a_replica_was_pulling_when_it_died_is_pulled_by_another_on_postgres() {
    let core = CoreFixture::planned(Database::new(Backend::Postgres).await.into(), &Plan::of([meet()])).await;
    let replica = Holder { id: Uuid::new_v4(), name: "the other".to_owned() };
    core.store.register_replica(&replica, Duration::from_secs(600)).await.unwrap();
    let image = Image { name: "bot".to_owned(), host: "host".to_owned() };
    assert!(core.store.take_lease(&LeaseClaim::new(Lease::Image(image), &replica)).await.unwrap());
    let fixture = DeploymentFixture::on(core, 4, Fake::default().without_image().into()).await;
    let bot = fixture.core.reserved(0).await;
    fixture.keep("deployment").await;
    assert_eq!((fixture.at_gate().await, fixture.fake.count(&Call::Pull)), ((0, 1), 0));
    assert!(fixture.core.store.renew_replica(replica.id, Duration::from_millis(1), None).await.unwrap().lives);
    fixture.runs(bot).await;
    assert_eq!(fixture.fake.count(&Call::Pull), 1);
}
