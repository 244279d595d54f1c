//! Claims on moto's DynamoDB. A runner has at most one slot, however many ask. A failed claim is removed. A claim of
//! several runners gets all or none.

use std::collections::HashSet;
use std::time::Duration;

use aws::{AwsError, Pace, RunnerPool, RunnerState, Settings};
use domain::UsageClass;
use futures_util::future::join_all;

use crate::moto;
use crate::support::{World, agent, eventually, holder, large, runner, state, xlarge};

/// How long to wait for an agent that never answers. Agents that answer must be faster, on any machine.
const SHORT: Duration = Duration::from_secs(3);
const MINUTE: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    moto::settings(vec![large()])
}

fn impatient() -> Settings {
    Settings { pace: Pace { registration: SHORT, ..Pace::default() }, ..settings() }
}

/// For tests in which no runner is silent: on a busy machine none may be given up because moto is slow.
fn patient() -> Settings {
    Settings { pace: Pace { registration: MINUTE, healthy: MINUTE, ..Pace::default() }, ..settings() }
}

/// A runner whose agent acknowledges every claim.
async fn served(world: &World, pool: &RunnerPool, name: &str) {
    world.idle(pool, "large", &[name]).await;
    agent(pool, name);
}

#[tokio::test]
async fn a_claimed_runner_runs_the_slot_and_is_released_under_a_new_threshold() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let before = runner(&pool, "i-1").await;
    let (one, agents) = (holder("pool-a-001"), async {
        let run = pool.await_claim("i-1", MINUTE).await.unwrap().unwrap();
        assert_eq!((run.slot.as_str(), run.connection.as_deref()), ("pool-a-001", Some("connection-of-pool-a-001")));
        assert!(pool.acknowledge("i-1", &run.run_id).await.unwrap());
        run.run_id
    });
    let (claimed, run_id) = tokio::join!(pool.claim(None, &one), agents);
    let claimed = claimed.unwrap().unwrap();
    assert_eq!((claimed.state, claimed.run_id.as_deref()), (RunnerState::Running, Some(run_id.as_str())));
    assert_eq!(claimed.slot_of("here"), Some("pool-a-001"));
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), Some(claimed));
    assert_eq!(pool.claim(None, &holder("pool-a-002")).await.unwrap(), None);

    world.clock.advance(Duration::from_secs(1));
    assert!(!pool.release("i-1", "another").await.unwrap());
    assert!(pool.release("i-1", &run_id).await.unwrap());
    assert!(!pool.release("i-1", &run_id).await.unwrap());
    let back = runner(&pool, "i-1").await;
    assert_eq!((back.state, &back.run_id, &back.slot), (RunnerState::Idle, &None, &None));
    assert!(back.expires_at > before.expires_at && back.idle_until > before.idle_until);
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None);
    let announced = pool.pick(None).await.unwrap().unwrap();
    assert_eq!((announced.instance.as_str(), announced.expires_at), ("i-1", back.expires_at));
}

#[tokio::test]
async fn a_runner_is_not_claimed_under_another_threshold_or_in_another_state() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let true_one = pool.pick(None).await.unwrap().unwrap();
    let attributes = world.attributes("large", UsageClass::OnDemand);

    world.send("large", world.announcement("i-1", &attributes, MINUTE).body()).await;
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
    assert_eq!(state(&pool, "i-1").await, RunnerState::Idle);

    for slot in ["pool-a-001", "pool-a-002"] {
        world.send("large", true_one.body()).await;
        let claimed = pool.claim_unchecked(None, &holder(slot)).await.unwrap();
        assert_eq!(claimed.is_some(), slot == "pool-a-001");
    }
    assert_eq!(pool.runner_of("pool-a-002").await.unwrap(), None);
    // A runner that has never sent a heartbeat.
    world.send("large", world.announcement("i-2", &attributes, MINUTE).body()).await;
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-002")).await.unwrap(), None);
}

