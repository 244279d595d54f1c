//! Hostile bots in containers: on Docker, on a swarm, and at the fake Coolify, whose environment cannot be changed.

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use super::{Thief, standby_settings};
use crate::coolify_server;
use crate::support::{
    Backend, CoolifyFake, CoolifySettings, DockerFixture, Engine, Recipe, ServerFixture, Swarm, found, meet_link, until,
};

/// For an image that has only a shell and `cat`.
const TRIES: &str = r#"
    got() { echo "GOT $*"; }
    for process in /proc/[0-9]*; do
        [ $process = /proc/$$ ] && continue
        case $(cat $process/cmdline 2>/dev/null) in *greenroom*) ;; *) continue;; esac
        if cat $process/environ > /dev/null 2>&1; then got "the environment of $process"; fi
        if (exec 3< $process/mem) 2>/dev/null; then got "the memory of $process"; fi
    done
    [ -n "$GREENROOM_SLOT_TOKEN" ] && got "the slot's token"
    for folder in /tmp /dev/shm /var /; do
        [ -e $folder/left-by-another ] && got "what another left in $folder"
    done
    for folder in /tmp /dev/shm /; do echo x > $folder/left-by-another; done
    echo "TRIED"
    echo '{"event": "joined"}'
    while read line; do case "$line" in *leave*) exit 0;; esac; done
"#;

/// Starts a bot that tries everything, and asserts that it got nothing. Returns the active bot.
async fn lives(fixture: &DockerFixture, number: usize, log: impl AsyncFn() -> String) -> Value {
    let bot = fixture.user.bot(&meet_link(number)).await;
    let bot = fixture.user.until(&bot, "active").await;
    let log =
        found("the bot has tried everything", async || Some(log().await).filter(|log| log.contains("TRIED"))).await;
    assert!(!log.contains("GOT"), "{log}");
    bot
}

async fn leaves(fixture: &DockerFixture, bot: &Value) {
    let id = bot["id"].as_str().unwrap();
    fixture.user.stop(id).await;
    fixture.user.until(id, "completed").await;
}

/// The slot's token in an environment.
fn token(environment: Option<Vec<String>>) -> String {
    let variables = environment.unwrap_or_default();
    variables.iter().find_map(|line| line.strip_prefix("GREENROOM_SLOT_TOKEN=")).unwrap().to_owned()
}

#[rstest]
#[case::hot("running", 1)]
#[case::hot_with_the_same_agent("running", 0)]
#[case::prewarmed("prewarmed", 1)]
#[case::prewarmed_with_the_same_agent("prewarmed", 0)]
#[case::stopped("stopped", 1)]
#[tokio::test]
async fn a_bot_in_a_docker_container_gets_nothing(#[case] standby: &str, #[case] recycle_after: u32) {
    let engine = Engine::shared().await;
    // With such a setting of the pool, files of a bot stay in the container while its agent continues.
    let tries = if recycle_after == 0 { TRIES.replace("got \"what another left", ": \"") } else { TRIES.to_owned() };
    let image = engine.image(&Recipe::bot(&super::tries(&tries, standby))).await;
    let settings = format!("{}\nmax_slots = 1\nrecycle_after = {recycle_after}", standby_settings(standby));
    let fixture = DockerFixture::start(&engine, "docker", &image, &settings, "").await;
    let log = async || {
        let log = engine.docker.logs(
            &fixture.slot(1),
            Some(bollard::query_parameters::LogsOptionsBuilder::default().stdout(true).stderr(true).build()),
        );
        let lines: Vec<_> = futures_util::StreamExt::collect(log).await;
        lines.into_iter().flatten().map(|line| line.to_string()).collect()
    };
    let first = lives(&fixture, 0, log).await;
    let saved = token(fixture.container(1).await.config.unwrap().env);
    let thief = Thief::with(&fixture.server.admin(), &saved);
    leaves(&fixture, &first).await;
    for number in 1..3 {
        let next = lives(&fixture, number, log).await;
        leaves(&fixture, &next).await;
    }
    thief.got_nothing().await;
}

