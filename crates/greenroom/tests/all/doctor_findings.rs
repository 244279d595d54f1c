//! The findings of `greenroom doctor`: a server that is down, bots that wait, missing containers, programs that the
//! server does not find, limits that were changed by hand, and replicas with different settings.

use std::path::Path;

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use reqwest::Method;
use serde_json::json;

use crate::support::{
    Backend, DockerFixture, Engine, OBEDIENT, Process, Recipe, ServerFixture, meet_link, process_pool, until,
};

const STAYS: &str = r#"echo '{"event": "joined"}'; sleep 1000"#;

/// Runs the doctor in the folder of a server, with this `PATH` if one is given.
async fn doctor(folder: &Path, database: &str, arguments: &[&str], path: Option<&str>) -> (bool, String) {
    let mut command = Process::command();
    command.arg("doctor").args(arguments).args(["--database", database]).current_dir(folder);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

async fn at(fixture: &ServerFixture, arguments: &[&str]) -> (bool, String) {
    doctor(fixture.database.folder.path(), &fixture.database.url, arguments, None).await
}

fn expect(said: &str, expected: &[&str]) {
    for word in expected {
        assert!(said.contains(word), "`{word}` is not in:\n{said}");
    }
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_to_be_down() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 3", STAYS)).await;
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(in_order, "{said}");
    let ServerFixture { server, database, .. } = fixture;
    server.kill().await;
    let (in_order, said) = doctor(database.folder.path(), &database.url, &[], None).await;
    assert!(!in_order, "{said}");
    expect(&said, &["BAD   running     the server at "]);
}

#[tokio::test]
async fn a_server_that_was_stopped_is_found_to_be_down_on_postgres() {
    let fixture = ServerFixture::open(Backend::Postgres, &process_pool("meet", "max_slots = 3", STAYS)).await;
    let ServerFixture { server, database, .. } = fixture;
    server.terminate().await;
    assert!(server.wait().await);
    let (in_order, said) = doctor(database.folder.path(), &database.url, &[], None).await;
    assert!(!in_order, "{said}");
    expect(&said, &["BAD   running     no server runs on this database"]);
}

#[tokio::test]
async fn a_full_pool_and_a_bot_that_waits_are_not_in_order() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", STAYS)).await;
    fixture.active(1).await;
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(!in_order, "{said}");
    expect(&said, &["warn  slots       1 of 1: 1 busy; none is free", "ok    waiting     no bot waits"]);
    let waiting = fixture.user.bot(&meet_link(2)).await;
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(!in_order, "{said}");
    expect(&said, &["warn  waiting     1 bot waits for a slot. Bot ", &waiting]);
}

#[tokio::test]
async fn a_program_that_only_the_caller_finds_is_missing_for_the_server() {
    let name = format!("bot-{}", uuid::Uuid::new_v4().simple());
    let pool = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
         process = {{ command = [\"{name}\"] }}\n"
    );
    let fixture = ServerFixture::open(Backend::Sqlite, &pool).await;
    let (folder, database) = (fixture.database.folder.path(), &fixture.database.url);
    let (in_order, said) = doctor(folder, database, &[], None).await;
    assert!(!in_order, "{said}");
    expect(&said, &[&format!("BAD   command     there is no program {name} on the server's PATH")]);
    // If the program is on the caller's own PATH, the doctor says so.
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink("/bin/true", bin.join(&name)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let (in_order, said) = doctor(folder, database, &[], Some(&path)).await;
    assert!(!in_order, "{said}");
    expect(&said, &["note  PATH        the server has another PATH than this command", "it is on your PATH"]);
}

#[tokio::test]
async fn limits_that_were_changed_by_hand_are_reported() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 3", STAYS)).await;
    let (status, _) = fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(json!({"max_slots": 7}))).await;
    assert_eq!(status, 200);
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(!in_order, "{said}");
    expect(&said, &["warn  limits      changed by an operator: max_slots is 7, but 3 in the configuration"]);
}

#[tokio::test]
async fn replicas_with_different_public_urls_are_reported_on_postgres() {
    let fixture = ServerFixture::open(Backend::Postgres, &process_pool("meet", "max_slots = 3", STAYS)).await;
    let (_, said) = at(&fixture, &[]).await;
    assert!(!said.contains("different addresses"), "{said}");
    let second = Process::start_with(&fixture.database, &[]).await;
    // The server answers when it has begun to serve.
    second.client("").get("/healthz").await;
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(!in_order, "{said}");
    expect(&said, &["warn  public_url  the servers give bots different addresses", &second.url, &fixture.server.url]);
}

#[tokio::test]
async fn a_removed_container_is_reported_on_docker() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let fixture = DockerFixture::start(&engine, "docker", &image, "max_slots = 2\nmin_idle = 1", "").await;
    fixture.until_idle(1).await;
    let (folder, url) = (fixture.database.folder.path().to_owned(), fixture.database.url.clone());
    let (in_order, said) = doctor(&folder, &url, &[], None).await;
    assert!(in_order, "{said}");
    let slot = fixture.slot(1);
    // A running server would create the container again.
    fixture.server.kill().await;
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    engine.docker.remove_container(&slot, Some(options)).await.unwrap();
    let (in_order, said) = doctor(&folder, &url, &[], None).await;
    assert!(!in_order, "{said}");
    expect(&said, &[&format!("warn  gone        the provider does not have 1 slot that the database has: {slot}")]);
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_reported_for_its_bot_and_its_slot() {
    let engine = Engine::shared().await;
    let fixture = DockerFixture::start(&engine, "docker", "127.0.0.1:1/nobody/bot:1", "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    let (folder, url) = (fixture.database.folder.path().to_owned(), fixture.database.url.clone());
    let run = async |arguments: &[&str]| doctor(&folder, &url, arguments, None).await.1;
    let said = run(&["bot", &bot]).await;
    expect(&said, &["problem      the image 127.0.0.1:1/nobody/bot:1 cannot be pulled"]);
    let said = run(&["slot", &fixture.slot(1)]).await;
    expect(&said, &["is being created since", "the image 127.0.0.1:1/nobody/bot:1 cannot be pulled"]);
    assert!(!said.contains("IDLE"), "{said}");
    // The doctor still shows the provider's error while the deployment waits for its next attempt.
    until("it was attempted", async || run(&["bot", &bot]).await.contains("last error: ")).await;
}
