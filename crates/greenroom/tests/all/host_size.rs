//! `docker` slots without limits have the size of their host.

use reqwest::StatusCode;
use serde_json::json;

use crate::support::{Backend, Database, DockerFixture, Engine, OBEDIENT, Process, Recipe, meet_link, until};

#[tokio::test]
async fn a_docker_slot_without_limits_has_what_its_host_has() {
    let engine = Engine::shared().await;
    let info = engine.docker.info().await.unwrap();
    let (cpu, mem) = (info.ncpu.unwrap(), info.mem_total.unwrap() / 1024 / 1024);
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = DockerFixture::start(&engine, "docker", &image, "max_slots = 1\nmin_idle = 1", "").await;
    let slots = fixture.until_idle(1).await;
    assert_eq!((&slots[0]["attributes"]["cpu"], &slots[0]["attributes"]["mem"]), (&json!(cpu), &json!(mem)));
    let ask = |cpu: i64, number: usize| json!({"meeting_url": meet_link(number), "requirements": {"cpu": cpu}});
    let (status, answer) = fixture.user.post("/bots", ask(cpu + 1, 1)).await;
    assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{answer}");
    fixture.user.ask(ask(cpu, 2)).await;
}

#[tokio::test]
async fn a_docker_slot_with_limits_has_these() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let fixture =
        DockerFixture::start(&engine, "docker", &image, "max_slots = 1\nmin_idle = 1", "cpus = 0.5\nmemory = \"64m\"")
            .await;
    let slots = fixture.until_idle(1).await;
    assert_eq!((&slots[0]["attributes"]["cpu"], &slots[0]["attributes"]["mem"]), (&json!(0), &json!(64)));
}

#[tokio::test]
async fn the_size_of_a_host_that_was_down_at_the_start_is_found_later() {
    let engine = Engine::shared().await;
    let database = Database::new(Backend::Sqlite).await;
    let socket = database.folder.path().join("docker.sock");
    let toml = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\nmax_slots = 1\n\
         docker = {{ host = \"unix://{}\", image = \"bot\" }}\n",
        socket.display()
    );
    let server = Process::start_configured(&database, &toml).await;
    let user = server.admin().user(10).await;
    let ask = json!({"meeting_url": meet_link(1), "requirements": {"cpu": 1, "mem": 64}});
    let (status, answer) = user.post("/bots", ask.clone()).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
    std::os::unix::fs::symlink(engine.host.trim_start_matches("unix://"), &socket).unwrap();
    until("the host's size is known", async || user.post("/bots", ask.clone()).await.0 == StatusCode::CREATED).await;
}
