//! The server as its users run it, with a pool at the fake Coolify and real agents in its containers. The configuration
//! takes effect, and a bot needs as many requests as the documentation says.

use std::collections::BTreeMap;
use std::process::Stdio;

use reqwest::Method;
use rstest::rstest;
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::support::{
    Backend, COOLIFY_TOKEN, CoolifyEvent, CoolifyFake, CoolifyOperation as Operation, CoolifySettings, PREWARMED_POOL,
    PrewarmedBot, ServerFixture, until,
};

/// Stays in its meeting until it gets the command to leave.
const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;

pub fn config(fake: &CoolifyFake, standby: &str) -> String {
    format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"coolify\"\nmax_slots = 2\n{standby}\n\
         [pool.coolify]\napi_url = \"{}/api/v1\"\napi_token = \"{COOLIFY_TOKEN}\"\nproject_uuid = \"{}\"\n\
         server_uuid = \"{}\"\nenvironment_name = \"production\"\nimage = \"team/bot:1\"\n",
        fake.url,
        CoolifyFake::PROJECT,
        CoolifyFake::SERVER,
    )
}

/// Runs an agent in each container, as its image would.
pub async fn run_containers(events: UnboundedReceiver<CoolifyEvent>) {
    run_containers_of(BOT.to_owned(), events).await;
}

async fn run_containers_of(bot: String, mut events: UnboundedReceiver<CoolifyEvent>) {
    let mut containers: BTreeMap<(String, String), Child> = BTreeMap::new();
    while let Some(event) = events.recv().await {
        match event {
            CoolifyEvent::Started { uuid, container, envs, .. } => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
                command.args(["agent", "--", "sh", "-c", &bot]).env_clear().env("PATH", "/usr/bin:/bin").envs(envs);
                let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn().unwrap();
                containers.insert((uuid, container), child);
            }
            CoolifyEvent::Stopped { uuid, container } => {
                if let Some(mut child) = containers.remove(&(uuid, container)) {
                    child.kill().await.unwrap();
                }
            }
        }
    }
}

#[rstest]
#[case::stopped("standby = \"stopped\"")]
#[case::hot("standby = \"running\"\nmin_idle = 1")]
#[tokio::test]
async fn a_bot_lives_in_an_application_and_leaves_it_to_the_next(#[case] standby: &str) {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    let containers = tokio::spawn(run_containers(fake.events()));
    let fixture = ServerFixture::open(Backend::Sqlite, &config(&fake, standby)).await;
    let hot = standby.contains("running");
    if hot {
        fixture.until_slots(1, 0).await;
    }
    let first = fixture.active(1).await;
    let name = first["slot"].as_str().unwrap().to_owned();
    assert_eq!(fake.applications()[0].name, name);
    assert!(!fake.applications()[0].envs.contains_key("BOT_DATA"));
    fixture.leave(&first).await;
    until("the slot is free", async || {
        let slots = fixture.slots().await;
        slots.iter().any(|slot| slot["name"] == json!(name) && slot["status"] == "idle")
    })
    .await;
    let shown = || fake.applications()[0].description.clone().unwrap_or_default();
    until("it is shown as free", async || shown().starts_with("[IDLE] Available - Last used")).await;
    // From here on the application exists, and only the requests for the bot itself are counted.
    let own = [Operation::Create, Operation::BulkEnvs, Operation::Describe, Operation::Start, Operation::Stop];
    let count = || own.map(|operation| fake.count(operation));
    let before = count();
    let second = fixture.active(2).await;
    if second["slot"] == json!(name) {
        fixture.leave(&second).await;
        until("it has ended", async || fake.count(Operation::Stop) > before[4]).await;
        until("the slot is free", async || fixture.slots().await.iter().all(|slot| slot["status"] == "idle")).await;
        until("it is shown as free", async || shown().starts_with("[IDLE] Available - Last used")).await;
        let made: Vec<usize> = count().iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!((made[0], made[1], made[3], made[4]), (0, 0, 1, 1), "{made:?}");
        // One mark and description, one description at the end, and one in between if a bot takes long enough.
        assert!(made[2] <= 3, "{made:?}");
    }
    assert_eq!((fake.violations(), fake.prunes(), fake.throttled()), (vec![], 0, 0));
    assert_eq!(fake.env_changes_after_deployment(), 0);
    containers.abort();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_prewarmed_application_of_coolify_is_idle_only_while_its_command_is_ready(#[case] backend: Backend) {
    let (fake, folder) = (CoolifyFake::start(CoolifySettings::default()).await, tempfile::tempdir().unwrap());
    // Each container has files of its own, and here they have none.
    let prewarmed = PrewarmedBot::new(folder.path().to_str().unwrap(), "/proc/self/environ", "/dev/null");
    let containers = tokio::spawn(run_containers_of(prewarmed.script.clone(), fake.events()));
    let settings = format!("standby = \"running\"\n{PREWARMED_POOL}");
    let config = config(&fake, &settings).replacen("max_slots = 2\n", "", 1);
    let fixture = ServerFixture::open(backend, &config).await;
    prewarmed.lives_in_its_slot(&fixture.admin, &fixture.user).await;
    assert_eq!((fake.violations(), fake.env_changes_after_deployment()), (vec![], 0));
    containers.abort();
}

#[tokio::test]
async fn a_process_of_an_earlier_slot_of_the_name_gets_no_bot() {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    let containers = tokio::spawn(run_containers(fake.events()));
    let config = config(&fake, "standby = \"running\"\nmin_idle = 1").replace("max_slots = 2", "max_slots = 1");
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    fixture.until_slots(1, 0).await;
    let ask = async |token: &str| {
        let asked = fixture.admin.with(token).send(Method::GET, "/agent/assignment?wait_ms=0", None).await;
        asked.0.as_u16()
    };
    let token = |number: usize| fake.applications()[number].envs["GREENROOM_SLOT_TOKEN"].clone();
    let (old, name) = (token(0), fake.applications()[0].name.clone());
    fixture.admin.send(Method::DELETE, &format!("/admin/slots/{name}"), None).await;
    // Another slot gets the name, and its agent another token.
    until("there is another", async || {
        let now = fake.applications();
        now.len() == 1 && now[0].name == name && now[0].envs.get("GREENROOM_SLOT_TOKEN").is_some_and(|new| *new != old)
    })
    .await;
    fixture.until_slots(1, 0).await;
    assert_eq!(ask(&old).await, 401);
    // The new slot is not affected, and serves bots.
    assert_eq!(fixture.active(1).await["slot"], json!(name));
    assert_ne!(token(0), old);
    containers.abort();
}
