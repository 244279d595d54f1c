//! Pools on a real Docker Engine: the whole life of bots, clean-up, pulls, limits, and what the server keeps after a
//! failure.

use std::time::Duration;

use bollard::query_parameters::CreateContainerOptionsBuilder;
use rstest::rstest;
use serde_json::json;

use crate::support::{
    Backend, Database, DockerFixture, Engine, OBEDIENT, PrivateEngine, Process, Recipe, Registry, StallingRegistry,
    found, meet_link, until,
};

/// A server with one pool on the engine that all tests share. `settings` are lines of the pool's configuration,
/// `docker` those of its own section.
async fn fixture(image: &str, settings: &str, docker: &str) -> DockerFixture {
    DockerFixture::start(&Engine::shared().await, "docker", image, settings, docker).await
}

#[rstest]
#[case::hot("running")]
#[case::stopped("stopped")]
#[tokio::test]
async fn twenty_bots_live_on_docker_while_the_server_is_killed_and_nothing_is_left_but_the_pool(#[case] standby: &str) {
    let image = Engine::shared().await.image(&Recipe::bot(OBEDIENT)).await;
    let settings = format!("standby = \"{standby}\"\nmax_slots = 5\nmin_idle = 2");
    let (fixture, slots) = fixture(&image, &settings, "").await.twenty_lives().await;
    // Each slot has its container, and there is no other.
    let containers = fixture.labelled.containers().await;
    let mut names: Vec<String> =
        containers.iter().map(|it| it.names.as_ref().unwrap()[0].trim_start_matches('/').to_owned()).collect();
    names.sort();
    assert_eq!(names, slots);
    let running = if standby == "running" { slots.len() } else { 0 };
    assert_eq!(fixture.labelled.running().await.len(), running);
}