#[tokio::test]
async fn a_slot_gets_one_runner_and_the_other_can_still_be_claimed() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1", "i-2"]).await;
    let first = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    let second = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap_err();
    assert_eq!(second, AwsError::Taken { slot: "pool-a-001".into() });
    let second =
        eventually("the other runner", async || pool.claim_unchecked(None, &holder("pool-a-002")).await.unwrap());
    assert_ne!(second.await.instance, first.instance);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_and_a_hundred_requests_never_claim_a_runner_twice_and_lose_none() {
    let world = World::with(patient(), false).await;
    let replicas = [world.pool().await, world.pool().await];
    let names: Vec<_> = (0..50).map(|number| format!("i-{number}")).collect();
    world.idle(&replicas[0], "large", &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for (number, name) in names.iter().enumerate() {
        agent(&replicas[number % 2], name);
    }
    let claims = (0..100).map(|number| {
        let pool = replicas[number % 2].clone();
        tokio::spawn(async move { pool.claim(None, &holder(&format!("pool-a-{number:03}"))).await.unwrap() })
    });
    let claimed: Vec<_> = join_all(claims).await.into_iter().filter_map(Result::unwrap).collect();
    let distinct: HashSet<_> = claimed.iter().map(|runner| runner.instance.clone()).collect();
    assert_eq!((claimed.len(), distinct.len()), (50, 50));
    let slots: HashSet<_> = claimed.iter().map(|runner| runner.slot.clone().unwrap()).collect();
    assert_eq!(slots.len(), 50);
    for claimed in &claimed {
        let now = runner(&replicas[0], &claimed.instance).await;
        assert_eq!((now.state, &now.slot), (RunnerState::Running, &claimed.slot));
    }
}

#[tokio::test]
async fn a_silent_runner_expires_and_the_next_one_is_tried() {
    let world = World::new(vec![large(), xlarge()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-silent"]).await;
    world.idle(&pool, "xlarge", &["i-healthy"]).await;
    world.clock.advance(Duration::from_secs(20));
    agent(&pool, "i-healthy");
    pool.beat("i-healthy", None).await.unwrap();
    let claimed = pool.claim(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(claimed.instance, "i-healthy");
    let silent = runner(&pool, "i-silent").await;
    assert_eq!((silent.state, silent.slot), (RunnerState::Idle, None));
    assert!(silent.expires_at < world.clock.now());
    // The runner is not offered until it sends a heartbeat again.
    assert_eq!(pool.run_keeper().await.unwrap().announced, 0);
    assert_eq!(pool.pick(None).await.unwrap(), None);
    pool.beat("i-silent", None).await.unwrap();
    assert_eq!(pool.run_keeper().await.unwrap().announced, 1);
    assert_eq!(pool.pick(None).await.unwrap().unwrap().instance, "i-silent");
}

#[tokio::test]
async fn a_runner_that_does_not_take_its_slot_is_terminated_and_the_next_one_is_tried() {
    let world = World::with(Settings { classes: vec![large(), xlarge()], ..impatient() }, false).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-deaf"]).await;
    world.idle(&pool, "xlarge", &["i-awake"]).await;
    agent(&pool, "i-awake");
    let claimed = pool.claim(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(claimed.instance, "i-awake");
    assert_eq!(state(&pool, "i-deaf").await, RunnerState::Terminated);
    assert!(pool.beat("i-deaf", None).await.unwrap().end);
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), Some(claimed));
}

#[tokio::test]
async fn a_claim_that_is_not_confirmed_expires() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-alive", "i-dead"]).await;
    for slot in ["pool-a-001", "pool-a-002"] {
        pool.claim_unchecked(None, &holder(slot)).await.unwrap().unwrap();
    }
    let before = runner(&pool, "i-alive").await;
    world.clock.advance(world.settings.pace.claim - Duration::from_secs(20));
    assert_eq!(pool.run_keeper().await.unwrap(), aws::KeeperStats::default());
    world.clock.advance(Duration::from_secs(20));
    pool.beat("i-alive", None).await.unwrap();
    let kept = pool.run_keeper().await.unwrap();
    assert_eq!((kept.fell_back, kept.reaped), (1, 1));
    let back = runner(&pool, "i-alive").await;
    assert_eq!((back.state, back.slot, back.run_id), (RunnerState::Idle, None, None));
    assert!(back.expires_at > before.expires_at);
    assert_eq!(state(&pool, "i-dead").await, RunnerState::Terminated);
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap().instance, "i-alive");
}

#[tokio::test]
async fn several_runners_are_claimed_together() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    for name in ["i-1", "i-2", "i-3"] {
        served(&world, &pool, name).await;
    }
    let holders = ["pool-a-001", "pool-a-002", "pool-a-003"].map(holder);
    let all = pool.claim_all(None, &holders).await.unwrap().unwrap();
    let slots: Vec<_> = all.iter().map(|runner| runner.slot_of("here").unwrap()).collect();
    assert_eq!(slots, ["pool-a-001", "pool-a-002", "pool-a-003"]);
    assert!(all.iter().all(|runner| runner.state == RunnerState::Running && !runner.held));
}

#[tokio::test]
async fn with_too_few_runners_none_stays_claimed_and_all_are_claimable_under_a_new_threshold() {
    let world = World::new(vec![large()]).await;
    let (pool, agents) = (world.pool().await, world.pool().await);
    world.idle(&pool, "large", &["i-1", "i-2"]).await;
    let before = [runner(&pool, "i-1").await, runner(&pool, "i-2").await];
    world.clock.advance(Duration::from_secs(1));
    // No agent learns of a run that does not happen.
    let watching = ["i-1", "i-2"].map(|name| {
        let agents = agents.clone();
        tokio::spawn(async move { agents.await_claim(name, Duration::from_secs(2)).await.unwrap() })
    });
    let holders = ["pool-a-001", "pool-a-002", "pool-a-003"].map(holder);
    assert_eq!(pool.claim_all(None, &holders).await.unwrap(), None);
    for before in before {
        let after = runner(&pool, &before.instance).await;
        assert_eq!((after.state, &after.slot, after.held), (RunnerState::Idle, &None, false));
        assert!(after.expires_at > before.expires_at);
    }
    for seen in watching {
        assert_eq!(seen.await.unwrap(), None);
    }
    let mut second = Vec::new();
    for slot in ["pool-a-001", "pool-a-002"] {
        second.push(pool.claim_unchecked(None, &holder(slot)).await.unwrap().unwrap().instance);
    }
    second.sort();
    assert_eq!(second, ["i-1", "i-2"]);
}

#[tokio::test]
async fn when_one_of_several_runners_does_not_take_its_slot_the_others_are_released() {
    let world = World::with(impatient(), false).await;
    let pool = world.pool().await;
    served(&world, &pool, "i-1").await;
    world.idle(&pool, "large", &["i-deaf"]).await;
    let holders = ["pool-a-001", "pool-a-002"].map(holder);
    assert_eq!(pool.claim_all(None, &holders).await.unwrap(), None);
    assert_eq!(state(&pool, "i-deaf").await, RunnerState::Terminated);
    let back = runner(&pool, "i-1").await;
    assert_eq!((back.state, back.slot), (RunnerState::Idle, None));
    assert_eq!(pool.claim(None, &holder("pool-a-003")).await.unwrap().unwrap().instance, "i-1");
}
