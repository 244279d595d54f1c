//! The deploy gate: it limits the number of concurrent starts, in order of arrival, across all processes, and no bot
//! waits for ever.

use std::time::Duration;

use domain::planner::Changes;
use domain::planner::changes::NewDeployment;
use domain::{BotId, Deadlines, Meeting, Platform, SlotStatus, Status};
use greenroom::admission::BotRequest;
use greenroom::placement::SlotEvent;
use greenroom::providers::ProviderError;
use greenroom::store::{Holder, PoolRow, Served};
use rstest::rstest;
use uuid::Uuid;

use crate::support::placement_writes::write;
use crate::support::{
    Backend, Call, CoreFixture, Database, DeploymentFixture, Fake, Plan, bot_request, configure, pool, until,
};

fn meet(max_slots: i64) -> PoolRow {
    PoolRow { max_slots, ..pool("meet") }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn four_of_twenty_starts_run_at_once_and_pass_the_gate_in_order_of_arrival(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [meet(20)], 4, Fake::hanging()).await;
    let answers = fixture.core.ask_at_once((0..20).map(bot_request)).await;
    until("four starts hang", async || fixture.fake.starting() == 4).await;
    assert_eq!(fixture.at_gate().await, (4, 16));
    let deployments = fixture.core.store.deployments().await.unwrap();
    assert!(deployments[..4].iter().all(|first| first.active), "the first four are inside the gate");
    for (before, next) in deployments.iter().enumerate().skip(4) {
        fixture.fake.release(1);
        until("the next has passed", async || fixture.fake.starts().len() > before).await;
        assert_eq!(fixture.fake.starts()[before], next.slot);
    }
    fixture.fake.release(4);
    for answer in answers {
        fixture.runs(answer.bot.id).await;
    }
    assert_eq!(fixture.fake.most_starting(), 4);
    assert_eq!(fixture.at_gate().await, (0, 0));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_start_that_fails_again_and_again_lets_others_pass_meanwhile(#[case] backend: Backend) {
    let trouble = (0..4).map(|_| ProviderError::transient("no node has room"));
    let fixture = DeploymentFixture::with(backend, [meet(2)], 1, Fake::default().failing_starts(trouble)).await;
    let first = fixture.core.reserved(0).await;
    let second = fixture.core.reserved(1).await;
    // The gate admits one deployment at a time.
    let other = fixture.runs(second).await;
    let tried = fixture.fake.starts();
    let slot = tried[0].clone();
    assert_eq!(tried, [slot.clone(), slot.clone(), slot.clone(), slot.clone(), other]);
    let waiting = fixture.core.store.deployments().await.unwrap();
    assert_eq!((waiting[0].active, waiting[0].last_error.as_deref()), (false, Some("no node has room")));
    assert_eq!(fixture.bot(first).await.status, Status::Reserved);
    fixture.core.clock.advance(Duration::from_secs(2));
    fixture.reconcile();
    assert_eq!(fixture.runs(first).await, slot);
}

#[tokio::test]
async fn a_bot_that_is_stopped_between_two_attempts_leaves_nothing_behind() {
    let trouble = (0..4).map(|_| ProviderError::transient("no node has room"));
    let fixture = DeploymentFixture::with(Backend::Sqlite, [meet(1)], 4, Fake::default().failing_starts(trouble)).await;
    let bot = fixture.core.reserved(0).await;
    until("it waits for its next try", async || {
        let waiting = fixture.core.store.deployments().await.unwrap();
        waiting.first().is_some_and(|deployment| deployment.tries == 1)
    })
    .await;
    fixture.core.lifecycle.stop(fixture.core.user, bot).await.unwrap();
    fixture.core.clock.advance(Duration::from_secs(2));
    fixture.reconcile();
    assert_eq!(fixture.end_of(bot).await, (Status::Completed, Some("stopped".to_owned())));
    let slot = fixture.slot_is("pool-meet-001", SlotStatus::Idle).await.name;
    // Something may have been started, so it is stopped before another bot gets the slot.
    let calls = fixture.fake.calls_for(&slot);
    assert_eq!(calls[4..], [Call::Stop(slot.clone()), Call::Create(slot)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_holds_across_two_servers_on_one_postgres() {
    let left = DeploymentFixture::with(Backend::Postgres, [meet(20)], 4, Fake::hanging()).await;
    let right = left.beside(4).await;
    let (some, others) = tokio::join!(
        left.core.ask_at_once((0..10).map(bot_request)),
        right.core.ask_at_once((10..20).map(bot_request))
    );
    until("four starts hang", async || left.fake.starting() == 4).await;
    // Both check again, and see that the gate is full.
    left.reconcile();
    right.reconcile();
    assert_eq!(right.at_gate().await, (4, 16));
    for _ in 0..20 {
        left.fake.release(1);
    }
    for answer in some.iter().chain(&others) {
        left.runs(answer.bot.id).await;
    }
    assert_eq!(left.fake.most_starting(), 4);
    assert_eq!(left.fake.starts().len(), 20, "nothing was started twice");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_waits_too_long_at_the_gate_fails_and_its_slot_goes_to_the_next_in_the_queue(
    #[case] backend: Backend,
) {
    // Shorter than the lease of the deployment inside the gate, which continues.
    let plan = Plan::of([meet(2)]);
    let plan = Plan { deadlines: Deadlines { deploy: Duration::from_secs(10), ..plan.deadlines }, ..plan };
    let fixture = DeploymentFixture::planned(backend, &plan, 1, Fake::hanging()).await;
    let first = fixture.starting(0).await;
    let (late, next) = (fixture.core.reserved(1).await, fixture.core.reserved(2).await);
    assert_eq!(fixture.queue().await, [next]);
    fixture.core.clock.advance(Duration::from_secs(10));
    fixture.reconcile();
    assert_eq!(fixture.end_of(late).await, (Status::Failed, Some("deploy_timeout".to_owned())));
    // The next bot gets the slot in the same transaction, because nothing was started in it.
    assert_eq!(fixture.bot(next).await.slot, fixture.bot(late).await.slot);
    assert_eq!(fixture.queue().await, []);
    fixture.fake.release(2);
    fixture.runs(first).await;
    fixture.runs(next).await;
    assert_eq!(fixture.fake.starts().len(), 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_deployment_that_is_requested_or_cancelled_twice_counts_once(#[case] backend: Backend) {
    // No server runs the pools, so the gate stays shut.
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(3)])).await;
    for number in 0..3 {
        core.reserved(number).await;
    }
    let deployments = core.store.deployments().await.unwrap();
    assert_eq!(deployments.len(), 3);
    let repeated = deployments.iter().rev().map(|row| NewDeployment {
        slot: row.slot.clone(),
        pool: "meet".to_owned(),
        host: row.host.clone(),
        bot: row.bot_id,
        timeout_at: row.timeout_at.saturating_add(Duration::from_secs(60)).unwrap(),
    });
    let repeated = Changes { deployments: repeated.collect(), ..Changes::default() };
    write(&core.store, &repeated, &Default::default(), core.clock.now()).await.unwrap();
    assert_eq!(core.store.deployments().await.unwrap(), deployments);

    let leaves = Changes { cancelled_deployments: vec![deployments[1].slot.clone()], ..Changes::default() };
    for _ in 0..2 {
        write(&core.store, &leaves, &Default::default(), core.clock.now()).await.unwrap();
        assert_eq!(core.store.deployments().await.unwrap(), [deployments[0].clone(), deployments[2].clone()]);
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn deployments_of_an_earlier_process_are_taken_over_at_once_if_there_can_be_only_one_process(
    #[case] backend: Backend,
) {
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(2)])).await;
    let left_behind = core.reserved(0).await;
    hold(&core, left_behind, Uuid::new_v4()).await;
    assert_eq!(core.store.release_everything(core.clock.now()).await.unwrap(), 1);
    let fixture = DeploymentFixture::on(core, 2, Fake::default().into()).await;
    fixture.lives(left_behind).await;
    assert_eq!(fixture.fake.starts().len(), 1);
}

/// A replica lets a bot through the gate, and then never does anything again.
async fn hold(core: &CoreFixture, bot: BotId, replica: Uuid) {
    let served = [Served { pool: "meet".to_owned(), image: None }];
    let mut tx = core.store.begin().await.unwrap();
    let passed = tx.pass_gate(2, &served, Uuid::new_v4(), replica, core.clock.now()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(passed.iter().map(|row| row.bot_id).collect::<Vec<_>>(), [Some(bot)]);
}

#[tokio::test]
async fn deployments_of_a_replica_are_taken_over_only_after_its_death_on_postgres() {
    let core = CoreFixture::planned(Database::new(Backend::Postgres).await.into(), &Plan::of([meet(3)])).await;
    let replica = Holder { id: Uuid::new_v4(), name: "the other".to_owned() };
    core.store.register_replica(&replica, Duration::from_secs(600)).await.unwrap();
    let left_behind = core.reserved(0).await;
    hold(&core, left_behind, replica.id).await;

    let fixture = DeploymentFixture::on(core, 2, Fake::default().into()).await;
    let other = fixture.core.reserved(1).await;
    fixture.runs(other).await;
    fixture.reconcile();
    assert_eq!(fixture.fake.starts(), [fixture.bot(other).await.slot.unwrap()], "the other replica still holds it");
    // The replica dies: its lease is not renewed any more.
    assert!(fixture.core.store.renew_replica(replica.id, Duration::from_millis(1), None).await.unwrap().lives);
    fixture.lives(left_behind).await;
    assert_eq!(fixture.fake.starts().len(), 2);
    let renewed = fixture.core.store.renew_replica(replica.id, Duration::from_secs(600), None).await.unwrap().lives;
    assert!(!renewed, "a replica that was taken for dead gets an error");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_stop_at_the_gate_ends_the_bot_at_once_and_frees_its_slot(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [meet(2)], 1, Fake::hanging()).await;
    fixture.starting(0).await;
    let (stopped, next) = (fixture.core.reserved(1).await, fixture.core.reserved(2).await);
    let answer = fixture.core.lifecycle.stop(fixture.core.user, stopped).await.unwrap();
    assert_eq!(answer.bot.status, Status::Completed);
    assert_eq!(fixture.core.stands(stopped).await, (Status::Completed, Some("stopped".to_owned())));
    until("the next bot has its slot", async || fixture.place_of(next).await.is_some()).await;
    let slot = fixture.bot(stopped).await.slot.unwrap();
    assert_eq!(fixture.bot(next).await.slot.as_ref(), Some(&slot));
    assert_eq!(fixture.fake.count(&Call::Start(slot)), 0, "nothing was started in it");
    fixture.fake.release(2);
    fixture.runs(next).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_bot_ended_during_its_start_is_cleared_before_the_next_has_it(#[case] backend: Backend) {
    let plan = Plan::of([meet(1)]);
    let plan = Plan { deadlines: Deadlines { stop_grace: Duration::from_secs(5), ..plan.deadlines }, ..plan };
    let fixture = DeploymentFixture::planned(backend, &plan, 1, Fake::hanging()).await;
    let bot = fixture.starting(0).await;
    let next = fixture.core.reserved(1).await;
    // Something may run already, so the server sends the command to leave. Nothing answers.
    let stopped = fixture.core.lifecycle.stop(fixture.core.user, bot).await.unwrap();
    assert_eq!(stopped.bot.status, Status::Stopping);
    assert_eq!(fixture.queue().await, [next], "the slot is not free while a start is in progress");
    assert_eq!(fixture.core.after(5).await, 1);
    assert_eq!(fixture.core.stands(bot).await, (Status::Completed, Some("stopped".to_owned())));
    fixture.fake.release(2);
    let slot = fixture.runs(next).await;
    let expected = [Call::Start(slot.clone()), Call::Stop(slot.clone()), Call::Start(slot)];
    assert_eq!(fixture.fake.calls(), expected);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_without_a_bot_is_started_only_after_those_with_a_bot(#[case] backend: Backend) {
    let hot = PoolRow { hot: true, min_idle: 3, ..meet(9) };
    let fixture = DeploymentFixture::with(backend, [hot], 1, Fake::hanging()).await;
    until("a slot is made ready", async || fixture.fake.starts().len() == 1).await;
    assert_eq!(fixture.at_gate().await, (1, 2));
    let bot = fixture.core.reserved(0).await;
    let slot = fixture.bot(bot).await.slot.unwrap();
    assert_eq!(fixture.slot(slot.as_str()).await.unwrap().status, SlotStatus::Creating);
    fixture.fake.release(1);
    until("the next has passed", async || fixture.fake.starts().len() == 2).await;
    assert_eq!(fixture.fake.starts()[1], slot);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_without_a_bot_leave_one_place_in_the_gate_to_bots(#[case] backend: Backend) {
    let hot = PoolRow { hot: true, min_idle: 6, max_slots: 10, ..pool("meet") };
    let fixture = DeploymentFixture::with(backend, [hot], 4, Fake::hanging()).await;
    // A bot passes the gate before its start. A bot that passes next must not overtake one of the three.
    until("three of six are being started", async || fixture.at_gate().await == (3, 3) && fixture.fake.starting() == 3)
        .await;
    fixture.reconcile();
    let bot = fixture.core.reserved(0).await;
    let slot = fixture.bot(bot).await.slot.unwrap();
    until("the bot's start is the fourth", async || fixture.fake.starts().get(3) == Some(&slot)).await;
    assert_eq!(fixture.at_gate().await.0, 4);
    fixture.fake.release(7);
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.most_starting(), 4);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn hanging_starts_on_one_host_do_not_delay_another_host(#[case] backend: Backend) {
    let far = PoolRow { host: "docker far".to_owned(), platform: Platform::Zoom, ..pool("far") };
    let fixture =
        DeploymentFixture::with(backend, [meet(5), PoolRow { max_slots: 5, ..far }], 2, Fake::hanging()).await;
    fixture.core.ask_at_once((0..5).map(bot_request)).await;
    until("two starts hang", async || fixture.fake.starting() == 2).await;
    let zoom = |number| BotRequest {
        meeting: Meeting::from_link(&format!("https://zoom.us/j/12345678{number:02}")).unwrap(),
        ..bot_request(number)
    };
    fixture.core.ask_at_once((0..5).map(zoom)).await;
    until("two more start on the other host", async || fixture.fake.starting() == 4).await;
    fixture.reconcile();
    let deployments = fixture.core.store.deployments().await.unwrap();
    for host in ["process here", "docker far"] {
        let at: Vec<bool> = deployments.iter().filter(|row| row.host == host).map(|row| row.active).collect();
        assert_eq!(at, [true, true, false, false, false], "first in first out on {host}");
    }
    fixture.fake.release(10);
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.most_starting(), 4);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_replica_ignores_pools_that_it_has_no_provider_for(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { platform: Platform::Zoom, ..pool("old") }]).await;
    // Another replica has a newer configuration.
    configure(&fixture.core.store, &meet(2)).await;
    let bot = fixture.core.reserved(0).await;
    fixture.keep("deployment").await;
    assert_eq!(fixture.at_gate().await, (0, 1));
    assert_eq!(fixture.core.stands(bot).await, (Status::Reserved, None));
    let newer = fixture.beside(4).await;
    newer.lives(bot).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_waiting_deployment_passes_the_gate_of_its_pools_new_host(#[case] backend: Backend) {
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(3)])).await;
    core.reserved(0).await;
    hold(&core, core.store.deployments().await.unwrap()[0].bot_id.unwrap(), Uuid::new_v4()).await;
    core.reserved(1).await;
    let mut tx = core.store.begin().await.unwrap();
    tx.move_deployments("meet", "docker elsewhere").await.unwrap();
    tx.commit().await.unwrap();
    let deployments = core.store.deployments().await.unwrap();
    let hosts: Vec<&str> = deployments.iter().map(|row| row.host.as_str()).collect();
    assert_eq!(hosts, ["process here", "docker elsewhere"], "a deployment in progress stays on its host");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_deployment_of_a_replica_of_the_earlier_version_passes_the_gate(#[case] backend: Backend) {
    let core = CoreFixture::planned(Database::new(backend).await.into(), &Plan::of([meet(2)])).await;
    let held = core.reserved(0).await;
    hold(&core, held, Uuid::new_v4()).await;
    let waiting = core.reserved(1).await;
    // Rows as the earlier version writes them: it has no pool, host or replica of a deployment.
    let before =
        "UPDATE deployments SET pool = NULL, host = NULL, replica = NULL, lease_until = '2020-01-01T00:00:00Z'";
    core.database.execute(before).await;
    let mut tx = core.store.begin().await.unwrap();
    tx.move_deployments("meet", "process here").await.unwrap();
    tx.commit().await.unwrap();
    core.store.release_dead_replicas(Uuid::new_v4(), core.clock.now(), true).await.unwrap();
    let fixture = DeploymentFixture::on(core, 4, Fake::default().into()).await;
    fixture.lives(held).await;
    fixture.lives(waiting).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_lock_of_cancelled_work_is_released_after_a_while(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [meet(1)], 1, Fake::slow_to_end()).await;
    let bot = fixture.core.reserved(0).await;
    let name = fixture.runs(bot).await;
    let broken = SlotEvent::Broken { bot: Some(bot), message: "it smokes".to_owned() };
    fixture.core.placement.report(name.clone(), broken).await.unwrap();
    let slot = fixture.slot_is(name.as_str(), SlotStatus::Error).await;
    let (deployment, since) = (fixture.deployment.clone(), fixture.core.clock.now());
    let work = tokio::spawn(async move { deployment.attempt(&slot.name, since).await.map(drop) });
    until("it is being stopped", async || fixture.fake.count(&Call::Stop(name.clone())) == 1).await;
    work.abort();
    fixture.fake.release_ends(1);
    assert_eq!(fixture.deployment.recover(&name).await.unwrap(), None, "a part of it may still be in progress");
    until("it can be recovered", async || fixture.deployment.recover(&name).await.unwrap().is_some()).await;
    fixture.slot_is(name.as_str(), SlotStatus::Idle).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn the_gate_opens_for_the_first_of_a_hundred_thousand_who_wait(#[case] backend: Backend) {
    let fixture = DeploymentFixture::with(backend, [meet(2)], 1, Fake::hanging()).await;
    let (first, next) = (fixture.starting(0).await, fixture.core.reserved(1).await);
    let many = "INSERT INTO deployments (slot, pool, host, state, asked_at, timeout_at)
                WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
                SELECT 'pool-meet-x' || i, 'meet', 'process here', 'waiting', '2020-01-01T00:00:00.000000Z',
                       '2999-01-01T00:00:00.000000Z' FROM n";
    let many = if backend == Backend::Postgres { MANY_ON_POSTGRES } else { many };
    fixture.core.database.execute(many).await;
    let begun = std::time::Instant::now();
    fixture.fake.release(1);
    until("the next has passed", async || fixture.fake.starts().len() == 2).await;
    println!("passed with 100,000 waiting after {:?}", begun.elapsed());
    assert_ne!(fixture.bot(first).await.slot, fixture.bot(next).await.slot);
}

const MANY_ON_POSTGRES: &str = "INSERT INTO deployments (slot, pool, host, state, asked_at, timeout_at)
    SELECT 'pool-meet-x' || i, 'meet', 'process here', 'waiting', now(), now() + interval '1 year'
      FROM generate_series(1, 100000) AS i";
