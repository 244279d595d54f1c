//! Pools on a real swarm: the whole life of bots, nodes that die, and what the server keeps after a failure.

use rstest::rstest;

use crate::support::{DockerFixture, OBEDIENT, PREWARMED_POOL, PrewarmedBot, Recipe, Swarm, found, meet_link, until};

/// A server with one pool on a swarm. `settings` are lines of the pool's configuration, `section` those of its own.
async fn fixture(swarm: &Swarm, image: &str, settings: &str, section: &str) -> DockerFixture {
    DockerFixture::start(swarm.manager(), "swarm", image, settings, section).await
}

#[rstest]
#[case::hot("running")]
#[case::stopped("stopped")]
#[tokio::test]
async fn twenty_bots_live_on_a_swarm_while_the_server_is_killed_and_nothing_is_left_but_the_pool(
    #[case] standby: &str,
) {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::bot(OBEDIENT)).await;
    let settings = format!("standby = \"{standby}\"\nmax_slots = 5\nmin_idle = 2");
    let (fixture, slots) = fixture(&swarm, &image, &settings, "").await.twenty_lives().await;
    // Each slot has its service, and there is no other.
    let services = fixture.labelled.services().await;
    let mut names: Vec<String> =
        services.iter().map(|service| service.spec.as_ref().unwrap().name.clone().unwrap()).collect();
    names.sort();
    assert_eq!(names, slots);
    let running = if standby == "running" { slots.len() } else { 0 };
    until("only waiting agents run", async || fixture.labelled.running().await.len() == running).await;
}

#[tokio::test]
async fn a_bot_on_a_swarm_continues_on_another_node_when_its_node_dies() {
    let mut swarm = Swarm::of(3).await;
    let image = swarm.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = fixture(&swarm, &image, "max_slots = 3", "").await;
    // One bot runs on a node that is not the manager. The swarm would die with its manager.
    let mut bots = Vec::new();
    let (bot, slot, node) = loop {
        let bot = fixture.user.bot(&meet_link(bots.len())).await;
        let shown = fixture.user.until(&bot, "active").await;
        bots.push(bot.clone());
        let slot = shown["slot"].as_str().unwrap().to_owned();
        let node = found("its node is known", async || swarm.runs_on(&slot).await.pop()).await;
        if node != swarm.manager().name() {
            break (bot, slot, node);
        }
    };
    let before = fixture.user.show_bot(&bot).await;
    swarm.node_mut(&node).kill().await;
    let after =
        found("it runs on another node", async || swarm.runs_on(&slot).await.into_iter().find(|now| *now != node))
            .await;
    assert_ne!(after, node);
    // It is the same bot with the same connection, and it receives commands.
    fixture.user.stop(&bot).await;
    let ended = fixture.user.until(&bot, "completed").await;
    assert_eq!(ended["reason"], "stopped");
    assert_eq!(ended["connection_id"], before["connection_id"]);
    found("its slot is free again", async || {
        let slots = fixture.slots().await;
        slots.into_iter().find(|it| it["name"] == slot.as_str() && it["status"] == "idle")
    })
    .await;
}

#[tokio::test]
async fn a_swarm_without_capacity_is_reported_with_its_own_message() {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = fixture(&swarm, &image, "max_slots = 1", "memory = \"900g\"").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let said = found("the swarm's error is shown", async || {
        let deployments = fixture.server.admin().get("/admin/deployments").await;
        deployments["entries"][0]["last_error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(said.contains("no suitable node (insufficient resources on 1 node)"), "{said}");
    fixture.user.stop(&bot).await;
    fixture.user.until(&bot, "completed").await;
}

#[tokio::test]
async fn a_service_of_a_swarm_whose_task_ends_at_once_fails_its_bot_with_the_last_lines() {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::script("echo no licence found >&2; exit 4")).await;
    let fixture = fixture(&swarm, &image, "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!(bot["reason"], "deploy_failed");
    let answer = fixture.slot_and_failures(1).await;
    assert!(answer["slot"]["error_message"].as_str().unwrap().contains("(4)"), "{answer}");
    assert!(answer["failures"][0]["log"].as_str().unwrap().contains("no licence found"), "{answer}");
}

#[tokio::test]
async fn a_service_of_a_swarm_is_described_and_has_the_limits_of_its_pool() {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = fixture(&swarm, &image, "max_slots = 1", "cpus = 0.5\nmemory = \"64m\"").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    let spec = found("it is described", async || {
        let spec = fixture.labelled.services().await.remove(0).spec.unwrap();
        let described = spec.labels.as_ref().unwrap().get("greenroom.description").cloned().unwrap_or_default();
        described.starts_with(&format!("[BUSY] Bot #{bot}")).then_some(spec)
    })
    .await;
    let resources = spec.task_template.unwrap().resources.unwrap();
    let (limits, kept) = (resources.limits.unwrap(), resources.reservations.unwrap());
    let expected = (Some(500_000_000), Some(64 * 1024 * 1024));
    assert_eq!((limits.nano_cpus, limits.memory_bytes), expected);
    assert_eq!((kept.nano_cpus, kept.memory_bytes), expected);
    // The change of its description did not restart it.
    assert_eq!(swarm.tasks(&fixture.slot(1)).await.len(), 1);
}

#[tokio::test]
async fn a_prewarmed_slot_on_a_swarm_is_idle_only_while_its_command_is_ready_and_gives_each_bot_a_new_process() {
    let swarm = Swarm::single().await;
    // The agent is the first process of the container.
    let peeks = "/proc/self/environ /proc/1/environ /proc/1/mem";
    let prewarmed = PrewarmedBot::new("/tmp", peeks, "/tmp/trace");
    let image = swarm.image(&Recipe::bot(&prewarmed.script)).await;
    let settings = format!("standby = \"running\"\n{PREWARMED_POOL}");
    let fixture = fixture(&swarm, &image, &settings, "").await;
    prewarmed.lives_in_its_slot(&fixture.server.admin(), &fixture.user).await;
}