#[tokio::test]
async fn ten_docker_slots_with_a_missing_image_cost_the_registry_one_pull() {
    let engine = Engine::shared().await;
    let registry = Registry::shared();
    let image = registry.push(&engine, &engine.image(&Recipe::bot(OBEDIENT)).await).await;
    assert!(!engine.has_image(&image).await);
    let fixture = fixture(&image, "max_slots = 10\nmin_idle = 10", "").await;
    fixture.until_idle(10).await;
    until("the registry has logged the pull", async || registry.pulls(&image) > 0).await;
    // This holds also when bots are started in them afterwards.
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    assert_eq!(registry.pulls(&image), 1);
    engine.forget_image(&image).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_docker_pull_from_a_registry_is_given_up_with_the_engines_message_and_retried() {
    let (shared, registry) = (Engine::shared().await, Registry::shared());
    let pushed = registry.push(&shared, &shared.image(&Recipe::bot(OBEDIENT)).await).await;
    // This engine has none of the layers.
    let engine = PrivateEngine::start("alone").await;
    let address = std::env::var("TEST_REGISTRY").unwrap();
    let stalling = StallingRegistry::before(&address).await;
    let image = pushed.replacen(&address, &stalling.address, 1);
    let stall = "[deploy]\npull_stall = \"1s\"";
    let fixture = DockerFixture::start(&engine, "docker", &image, "max_slots = 1", stall).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let message = found("the reason is shown", async || {
        let gate = fixture.server.admin().get("/admin/deployments").await;
        gate["entries"][0]["last_error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(message.contains("cannot be pulled: no progress for 1 s; the last step was: "), "{message}");
    let gate = fixture.server.admin().get("/admin/deployments").await;
    assert_eq!(gate["entries"][0]["bot_id"], json!(bot), "the pull is retried within the deadline");
    stalling.go_on();
    fixture.user.until(&bot, "active").await;
}

#[tokio::test]
async fn a_docker_container_has_the_limits_the_network_and_the_variables_of_its_pool() {
    let image = Engine::shared().await.image(&Recipe::bot(OBEDIENT)).await;
    let docker = "cpus = 0.5\nmemory = \"64m\"\nnetwork = \"bridge\"\nenv = { COLOUR = \"green\" }";
    let fixture = fixture(&image, "max_slots = 1", docker).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "active").await;
    let container = fixture.container(1).await;
    let host = container.host_config.unwrap();
    assert_eq!((host.nano_cpus, host.memory), (Some(500_000_000), Some(64 * 1024 * 1024)));
    assert_eq!(host.network_mode.as_deref(), Some("bridge"));
    let environment = container.config.unwrap().env.unwrap();
    for variable in
        ["COLOUR=green", "BOT_DATA=", "GREENROOM_SLOT_TOKEN=", &format!("GREENROOM_SLOT={}", fixture.slot(1))]
    {
        assert!(environment.iter().any(|line| line.starts_with(variable)), "{variable}");
    }
    // The bot has the id of its container.
    assert!(container.id.unwrap().starts_with(bot["container_id"].as_str().unwrap()));
}

#[tokio::test]
async fn the_pools_command_runs_instead_of_the_docker_images_own() {
    let image = Engine::shared().await.image(&Recipe::bot("exit 1")).await;
    let command = json!(["/bin/greenroom", "agent", "--", "/bin/sh", "-c", OBEDIENT]);
    let fixture = fixture(&image, "max_slots = 1", &format!("command = {command}")).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
}

#[tokio::test]
async fn a_bot_on_docker_sees_nothing_of_the_one_before() {
    const CURIOUS: &str = r#"
        if [ -e /left ]; then exit 7; fi
        echo something > /left
        echo '{"event": "joined"}'
    "#;
    let image = Engine::shared().await.image(&Recipe::bot(CURIOUS)).await;
    for standby in ["running", "stopped"] {
        let fixture = fixture(&image, &format!("max_slots = 1\nstandby = \"{standby}\""), "").await;
        for number in 0..3 {
            let bot = fixture.user.bot(&meet_link(number)).await;
            fixture.user.until(&bot, "completed").await;
        }
    }
}

#[tokio::test]
async fn an_image_that_docker_cannot_pull_fails_the_bot_with_the_engines_message() {
    let fixture = fixture("127.0.0.1:1/nobody/nothing:1", "max_slots = 1", "").await;
    // Nothing listens at this address. The error may be temporary, so the pull is retried, and the test can see the
    // error.
    let bot = fixture.user.bot(&meet_link(1)).await;
    let said = found("the engine's error is shown", async || {
        let deployments = fixture.server.admin().get("/admin/deployments").await;
        deployments["entries"][0]["last_error"].as_str().map(str::to_owned)
    })
    .await;
    assert!(said.contains("127.0.0.1:1/nobody/nothing:1 cannot be pulled"), "{said}");
    // The user sees the same error, in the bot and in the list.
    let shown = fixture.user.show_bot(&bot).await;
    assert_eq!((&shown["status"], shown["error"].as_str()), (&json!("deploying"), Some(said.as_str())));
    assert_eq!(fixture.user.get("/bots").await["bots"][0]["error"], json!(said));
    fixture.user.stop(&bot).await;
    fixture.user.until(&bot, "completed").await;
}

#[tokio::test]
async fn an_image_that_the_registry_does_not_have_fails_the_docker_bot_at_once() {
    let registry = std::env::var("TEST_REGISTRY").unwrap();
    let fixture = fixture(&format!("{registry}/nobody/nothing:1"), "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!(bot["reason"], "deploy_failed");
    let answer = fixture.slot_and_failures(1).await;
    assert_eq!(answer["slot"]["status"], "error");
    assert!(answer["slot"]["error_message"].as_str().unwrap().contains("cannot be pulled"), "{answer}");
    assert_eq!(answer["failures"][0]["bot_id"], bot["id"]);
}

#[tokio::test]
async fn a_docker_container_that_ends_at_once_is_reported_with_its_last_lines() {
    let image = Engine::shared().await.image(&Recipe::script("echo first; echo no licence found >&2; exit 4")).await;
    let fixture = fixture(&image, "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!(bot["reason"], "deploy_failed");
    let answer = fixture.slot_and_failures(1).await;
    let message = answer["slot"]["error_message"].as_str().unwrap();
    assert_eq!(message, "its container ended right after the start, with exit code 4");
    let log = answer["failures"][0]["log"].as_str().unwrap();
    assert!(log.contains("first") && log.contains("no licence found"), "{log}");
}

#[tokio::test]
async fn the_last_lines_of_a_bot_that_crashed_on_docker_are_kept() {
    let script = "echo '{\"event\": \"joined\"}'; echo the meeting vanished >&2; exit 3";
    let image = Engine::shared().await.image(&Recipe::bot(script)).await;
    let fixture = fixture(&image, "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    fixture.until_idle(1).await;
    let answer = fixture.slot_and_failures(1).await;
    assert_eq!(answer["failures"][0]["bot_id"], bot["id"]);
    let log = answer["failures"][0]["log"].as_str().unwrap();
    assert!(log.contains("the meeting vanished"), "{log}");
}

#[tokio::test]
async fn a_container_that_ignores_signals_is_killed_on_docker() {
    const GRACE: &str = "[heartbeat]\ninterval = \"500ms\"\n[sweeper]\nstop_grace = \"1s\"\ninterval = \"1s\"";
    let deaf = "trap '' TERM; echo '{\"event\": \"joined\"}'; while true; do sleep 1000; done";
    let image = Engine::shared().await.image(&Recipe::bot(deaf)).await;
    let fixture = fixture(&image, "max_slots = 1", GRACE).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    fixture.user.stop(&bot).await;
    let bot = fixture.user.until(&bot, "completed").await;
    assert_eq!(bot["reason"], "stopped");
    fixture.until_idle(1).await;
    assert_eq!(fixture.labelled.running().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_foreign_docker_container_with_the_name_of_a_slot_is_not_touched() {
    let image = Engine::shared().await.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = fixture(&image, "max_slots = 1", "").await;
    let theirs = fixture.engine.unique_label();
    let options = CreateContainerOptionsBuilder::default().name(&fixture.slot(1)).build();
    let body = bollard::models::ContainerCreateBody {
        image: Some(image),
        labels: Some([theirs.label()].into()),
        ..Default::default()
    };
    let id = fixture.engine.docker.create_container(Some(options), body).await.unwrap().id;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let bot = fixture.user.until(&bot, "failed").await;
    assert_eq!(bot["reason"], "deploy_failed");
    let answer = fixture.slot_and_failures(1).await;
    let message = answer["slot"]["error_message"].as_str().unwrap();
    assert!(message.contains("that this installation did not make"), "{message}");
    assert_eq!(fixture.container(1).await.id.unwrap(), id);
}

#[tokio::test]
async fn a_docker_container_that_was_created_but_not_started_is_removed_by_the_stop() {
    use greenroom::providers::{Provider, Spec};

    let (provider, _ours, slot) = provider(&Recipe::script("sleep 1000 & wait")).await;
    let connection = Some("of-a-bot".to_owned());
    let spec = Spec {
        slot: slot.clone(),
        generation: 1,
        connection,
        environment: Default::default(),
        fresh: false,
        requirements: None,
    };
    // The bot may end between the two calls of its start. The second call may still arrive.
    let made = provider.create(&spec).await.unwrap();
    provider.stop(&slot, false).await.unwrap();
    let after = provider.create(&spec).await.unwrap();
    assert_ne!(after, made);
}

/// A provider on the engine that all tests share, and a slot that only this test uses.
async fn provider(
    recipe: &Recipe,
) -> (greenroom::providers::docker::DockerProvider, crate::support::Labelled, domain::SlotName) {
    let engine = Engine::shared().await;
    let (host, image) = (Some(engine.host.clone()), engine.image(recipe).await);
    let config = greenroom::config::provider::DockerConfig { host, image, ..Default::default() };
    let installation = uuid::Uuid::new_v4().to_string();
    let labelled = engine.labelled(&format!("greenroom.installation={installation}"));
    let slot = domain::SlotName::new(&installation[..8], 1);
    (greenroom::providers::docker::DockerProvider::new(config, installation), labelled, slot)
}

#[tokio::test]
async fn an_unhealthy_agent_in_docker_is_reported_as_unhealthy() {
    use greenroom::providers::{Provider, Spec};

    let recipe = Recipe::script("sleep 1000 & wait").with_health_check(100, "exit 1");
    let (provider, _ours, slot) = provider(&recipe).await;
    let spec = Spec {
        slot: slot.clone(),
        generation: 1,
        connection: None,
        environment: Default::default(),
        fresh: true,
        requirements: None,
    };
    provider.start(&spec).await.unwrap();
    until("it is unhealthy", async || {
        let found = provider.inspect(&slot).await.unwrap().unwrap();
        let listed = provider.list().await.unwrap();
        found.running
            && found.unhealthy
            && found.state.contains("unhealthy")
            && listed.iter().all(|found| found.unhealthy)
    })
    .await;
}

#[tokio::test]
async fn a_docker_slot_is_deleted_together_with_its_container() {
    let image = Engine::shared().await.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = fixture(&image, "max_slots = 2\nmin_idle = 1\nstandby = \"running\"", "").await;
    let slots = fixture.until_idle(1).await;
    let path = format!("/admin/slots/{}", slots[0]["name"].as_str().unwrap());
    let before = fixture.labelled.running().await;
    let (status, _) = fixture.server.admin().send(reqwest::Method::DELETE, &path, None).await;
    assert_eq!(status, 202);
    until("its container is gone, and another waits", async || {
        let running = fixture.labelled.running().await;
        running.len() == 1 && running != before
    })
    .await;
}

#[tokio::test]
async fn readiness_names_a_docker_engine_that_does_not_answer() {
    let database = Database::new(Backend::Sqlite).await;
    let toml = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\n\
                docker = { host = \"unix:///nowhere/docker.sock\", image = \"bot\" }\n";
    let server = Process::start_configured(&database, toml).await;
    let ready = found("the provider was asked", async || {
        let ready = server.client("").get("/readyz").await;
        ready["providers"]["meet"].is_string().then_some(ready)
    })
    .await;
    // An anonymous caller does not learn the address or the error of the provider.
    assert_eq!((&ready["providers"], &ready["missing"]), (&json!({"meet": "away"}), &json!(["provider of meet"])));
    assert!(!ready.to_string().contains("docker.sock"), "{ready}");
    tokio::time::timeout(Duration::from_secs(1), server.kill()).await.unwrap();
}
