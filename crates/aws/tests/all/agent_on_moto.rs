//! The calls of a runner's agent, on moto: who may register, the answers, and how a slot and a runner end.

use std::time::Duration;

use aws::{RegisterError, Runner, RunnerPool, RunnerState, Settings, Unready};
use domain::UsageClass;

use crate::support::{World, agent, eventually, holder, large, runner, state, xlarge};

const NOT_LONG: Duration = Duration::from_millis(200);

/// Makes a claim that is acknowledged without an agent.
async fn run(pool: &RunnerPool, slot: &str) -> Runner {
    let claimed = pool.claim_unchecked(None, &holder(slot)).await.unwrap().unwrap();
    assert!(pool.acknowledge(&claimed.instance, claimed.run_id.as_deref().unwrap()).await.unwrap());
    runner(pool, &claimed.instance).await
}

#[tokio::test]
async fn an_instance_is_registered_with_the_attributes_of_its_group_and_is_announced() {
    let world = World::with_groups(vec![large(), xlarge()]).await;
    let pool = world.pool().await;
    let on_demand = world.machines("xlarge", UsageClass::OnDemand, 1).await.remove(0);
    let spot = world.machines("large", UsageClass::Spot, 1).await.remove(0);
    let registered = pool.register(&on_demand, false).await.unwrap();
    assert_eq!(registered.state, RunnerState::Idle);
    assert_eq!(registered.attributes, world.attributes("xlarge", UsageClass::OnDemand));
    assert_eq!(pool.register(&spot, false).await.unwrap().attributes, world.attributes("large", UsageClass::Spot));
    let claimed = pool.claim_unchecked(Some(&crate::support::spot()), &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(claimed.instance, spot);
    assert_eq!(pool.register("i-0123456789abcdef0", false).await, Err(RegisterError::Unknown));
    let mut all: Vec<_> = pool.runners().await.unwrap().into_iter().map(|runner| runner.instance).collect();
    let mut both = vec![on_demand, spot];
    all.sort();
    both.sort();
    assert_eq!(all, both);
}

#[tokio::test]
async fn a_runner_that_is_alive_registers_again_only_with_proof() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    let first = pool.register(&machine, false).await.unwrap();
    assert_eq!(pool.register(&machine, false).await, Err(RegisterError::Known));
    world.clock.advance(Duration::from_secs(1));
    assert!(pool.register(&machine, true).await.unwrap().expires_at > first.expires_at);
    // A silent runner may be another start of the same machine.
    world.clock.advance(Duration::from_secs(20));
    pool.register(&machine, false).await.unwrap();
}

#[tokio::test]
async fn a_runner_that_registers_again_during_a_run_is_idle_and_its_slot_is_free() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    pool.register(&machine, false).await.unwrap();
    let running = run(&pool, "pool-a-001").await;
    pool.register(&machine, true).await.unwrap();
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None);
    let run_id = running.run_id.unwrap();
    assert!(!pool.acknowledge(&machine, &run_id).await.unwrap());
    assert!(!pool.release(&machine, &run_id).await.unwrap());
    assert!(pool.beat(&machine, Some(&run_id)).await.unwrap().stop);
    assert_eq!(run(&pool, "pool-a-001").await.instance, machine);
}

#[tokio::test]
async fn a_runner_learns_when_its_run_has_ended_and_when_its_machine_must_end() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    let unknown = pool.beat("i-unknown", Some("a-run")).await.unwrap();
    assert_eq!((unknown.state, unknown.stop, unknown.end), (None, true, true));
    world.idle(&pool, "large", &["i-1"]).await;
    let idle = pool.beat("i-1", None).await.unwrap();
    assert_eq!((idle.state, idle.run_id, idle.stop, idle.end), (Some(RunnerState::Idle), None, false, false));
    let running = run(&pool, "pool-a-001").await;
    let answered = pool.beat("i-1", running.run_id.as_deref()).await.unwrap();
    assert_eq!((answered.run_id, answered.stop, answered.end), (running.run_id.clone(), false, false));
    assert!(pool.beat("i-1", Some("an-older-run")).await.unwrap().stop);
    pool.end("i-1").await.unwrap();
    let ended = pool.beat("i-1", running.run_id.as_deref()).await.unwrap();
    assert_eq!((ended.state, ended.stop, ended.end), (Some(RunnerState::Terminated), true, true));
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None);
    assert_eq!(pool.await_claim("i-1", Duration::from_secs(60)).await.unwrap(), None);
}