#[rstest]
#[case::hot("running")]
#[case::prewarmed("prewarmed")]
#[case::stopped("stopped")]
#[tokio::test]
async fn a_bot_on_a_swarm_gets_nothing_and_leaves_no_data_in_its_service(#[case] standby: &str) {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::bot(&super::tries(TRIES, standby))).await;
    let settings = format!("{}\nmax_slots = 1", standby_settings(standby));
    let fixture = DockerFixture::start(swarm.manager(), "swarm", &image, &settings, "").await;
    let docker = &swarm.manager().docker;
    let slot = fixture.slot(1);
    let service =
        async || docker.inspect_service(&slot, None::<bollard::query_parameters::InspectServiceOptions>).await.unwrap();
    let log = async || {
        let options = bollard::query_parameters::LogsOptionsBuilder::default().stdout(true).stderr(true).build();
        let lines: Vec<_> = futures_util::StreamExt::collect(docker.service_logs(&slot, Some(options))).await;
        lines.into_iter().flatten().map(|line| line.to_string()).collect()
    };
    let first = lives(&fixture, 0, log).await;
    let saved = token(service().await.spec.unwrap().task_template.unwrap().container_spec.unwrap().env);
    let thief = Thief::with(&fixture.server.admin(), &saved);
    leaves(&fixture, &first).await;
    if standby == "stopped" {
        until("nothing of the bot is in its service", async || {
            let text = serde_json::to_string(&service().await).unwrap();
            !text.contains("BOT_DATA") && !text.contains("GREENROOM_SLOT_TOKEN")
        })
        .await;
    }
    let next = lives(&fixture, 1, log).await;
    leaves(&fixture, &next).await;
    thief.got_nothing().await;
}

#[tokio::test]
async fn double_braces_in_a_request_reach_a_bot_on_a_swarm_unchanged() {
    let swarm = Swarm::single().await;
    let image = swarm.image(&Recipe::bot("echo \"DATA $BOT_DATA\"; echo '{\"event\": \"joined\"}'; read leave")).await;
    let fixture = DockerFixture::start(swarm.manager(), "swarm", &image, "max_slots = 1", "").await;
    let prompt = "{{.Node.Hostname}} {{{ {{ }} {{.Service.Labels}}";
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(0), "config": {"prompt": prompt}})).await;
    fixture.user.until(bot["id"].as_str().unwrap(), "active").await;
    let (docker, slot) = (&swarm.manager().docker, fixture.slot(1));
    let log = found("it has printed its data", async || {
        let options = bollard::query_parameters::LogsOptionsBuilder::default().stdout(true).build();
        let lines: Vec<_> = futures_util::StreamExt::collect(docker.service_logs(&slot, Some(options))).await;
        let log: String = lines.into_iter().flatten().map(|line| line.to_string()).collect();
        log.contains("DATA").then_some(log)
    })
    .await;
    assert!(log.contains(prompt), "{log}");
}

#[rstest]
#[case::stopped("standby = \"stopped\"")]
#[case::hot("standby = \"running\"\nmin_idle = 1")]
#[tokio::test]
async fn a_token_from_the_environment_of_a_coolify_application_gets_nothing_and_the_application_is_replaced(
    #[case] standby: &str,
) {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    let containers = tokio::spawn(coolify_server::run_containers(fake.events()));
    let config = coolify_server::config(&fake, standby).replace("max_slots = 2", "max_slots = 1");
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    let first = fixture.active(0).await;
    let application = fake.applications()[0].clone();
    let saved = application.envs["GREENROOM_SLOT_TOKEN"].clone();
    let thief = Thief::with(&fixture.admin, &saved);
    fixture.leave(&first).await;
    let next = fixture.active(1).await;
    fixture.leave(&next).await;
    let got = thief.got().await;
    assert!(got.iter().all(|status| *status == StatusCode::UNAUTHORIZED), "{got:?}");
    assert!(fake.applications().iter().all(|now| now.uuid != application.uuid), "it is still the same application");
    assert_eq!(fake.violations(), Vec::<String>::new());
    containers.abort();
}
