//! A process dies, or a request is cancelled, at every step between the queue and a running slot. Each runner can be
//! claimed again within a minute, once, or runs its slot.

use std::time::Duration;

use aws::{Runner, RunnerPool, RunnerState, Step};
use tokio::task::JoinHandle;

use crate::support::{World, agent, eventually, holder, large, runner, stands, state};

const PASS_INTERVAL: Duration = Duration::from_secs(5);

/// Begins a claim and waits until it stops at a step.
async fn claim_until(pool: &RunnerPool, step: Step) -> JoinHandle<Option<Runner>> {
    pool.pause_at(Some(step));
    let claim = tokio::spawn({
        let pool = pool.clone();
        async move { pool.claim(None, &holder("pool-a-001")).await.unwrap() }
    });
    stands(pool).await;
    claim
}

/// Runs the keeper of another process for a minute, with a living runner. Returns how often the runner was announced.
async fn a_minute(world: &World, pool: &RunnerPool, instance: &str) -> u32 {
    let mut announced = 0;
    for _ in 0..12 {
        world.clock.advance(PASS_INTERVAL);
        pool.beat(instance, None).await.unwrap();
        announced += pool.run_keeper().await.unwrap().announced;
    }
    announced
}

async fn killed_before_the_claim(step: Step) {
    let world = World::new(vec![large()]).await;
    let (dying, other) = (world.pool().await, world.pool().await);
    world.idle(&dying, "large", &["i-1"]).await;
    let before = runner(&other, "i-1").await;
    // The process stops for ever, and cleans up nothing.
    claim_until(&dying, step).await;
    assert_eq!(other.pick(None).await.unwrap(), None, "{step:?}");
    assert_eq!(a_minute(&world, &other, "i-1").await, 1, "{step:?}");
    let after = runner(&other, "i-1").await;
    assert_eq!(after.state, RunnerState::Idle);
    assert!(after.expires_at > before.expires_at, "{step:?}");
    let claimed = other.claim_unchecked(None, &holder("pool-a-002")).await.unwrap();
    assert_eq!(claimed.unwrap().instance, "i-1", "{step:?}");
    // The process continues with its old data: too late.
    dying.pause_at(None);
    eventually("an end of the old claim", async || (dying.paused() == 0).then_some(())).await;
    assert_eq!(runner(&other, "i-1").await.slot_of("here"), Some("pool-a-002"));
}

#[tokio::test]
async fn a_runner_is_claimable_again_after_a_death_between_receive_and_delete() {
    killed_before_the_claim(Step::Received).await;
}

#[tokio::test]
async fn a_runner_is_claimable_again_after_a_death_between_delete_and_hand_over() {
    killed_before_the_claim(Step::Deleted).await;
}

#[tokio::test]
async fn a_runner_is_claimable_again_after_a_death_between_hand_over_and_claim() {
    killed_before_the_claim(Step::HandedOver).await;
}

async fn killed_after_the_claim(step: Step) {
    let world = World::new(vec![large()]).await;
    let (dying, other) = (world.pool().await, world.pool().await);
    world.idle(&dying, "large", &["i-1", "i-2"]).await;
    claim_until(&dying, step).await;
    // A living agent runs the slot.
    let claimed = other.runner_of("pool-a-001").await.unwrap().unwrap();
    agent(&other, &claimed.instance);
    eventually("a runner that runs", async || {
        (state(&other, &claimed.instance).await == RunnerState::Running).then_some(())
    })
    .await;
    assert_eq!(other.runner_of("pool-a-001").await.unwrap().unwrap().run_id, claimed.run_id);
}

#[tokio::test]
async fn a_runner_runs_its_slot_after_a_death_between_claim_and_health() {
    killed_after_the_claim(Step::Claimed).await;
}

#[tokio::test]
async fn a_runner_runs_its_slot_after_a_death_between_health_and_registration() {
    killed_after_the_claim(Step::Healthy).await;
}