#[tokio::test]
async fn a_runner_sees_only_runs_of_its_own_installation() {
    let world = World::new(vec![large()]).await;
    let here = world.pool().await;
    let there = RunnerPool::with_clock(
        Settings { installation: "there".into(), ..world.settings.clone() },
        world.clock.clone(),
    )
    .await;
    world.idle(&here, "large", &["i-1", "i-2"]).await;
    // Both pools have a slot of this name.
    let theirs = there.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    let ours = here.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_ne!(theirs.instance, ours.instance);
    assert_eq!(here.await_claim(&theirs.instance, NOT_LONG).await.unwrap(), None);
    assert_eq!(there.await_claim(&theirs.instance, NOT_LONG).await.unwrap().unwrap().slot, "pool-a-001");
    assert_eq!(here.runner_of("pool-a-001").await.unwrap().unwrap().instance, ours.instance);
    here.stop("pool-a-001").await.unwrap();
    assert_eq!(there.runner_of("pool-a-001").await.unwrap().unwrap().instance, theirs.instance);
}

#[tokio::test]
async fn a_claim_of_another_process_is_seen_and_a_second_acknowledgement_changes_nothing() {
    let world = World::new(vec![large()]).await;
    let (pool, other) = (world.pool().await, world.pool().await);
    world.idle(&pool, "large", &["i-1"]).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.await_claim("i-1", Duration::from_secs(30)).await.unwrap() }
    });
    let claimed = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    let run = waiting.await.unwrap().unwrap();
    assert_eq!(Some(&run.run_id), claimed.run_id.as_ref());
    for _ in 0..2 {
        assert!(other.acknowledge("i-1", &run.run_id).await.unwrap());
    }
    assert!(!other.acknowledge("i-1", "another").await.unwrap());
}

#[tokio::test]
async fn the_agent_of_a_stopped_slot_releases_it() {
    let world = World::new(vec![large()]).await;
    let (pool, agents) = (world.pool().await, world.pool().await);
    world.idle(&pool, "large", &["i-1"]).await;
    agent(&agents, "i-1");
    pool.claim(None, &holder("pool-a-001")).await.unwrap().unwrap();
    pool.stop("pool-a-001").await.unwrap();
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None);
    let back = runner(&pool, "i-1").await;
    assert_eq!((back.state, back.stop_asked), (RunnerState::Idle, false));
    pool.stop("pool-a-001").await.unwrap();
    pool.stop("pool-a-never").await.unwrap();
    // The stop of the last run does not stop the next run.
    assert!(!pool.claim(None, &holder("pool-a-002")).await.unwrap().unwrap().stop_asked);
}

#[tokio::test]
async fn a_slot_whose_agent_has_not_begun_is_stopped_without_it() {
    let world = World::new(vec![large()]).await;
    let pool = world.pool().await;
    world.idle(&pool, "large", &["i-1"]).await;
    let claimed = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    pool.stop("pool-a-001").await.unwrap();
    assert_eq!(state(&pool, "i-1").await, RunnerState::Idle);
    assert!(!pool.acknowledge("i-1", &claimed.run_id.unwrap()).await.unwrap());
    assert_eq!(run(&pool, "pool-a-001").await.instance, "i-1");
}

#[tokio::test]
async fn a_slot_whose_agent_is_silent_is_stopped_with_its_machine() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    pool.register(&machine, false).await.unwrap();
    run(&pool, "pool-a-001").await;
    world.clock.advance(Duration::from_secs(20));
    pool.stop("pool-a-001").await.unwrap();
    assert_eq!(pool.runner_of("pool-a-001").await.unwrap(), None);
    let ended = runner(&pool, &machine).await;
    assert_eq!((ended.state, ended.slot), (RunnerState::Terminated, None));
    assert_eq!(world.listed("large", UsageClass::OnDemand).await, Vec::<String>::new());
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 0);
    assert_eq!(pool.register(&machine, true).await, Err(RegisterError::Unknown));
}

#[tokio::test]
async fn a_terminated_runner_stays_terminated_after_any_call() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    pool.register(&machine, false).await.unwrap();
    world.terminate_in_table(&machine).await;
    assert_eq!(pool.register(&machine, true).await, Err(RegisterError::Ended));
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
    assert!(!pool.release(&machine, "a-run").await.unwrap());
    // The process that wrote this did not end the machine. The keeper does.
    let gone = async || {
        pool.run_keeper().await.unwrap();
        world.listed("large", UsageClass::OnDemand).await.is_empty().then_some(())
    };
    eventually("an end of the machine", gone).await;
    assert_eq!(state(&pool, &machine).await, RunnerState::Terminated);
}

