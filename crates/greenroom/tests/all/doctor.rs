//! `greenroom doctor`, as the person on call uses it.

use std::process::Stdio;

use serde_json::json;

use crate::support::{Backend, Database, Process, ServerFixture, meet_link, process_pool, until};

/// Runs the doctor. Returns whether it found no problem, and its output.
async fn doctor(folder: &std::path::Path, database: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Process::command();
    command.arg("doctor").args(arguments).args(["--database", database]).current_dir(folder);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await.unwrap();
    let [said, complained] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), format!("{said}{complained}"))
}

/// Like `doctor`, but for the server of a fixture.
async fn at(fixture: &ServerFixture, arguments: &[&str]) -> (bool, String) {
    doctor(fixture.database.folder.path(), &fixture.database.url, arguments).await
}

fn expect(said: &str, expected: &[&str]) {
    for word in expected {
        assert!(said.contains(word), "`{word}` is not in:\n{said}");
    }
}

/// Joins and stays until it is ended.
const STAYS: &str = r#"echo '{"event": "joined"}'; sleep 1000"#;

#[tokio::test]
async fn a_missing_database_is_reported_and_not_created() {
    let database = Database::new(Backend::Sqlite).await;
    let (in_order, said) = doctor(database.folder.path(), &database.url, &[]).await;
    assert!(!in_order, "a bot requested now would not run: {said}");
    let server = "BAD   running     no server runs on this database; `greenroom serve` starts one";
    expect(&said, &["the database does not exist yet", "pool google-meet (process)", server]);
    assert_eq!(std::fs::read_dir(database.folder.path()).unwrap().count(), 0, "the doctor changes nothing");
}

#[tokio::test]
async fn an_invalid_database_is_bad_and_an_empty_file_stays_empty() {
    let database = Database::new(Backend::Sqlite).await;
    let folder = database.folder.path();
    let (in_order, said) = doctor(folder, "sqlite::memory:", &[]).await;
    assert!(!in_order && said.contains("loses every bot"), "{said}");
    let file = folder.join("greenroom.db");
    std::fs::write(&file, "").unwrap();
    let (_, said) = doctor(folder, &database.url, &[]).await;
    expect(&said, &["schema      version 0, but this program needs"]);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
    let (in_order, said) = doctor(folder, &database.url, &["slot", "pool-meet-001"]).await;
    assert!(!in_order && said.contains("the database has schema version 0"), "{said}");
}

#[tokio::test]
async fn a_healthy_server_is_reported_as_in_order_on_sqlite() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 3", STAYS)).await;
    fixture.active(1).await;
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(in_order, "{said}");
    let answers = format!("running     Greenroom {} answers at {}", env!("CARGO_PKG_VERSION"), fixture.server.url);
    expect(
        &said,
        &["as this program needs", &answers, "ok    ready", "slots       1 of 3: 1 busy", "All checks passed."],
    );
}

#[tokio::test]
async fn the_leader_of_the_keepers_is_shown_on_postgres() {
    let fixture = ServerFixture::open(Backend::Postgres, &process_pool("meet", "max_slots = 3", STAYS)).await;
    until("there is a leader", async || at(&fixture, &[]).await.1.contains("leads the keepers")).await;
    fixture.server.kill().await;
    let (database, folder) = (&fixture.database.url, fixture.database.folder.path());
    until("there is no leader", async || {
        doctor(folder, database, &[]).await.1.contains("no replica leads the keepers")
    })
    .await;
}

