//! The keeper on moto: what it takes in, what it lets go, and what it leaves alone.

use std::time::Duration;

use aws::{Class, Kept, RunnerState, Step};
use domain::UsageClass;

use crate::support::{World, agent, eventually, holder, large, runner, stands, state};

#[tokio::test]
async fn machines_that_nobody_knows_are_created_runners_and_are_reaped_when_they_do_not_come_up() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machines = world.machines("large", UsageClass::OnDemand, 2).await;
    assert_eq!(pool.keep().await.unwrap(), Kept { created: 2, ..Kept::default() });
    assert_eq!(pool.keep().await.unwrap(), Kept::default());
    assert_eq!(state(&pool, &machines[0]).await, RunnerState::Created);
    pool.register(&machines[0], false).await.unwrap();
    world.clock.advance(world.settings.pace.created);
    pool.beat(&machines[0], None).await.unwrap();
    assert_eq!(pool.keep().await.unwrap(), Kept { announced: 1, reaped: 1, ..Kept::default() });
    assert_eq!(state(&pool, &machines[1]).await, RunnerState::Terminated);
    assert_eq!(world.listed("large", UsageClass::OnDemand).await, machines[..1]);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn idle_runners_past_their_time_are_let_go_one_by_one_down_to_those_that_are_kept() {
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
        passes.push(pool.keep().await.unwrap().let_go);
        machines = world.listed("large", UsageClass::OnDemand).await;
    }
    assert_eq!(passes, [1, 1, 0, 0]);
    assert_eq!(machines.len(), 1);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
    assert_eq!(state(&pool, &machines[0]).await, RunnerState::Idle);
}

#[tokio::test]
async fn a_runner_that_is_claimed_while_it_is_let_go_is_not_touched() {
    let world = World::new(vec![large()]).await;
    let (keeper, pool) = (world.pool().await, world.pool().await);
    world.idle(&pool, "large", &["i-1"]).await;
    world.clock.advance(world.settings.pace.idle - Duration::from_secs(20));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.keep().await.unwrap().announced, 1);
    // Now it is past its time, and still announced.
    world.clock.advance(Duration::from_secs(21));
    pool.beat("i-1", None).await.unwrap();
    keeper.stand_still_at(Some(Step::Listed));
    let pass = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.keep().await.unwrap() }
    });
    stands(&keeper).await;
    agent(&pool, "i-1");
    pool.claim(None, &holder("pool-a-001")).await.unwrap().unwrap();
    keeper.stand_still_at(None);
    assert_eq!(pass.await.unwrap(), Kept::default());
    assert_eq!(state(&pool, "i-1").await, RunnerState::Running);
}

#[tokio::test]
async fn a_runner_that_was_let_go_is_not_claimed_by_the_message_that_is_left() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let message = pool.pick(None).await.unwrap().unwrap();
    pool.end("i-1").await.unwrap();
    world.send("large", message.body()).await;
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
}

#[tokio::test]
async fn an_idle_runner_that_is_not_heard_of_is_not_announced_and_in_the_end_terminated() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(pool.keep().await.unwrap(), Kept::default());
    world.clock.advance(world.settings.pace.claim);
    assert_eq!(pool.keep().await.unwrap(), Kept { reaped: 1, ..Kept::default() });
    assert_eq!(state(&pool, "i-1").await, RunnerState::Terminated);
}

#[tokio::test]
async fn announcements_are_renewed_before_they_are_over_and_not_earlier() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let first = runner(&pool, "i-1").await;
    world.clock.advance(Duration::from_secs(30));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.keep().await.unwrap().announced, 0);
    world.clock.advance(Duration::from_secs(12));
    pool.beat("i-1", None).await.unwrap();
    assert_eq!(pool.keep().await.unwrap().announced, 1);
    let second = runner(&pool, "i-1").await;
    assert!(second.expires_at > first.expires_at);
    assert_eq!((second.since, second.idle_until), (first.since, first.idle_until));
    // Of the two messages only the newer claims, and both are gone then.
    let claimed = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(claimed.expires_at, second.expires_at);
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-002")).await.unwrap(), None);
    eventually("an empty queue", async || (world.messages("large").await == 0).then_some(())).await;
}

#[tokio::test]
async fn as_many_idle_runners_are_kept_as_the_class_says() {
    let world = World::with_groups(vec![Class { min_idle: 2, max: 3, ..large() }]).await;
    let pool = world.pool().await;
    assert_eq!(pool.keep().await.unwrap(), Kept { grown: 1, ..Kept::default() });
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 2);
    // What is on its way counts.
    assert_eq!(pool.keep().await.unwrap().grown, 0);
    for machine in world.listed("large", UsageClass::OnDemand).await {
        pool.register(&machine, false).await.unwrap();
    }
    for slot in ["pool-a-001", "pool-a-002"] {
        pool.claim_unchecked(None, &holder(slot)).await.unwrap().unwrap();
    }
    assert_eq!(pool.keep().await.unwrap().grown, 1);
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 3);
    assert_eq!(pool.keep().await.unwrap().grown, 0);
}

#[tokio::test]
async fn a_keeper_that_has_just_begun_takes_nobody_for_silent() {
    let world = World::new(vec![large()]).await;
    let before = world.pool().await;
    world.idle(&before, "large", &["i-1", "i-2"]).await;
    // Nobody was there to hear them.
    world.clock.advance(2 * world.settings.pace.claim);
    let pool = world.pool().await;
    assert_eq!(pool.keep().await.unwrap(), Kept { announced: 2, ..Kept::default() });
    world.clock.advance(world.settings.pace.claim);
    pool.beat("i-1", None).await.unwrap();
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(pool.keep().await.unwrap().reaped, 1);
    assert_eq!(state(&pool, "i-1").await, RunnerState::Idle);
    assert_eq!(state(&pool, "i-2").await, RunnerState::Terminated);
}
