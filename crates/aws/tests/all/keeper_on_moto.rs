//! The keeper on moto: which runners it announces, which it ends, and which it does not touch.

use std::time::Duration;

use aws::{Class, KeeperStats, RunnerState, Step};
use domain::UsageClass;

use crate::support::{World, agent, eventually, holder, large, runner, stands, state};

#[tokio::test]
async fn unknown_machines_become_created_runners_and_are_ended_if_they_never_register() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machines = world.machines("large", UsageClass::OnDemand, 2).await;
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats { created: 2, ..KeeperStats::default() });
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats::default());
    assert_eq!(state(&pool, &machines[0]).await, RunnerState::Created);
    pool.register(&machines[0], false).await.unwrap();
    world.clock.advance(world.settings.pace.created);
    pool.beat(&machines[0], None).await.unwrap();
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats { announced: 1, reaped: 1, ..KeeperStats::default() });
    assert_eq!(state(&pool, &machines[1]).await, RunnerState::Terminated);
    assert_eq!(world.listed("large", UsageClass::OnDemand).await, machines[..1]);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn idle_runners_past_their_time_end_one_by_one_down_to_min_idle() {
    let world = World::with_groups(vec![Class { min_idle: 1, ..large() }]).await;
    let pool = world.pool().await;
    let mut machines = world.machines("large", UsageClass::OnDemand, 3).await;
    for machine in &machines {
        pool.register(machine, false).await.unwrap();
        world.clock.advance(Duration::from_secs(1));
    }
    let mut passes = Vec::new();
    world.clock.advance(world.settings.pace.idle);
    for _ in 0..4 {
        for machine in &machines {
            pool.beat(machine, None).await.unwrap();
        }
        passes.push(pool.run_keeper().await.unwrap().let_go);
        machines = world.listed("large", UsageClass::OnDemand).await;
    }
    assert_eq!(passes, [1, 1, 0, 0]);
    assert_eq!(machines.len(), 1);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
    assert_eq!(state(&pool, &machines[0]).await, RunnerState::Idle);
}

#[tokio::test]
async fn a_runner_that_is_claimed_while_it_expires_is_not_touched() {
    let world = World::new(vec![large()]).await;
    let (keeper, pool) = (world.pool().await, world.pool().await);
    world.idle(&pool, "large", &["i-1"]).await;
    world.clock.advance(world.settings.pace.idle - Duration::from_secs(20));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.run_keeper().await.unwrap().announced, 1);
    // The runner has passed its idle time, and is still announced.
    world.clock.advance(Duration::from_secs(21));
    pool.beat("i-1", None).await.unwrap();
    keeper.pause_at(Some(Step::Listed));
    let pass = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.run_keeper().await.unwrap() }
    });
    stands(&keeper).await;
    agent(&pool, "i-1");
    pool.claim(None, &holder("pool-a-001")).await.unwrap().unwrap();
    keeper.pause_at(None);
    assert_eq!(pass.await.unwrap(), KeeperStats::default());
    assert_eq!(state(&pool, "i-1").await, RunnerState::Running);
}

#[tokio::test]
async fn an_expired_runner_is_not_claimed_by_a_remaining_message() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let message = pool.pick(None).await.unwrap().unwrap();
    pool.end("i-1").await.unwrap();
    world.send("large", message.body()).await;
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
}

#[tokio::test]
async fn a_silent_idle_runner_is_not_announced_and_is_finally_terminated() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats::default());
    world.clock.advance(world.settings.pace.claim);
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats { reaped: 1, ..KeeperStats::default() });
    assert_eq!(state(&pool, "i-1").await, RunnerState::Terminated);
}

#[tokio::test]
async fn announcements_are_renewed_shortly_before_they_expire() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let first = runner(&pool, "i-1").await;
    world.clock.advance(Duration::from_secs(30));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.run_keeper().await.unwrap().announced, 0);
    world.clock.advance(Duration::from_secs(12));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.run_keeper().await.unwrap().announced, 1);
    let second = runner(&pool, "i-1").await;
    assert!(second.expires_at > first.expires_at);
    assert_eq!((second.since, second.idle_until), (first.since, first.idle_until));
    // Only the newer of the two messages can claim, and then both are gone.
    let claimed = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(claimed.expires_at, second.expires_at);
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-002")).await.unwrap(), None);
    eventually("an empty queue", async || (world.messages("large").await == 0).then_some(())).await;
}

#[tokio::test]
async fn as_many_idle_runners_are_kept_as_the_class_says() {
    let world = World::with_groups(vec![Class { min_idle: 2, max: 3, ..large() }]).await;
    let pool = world.pool().await;
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats { grown: 1, ..KeeperStats::default() });
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 2);
    // A machine that is starting counts.
    assert_eq!(pool.run_keeper().await.unwrap().grown, 0);
    for machine in world.listed("large", UsageClass::OnDemand).await {
        pool.register(&machine, false).await.unwrap();
    }
    for slot in ["pool-a-001", "pool-a-002"] {
        pool.claim_unchecked(None, &holder(slot)).await.unwrap().unwrap();
    }
    assert_eq!(pool.run_keeper().await.unwrap().grown, 1);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 3);
    assert_eq!(pool.run_keeper().await.unwrap().grown, 0);
}

#[tokio::test]
async fn a_keeper_that_has_just_started_takes_no_runner_for_silent() {
    let world = World::new(vec![large()]).await;
    let before = world.pool().await;
    world.idle(&before, "large", &["i-1", "i-2"]).await;
    // No keeper received their heartbeats.
    world.clock.advance(2 * world.settings.pace.claim);
    let pool = world.pool().await;
    assert_eq!(pool.run_keeper().await.unwrap(), KeeperStats { announced: 2, ..KeeperStats::default() });
    world.clock.advance(world.settings.pace.claim);
    pool.beat("i-1", None).await.unwrap();
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(pool.run_keeper().await.unwrap().reaped, 1);
    assert_eq!(state(&pool, "i-1").await, RunnerState::Idle);
    assert_eq!(state(&pool, "i-2").await, RunnerState::Terminated);
}