#[tokio::test]
async fn an_unavailable_part_is_named_and_the_command_fails() {
    let database = Database::new(Backend::Sqlite).await;
    let folder = database.folder.path();
    let file = folder.join("greenroom.toml");
    let toml = "redis = \"redis://127.0.0.1:1\"\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\n\
                provider = \"docker\"\ndocker = { host = \"unix:///nowhere/docker.sock\", image = \"bot\" }\n";
    std::fs::write(&file, toml).unwrap();
    let (in_order, said) = doctor(folder, &database.url, &["--config", file.to_str().unwrap()]).await;
    assert!(!in_order, "{said}");
    expect(
        &said,
        &[
            "BAD   public_url  bots of meet get the address http://127.0.0.1:7700",
            "Redis is unavailable",
            "the Docker Engine at unix:///nowhere/docker.sock does not answer",
            "no server runs on this database",
            "4 checks failed",
        ],
    );
}

#[tokio::test]
async fn a_bot_is_explained_while_it_waits_while_it_runs_and_when_it_has_ended() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", STAYS)).await;
    let first = fixture.active(1).await;
    let id = first["id"].as_str().unwrap();
    let (in_order, said) = at(&fixture, &["bot", id]).await;
    assert!(in_order, "{said}");
    expect(&said, &["is active, since", "pool-meet-001", "its next heartbeat is due by", "(in 1", "by user", "by bot"]);

    let second = fixture.user.ask(json!({"meeting_url": meet_link(2)})).await;
    let (_, said) = at(&fixture, &["bot", second["id"].as_str().unwrap()]).await;
    expect(&said, &["is queued, since", "a slot of meet, at position 1 of the queue, until"]);

    fixture.leave(&first).await;
    let (_, said) = at(&fixture, &["bot", id]).await;
    expect(&said, &["is completed, stopped, since"]);
    let (in_order, said) = at(&fixture, &["bot", "01890a5d-ac96-774b-bcce-b302099a8057"]).await;
    assert!(!in_order && said.contains("there is no bot"), "{said}");
}

#[tokio::test]
async fn the_last_lines_of_a_bot_are_shown() {
    let script = "for n in $(seq 30); do echo line $n; done; exit 3";
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", script)).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let id = bot["id"].as_str().unwrap();
    fixture.user.until(id, "failed").await;
    let (_, said) = at(&fixture, &["bot", id]).await;
    let (_, log) = said.rsplit_once("log ").expect("the slot has a log");
    expect(log, &["line 11", "line 30"]);
    assert!(!log.contains("line 10\n"), "{log}");
}

#[tokio::test]
async fn a_slot_is_explained_when_it_is_busy_and_when_it_is_in_error() {
    let broken = "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"process\"\nmax_slots = 1\n\
                  process = { command = [\"/nowhere/agent\"] }\n";
    let fixture = ServerFixture::open(Backend::Sqlite, &(process_pool("meet", "max_slots = 1", STAYS) + broken)).await;
    let bot = fixture.active(1).await;
    let (_, said) = at(&fixture, &["slot", "pool-meet-001"]).await;
    let id = bot["id"].as_str().unwrap();
    expect(&said, &["is busy since", id, "its bot, which waits for the end of the meeting", "processes run in it"]);

    let failed = fixture.user.ask(json!({"meeting_url": "https://zoom.us/j/81234567890"})).await;
    let failed = failed["id"].as_str().unwrap();
    fixture.user.until(failed, "failed").await;
    let (in_order, said) = at(&fixture, &["slot", "pool-zoom-001"]).await;
    assert!(in_order, "{said}");
    expect(&said, &["is error since", "recovery, ", "cannot run /nowhere/agent", "failure"]);
    let (_, said) = at(&fixture, &["bot", failed]).await;
    expect(&said, &["is failed, deploy_failed, since", "in pool-zoom-001: cannot run /nowhere/agent"]);
    // The section of the pool shows the problem too.
    let (in_order, said) = at(&fixture, &[]).await;
    assert!(!in_order, "{said}");
    expect(&said, &["BAD   command     there is no program /nowhere/agent", "BAD   slots       1 of 1: 1 error"]);

    let (in_order, said) = at(&fixture, &["slot", "pool-meet-099"]).await;
    assert!(!in_order && said.contains("there is no slot pool-meet-099"), "{said}");
}