#[tokio::test]
async fn an_agent_whose_answer_was_lost_can_register_again_until_its_first_heartbeat() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    pool.register_as(&machine, false, Some("one")).await.unwrap();
    // The runner is claimed before its agent knows that it is registered.
    let claimed = pool.claim_unchecked(None, &holder("pool-a-1")).await.unwrap().unwrap();
    assert_eq!(pool.register_as(&machine, false, Some("other")).await, Err(RegisterError::Known));
    pool.register_as(&machine, false, Some("one")).await.unwrap();
    assert_eq!(state(&pool, &machine).await, RunnerState::Idle, "the agent runs nothing");
    assert!(!pool.acknowledge(&machine, &claimed.run_id.unwrap()).await.unwrap());
    pool.beat(&machine, None).await.unwrap();
    assert_eq!(pool.register_as(&machine, false, Some("one")).await, Err(RegisterError::Known));
}

#[tokio::test]
async fn a_runner_without_a_ready_command_is_not_claimed_until_it_registers_again() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    let first = pool.register(&machine, false).await.unwrap();
    for _ in 0..2 {
        assert_eq!(pool.unready(&machine, None).await.unwrap(), Unready::Unregistered, "a repeat changes nothing");
    }
    // Its message is still in the queue.
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
    world.clock.advance(Duration::from_secs(60));
    pool.beat(&machine, None).await.unwrap();
    let stats = pool.run_keeper().await.unwrap();
    assert_eq!((stats.announced, stats.reaped, stats.grown), (0, 0, 0));
    // The machine counts as one that starts, so nothing grows for a waiting slot.
    pool.ask_for_fresh(None, "pool-a-001").await.unwrap();
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
    let again = pool.register(&machine, false).await.unwrap();
    assert_eq!(again.idle_until, first.idle_until, "it does not stay longer");
    // The report that was repeated comes too late for a claim.
    let claimed = pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap().unwrap();
    assert_eq!(pool.unready(&machine, None).await.unwrap(), Unready::Claimed);
    assert!(pool.acknowledge(&machine, claimed.run_id.as_deref().unwrap()).await.unwrap());
    assert_eq!(pool.unready(&machine, None).await.unwrap(), Unready::Claimed);
}

#[tokio::test]
async fn a_runner_that_is_released_without_a_ready_command_frees_its_slot_and_is_not_claimed() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machine = world.machines("large", UsageClass::OnDemand, 1).await.remove(0);
    pool.register(&machine, false).await.unwrap();
    let running = run(&pool, "pool-a-001").await;
    let run_id = running.run_id.unwrap();
    assert!(pool.release_unready(&machine, &run_id).await.unwrap());
    assert!(!pool.release_unready(&machine, &run_id).await.unwrap());
    assert_eq!(state(&pool, &machine).await, RunnerState::Created);
    assert_eq!(pool.claim_unchecked(None, &holder("pool-a-001")).await.unwrap(), None);
    pool.register(&machine, false).await.unwrap();
    assert_eq!(run(&pool, "pool-a-001").await.instance, machine, "the slot was free");
    // A machine that does not come back is ended like one that never came.
    let run_id = runner(&pool, &machine).await.run_id.unwrap();
    assert!(pool.release_unready(&machine, &run_id).await.unwrap());
    world.clock.advance(world.settings.pace.created + Duration::from_secs(1));
    assert_eq!(pool.run_keeper().await.unwrap().reaped, 1);
    assert_eq!(pool.unready(&machine, None).await.unwrap(), Unready::Ended);
}

#[tokio::test]
async fn one_runner_of_a_group_at_a_time_renews_its_command() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    let machines = world.machines("large", UsageClass::OnDemand, 2).await;
    let spot = world.machines("large", UsageClass::Spot, 1).await.remove(0);
    for machine in machines.iter().chain([&spot]) {
        pool.register(machine, false).await.unwrap();
    }
    let (within, other) = (Some(Duration::from_secs(60)), world.pool().await);
    assert_eq!(pool.unready(&machines[0], within).await.unwrap(), Unready::Unregistered);
    assert_eq!(other.unready(&machines[1], within).await.unwrap(), Unready::Later);
    assert_eq!(state(&pool, &machines[1]).await, RunnerState::Idle);
    assert_eq!(other.unready(&spot, within).await.unwrap(), Unready::Unregistered, "another group has its own turn");
    // A command that died does not wait for its turn.
    assert_eq!(other.unready(&machines[1], None).await.unwrap(), Unready::Unregistered);
    pool.register(&machines[1], false).await.unwrap();
    assert_eq!(other.unready(&machines[1], within).await.unwrap(), Unready::Later);
    pool.register(&machines[0], false).await.unwrap();
    assert_eq!(other.unready(&machines[1], within).await.unwrap(), Unready::Unregistered);
    // A runner that does not come back does not keep the others from their turn.
    assert_eq!(pool.unready(&machines[0], within).await.unwrap(), Unready::Later);
    world.clock.advance(Duration::from_secs(61));
    assert_eq!(pool.unready(&machines[0], within).await.unwrap(), Unready::Unregistered);
}
