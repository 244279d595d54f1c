//! The reference bot with a real browser, prewarmed in a container of a real Docker Engine. The image is made from the
//! files of this machine.

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::StatusCode;

use crate::support::{DockerFixture, Engine, found, in_repository, meet_link, until};

const POOL: &str = "standby = \"running\"\nprewarm = true\nmax_slots = 1\nmin_idle = 1";

/// Makes the image, and returns its name.
fn image(engine: &Engine) -> String {
    let name = format!("greenroom-test-browser:{}", uuid::Uuid::new_v4().simple());
    let agent = std::path::Path::new(env!("CARGO_BIN_EXE_greenroom")).with_file_name("greenroom-agent");
    let mut command = Command::new(in_repository("examples/browser-bot/image"));
    let made = command.arg(agent).arg(&name).env("DOCKER_HOST", &engine.host).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    name
}

/// The processes of a slot's container whose command has this text, as processes of this machine. The engine has its own
/// process ids, so they are found by their cgroup, which is named after the container.
async fn processes(fixture: &DockerFixture, text: &str) -> Vec<i32> {
    let container = fixture.container(1).await.id.unwrap();
    let is_one = |folder: &std::path::Path| {
        let read =
            |name: &str| std::fs::read(folder.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        read("cgroup").is_ok_and(|cgroup| cgroup.contains(&container))
            && read("cmdline").is_ok_and(|command| command.contains(text))
    };
    let folders = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    folders.filter(|folder| is_one(folder)).filter_map(|folder| folder.file_name()?.to_str()?.parse().ok()).collect()
}

#[tokio::test]
async fn a_prewarmed_browser_bot_joins_from_a_docker_container_and_survives_the_death_of_its_browser() {
    let engine = Engine::shared().await;
    let image = image(&engine);
    let fixture = DockerFixture::start(&engine, "docker", &image, POOL, "").await;
    fixture.until_idle(1).await;
    let browsers = processes(&fixture, "--remote-debugging-pipe").await;
    assert!(!browsers.is_empty(), "the browser is open before there is a bot");
    assert_eq!(processes(&fixture, "bot.py").await.len(), 2, "the agent and its bot");

    // The bot sees that its browser is gone, and ends. The agent starts it again.
    let container = fixture.container(1).await.id;
    for browser in &browsers {
        let _ = kill(Pid::from_raw(*browser), Signal::SIGKILL);
    }
    until("the slot is not idle", async || fixture.slots().await[0]["status"] == "creating").await;
    fixture.until_idle(1).await;
    assert_eq!(fixture.container(1).await.id, container, "the slot was not started again");
    assert!(processes(&fixture, "--remote-debugging-pipe").await.iter().all(|browser| !browsers.contains(browser)));

    let bot = fixture.user.bot(&meet_link(1)).await;
    assert_eq!(fixture.user.until(&bot, "active").await["slot"], fixture.slot(1));
    let segment = found("a caption is stored", async || {
        let transcript = fixture.user.get(&format!("/bots/{bot}/transcript")).await;
        transcript["segments"].get(0).cloned()
    });
    assert!(segment.await["text"].is_string());
    let admin = fixture.server.admin();
    let screenshot = found("a screenshot is stored", async || {
        let request = admin.request(reqwest::Method::GET, &format!("/admin/bots/{bot}/screenshot"));
        let response = request.send().await.unwrap();
        (response.status() == StatusCode::OK).then_some(response)
    });
    assert_eq!(screenshot.await.headers()["content-type"], "image/jpeg");
    fixture.user.stop(&bot).await;
    assert_eq!(fixture.user.until(&bot, "completed").await["reason"], "stopped");
    let memory = found("the memory of the next browser is known", async || {
        fixture.until_idle(1).await[0]["memory_bytes"].as_u64()
    });
    assert!(memory.await > 64 * 1024 * 1024);
    drop(fixture);
    engine.forget_image(&image).await;
}