#[tokio::test]
async fn a_claim_expires_if_its_process_dies_and_no_agent_takes_the_slot() {
    for step in [Step::Claimed, Step::Healthy] {
        let world = World::new(vec![large()]).await;
        let (dying, other) = (world.pool().await, world.pool().await);
        world.idle(&dying, "large", &["i-1"]).await;
        claim_until(&dying, step).await;
        world.clock.advance(world.settings.pace.claim);
        other.beat("i-1", None).await.unwrap();
        assert_eq!(other.run_keeper().await.unwrap().fell_back, 1, "{step:?}");
        let claimed = other.claim_unchecked(None, &holder("pool-a-002")).await.unwrap();
        assert_eq!(claimed.unwrap().instance, "i-1", "{step:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_at_any_step_leaves_its_runner_to_others() {
    for step in [Step::Received, Step::Deleted, Step::HandedOver, Step::Claimed, Step::Healthy] {
        let world = World::new(vec![large()]).await;
        let pool = world.pool().await;
        world.idle(&pool, "large", &["i-1"]).await;
        let claim = claim_until(&pool, step).await;
        claim.abort();
        assert!(claim.await.unwrap_err().is_cancelled());
        pool.pause_at(None);
        // Without the keeper.
        let claimed = eventually("a runner that can be claimed", async || {
            pool.claim_unchecked(None, &holder("pool-a-002")).await.unwrap()
        });
        assert_eq!(claimed.await.instance, "i-1", "{step:?}");
        assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None, "{step:?}");
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_after_the_claim_leaves_its_slot_running() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    agent(&pool, "i-1");
    let claim = claim_until(&pool, Step::Registered).await;
    claim.abort();
    assert!(claim.await.unwrap_err().is_cancelled());
    pool.pause_at(None);
    pool.run_keeper().await.unwrap();
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap().unwrap().state, RunnerState::Running);
}

#[tokio::test]
async fn a_runner_is_claimable_again_after_a_death_between_release_and_announcement() {
    let world = World::new(vec![large()]).await;
    let (dying, other) = (world.pool().await, world.pool().await);
    world.idle(&other, "large", &["i-1"]).await;
    let claimed = other.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    dying.pause_at(Some(Step::GivenBack));
    tokio::spawn({
        let dying = dying.clone();
        async move { dying.release("i-1", &claimed.run_id.unwrap()).await }
    });
    stands(&dying).await;
    assert_eq!(a_minute(&world, &other, "i-1").await, 1);
    assert_eq!(other.pick(None).await.unwrap().unwrap().instance, "i-1");
}

#[tokio::test]
async fn a_runner_is_announced_again_after_a_keeper_died_before_it_had_sent_the_message() {
    let world = World::new(vec![large()]).await;
    let (dying, other) = (world.pool().await, world.pool().await);
    world.idle(&other, "large", &["i-1"]).await;
    other.pick(None).await.unwrap().unwrap();
    world.clock.advance(Duration::from_secs(45));
    other.beat("i-1", None).await.unwrap();
    dying.pause_at(Some(Step::Renewed));
    tokio::spawn({
        let dying = dying.clone();
        async move { dying.run_keeper().await }
    });
    stands(&dying).await;
    assert_eq!(a_minute(&world, &other, "i-1").await, 1);
    assert_eq!(other.pick(None).await.unwrap().unwrap().instance, "i-1");
}

#[tokio::test]
async fn a_lost_message_is_announced_once_by_any_number_of_keepers() {
    let world = World::new(vec![large()]).await;
    let pools = [world.pool().await, world.pool().await, world.pool().await];
    world.idle(&pools[0], "large", &["i-1", "i-2"]).await;
    for _ in 0..2 {
        pools[0].pick(None).await.unwrap().unwrap();
    }
    world.clock.advance(Duration::from_secs(45));
    for name in ["i-1", "i-2"] {
        pools[0].beat(name, None).await.unwrap();
    }
    let (one, two, three) = tokio::join!(pools[0].run_keeper(), pools[1].run_keeper(), pools[2].run_keeper());
    assert_eq!([one, two, three].map(|kept| kept.unwrap().announced).iter().sum::<u32>(), 2);
    assert_eq!(world.messages("large").await, 2);
}
