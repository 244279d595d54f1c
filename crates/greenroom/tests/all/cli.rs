//! The binary as newcomers and operators use it: first start, stop, configuration, migration.

use std::process::Output;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Backend, Database, Life, Process, meet_link, until};

async fn run(arguments: &[&str], folder: &std::path::Path) -> (bool, String, String) {
    let Output { status, stdout, stderr } =
        Process::command().args(arguments).current_dir(folder).output().await.unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The word after `label` in the greeting.
fn shown(process: &Process, label: &str) -> Option<String> {
    let line = process.greeting.iter().find(|line| line.trim_start().starts_with(label))?;
    line.trim_start().strip_prefix(label)?.split_whitespace().next().map(str::to_owned)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_first_start_shows_a_token_a_key_and_a_curl_line_to_paste_and_the_second_shows_none(
    #[case] backend: Backend,
) {
    let database = Database::new(backend).await;
    let server = Process::start_with(&database, &[]).await;
    let (admin_token, key) = (shown(&server, "admin token").unwrap(), shown(&server, "API key").unwrap());
    assert!(server.client(&admin_token).get("/admin/users").await["users"].as_array().unwrap().len() == 1);
    // The printed command, run by a shell.
    let lines = server.greeting.join("\n");
    let (_, rest) = lines.split_once("Request a bot:\n").unwrap();
    let (line, _) = rest.split_once("\n\n").unwrap();
    assert!(line.contains(&key));
    let pasted = tokio::process::Command::new("sh").args(["-c", line]).output().await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&pasted.stdout).unwrap();
    assert_eq!(answer["bot"]["status"], "deploying", "{answer}");
    let user = server.client(&key);
    let bot = answer["bot"]["id"].as_str().unwrap();
    assert_eq!(user.get(&format!("/bots/{bot}")).await["bot"]["id"], json!(bot));
    let (status, stopped) = user.send(Method::DELETE, &format!("/bots/{bot}"), None).await;
    assert_eq!((status, &stopped["bot"]["status"]), (StatusCode::ACCEPTED, &json!("stopping")));
    // The demo bot leaves when it gets the command.
    while user.get(&format!("/bots/{bot}")).await["bot"]["status"] != "completed" {}
    server.terminate().await;
    assert!(server.wait().await);

    let server = Process::start_with(&database, &[]).await;
    assert_eq!((shown(&server, "admin token"), shown(&server, "API key")), (None, None));
    assert_eq!(server.client(&key).get(&format!("/bots/{bot}")).await["bot"]["reason"], "stopped");
    server.client(&admin_token).get("/admin/bots").await;
}

#[tokio::test]
async fn of_replicas_that_start_at_once_on_postgres_one_shows_the_new_token_and_key() {
    let database = Database::new(Backend::Postgres).await;
    let (one, two, three) = tokio::join!(
        Process::start_with(&database, &[]),
        Process::start_with(&database, &[]),
        Process::start_with(&database, &[])
    );
    let all = [one, two, three];
    let tokens: Vec<_> = all.iter().filter_map(|server| shown(server, "admin token")).collect();
    let keys: Vec<_> = all.iter().filter_map(|server| shown(server, "API key")).collect();
    assert_eq!((tokens.len(), keys.len()), (1, 1));
    for server in &all {
        server.client(&tokens[0]).get("/admin/users").await;
        server.client(&keys[0]).get("/bots").await;
    }
}

#[tokio::test]
async fn a_configured_admin_token_is_used_and_no_user_is_made() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    assert_eq!((shown(&server, "admin token"), shown(&server, "API key")), (None, None));
    assert_eq!(server.admin().get("/admin/users").await["users"], json!([]));
}

#[tokio::test]
async fn an_orderly_stop_finishes_open_requests() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(5).await;
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    // One request waits for commands, another has sent half of its body.
    let path = format!("/callback/commands?connection_id={}&wait_ms=60000", life.connection_id);
    let waiting = tokio::spawn({
        let client = life.client.clone();
        async move { client.get(&path).await }
    });
    let address = server.url.strip_prefix("http://").unwrap();
    let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = json!({"email": "late@example.com", "name": "Late", "max_concurrent_bots": 1}).to_string();
    let head = format!(
        "POST /admin/users HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{}",
        crate::support::ADMIN_TOKEN,
        body.len(),
        &body[..10]
    );
    half.write_all(head.as_bytes()).await.unwrap();
    // Both are open, and so is this request itself.
    while !server.client("").get("/metrics").await.as_str().unwrap().contains("greenroom_http_requests_under_way 3") {}
    server.terminate().await;
    assert_eq!(waiting.await.unwrap()["commands"], json!([]), "a waiting request gets an answer");
    half.write_all(&body.as_bytes()[10..]).await.unwrap();
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 Created"), "{answer}");
    assert!(server.wait().await, "the server ends by itself, with success");
    let server = Process::start(&database).await;
    let users = server.admin().get("/admin/users").await["users"].take();
    assert!(users.as_array().unwrap().iter().any(|user| user["email"] == "late@example.com"));
}

#[tokio::test]
async fn config_check_reports_every_error_at_once_without_serving() {
    let folder = tempfile::tempdir().unwrap();
    let (well, stdout, _) = run(&["config", "check"], folder.path()).await;
    assert!(well && stdout.contains("The defaults apply"), "{stdout}");
    let file = "listn = \"x\"\n[sweeper]\nheartbeat_lost = \"10s\"\n[queue]\nmax_timeout = \"1m\"\n";
    std::fs::write(folder.path().join("greenroom.toml"), file).unwrap();
    let (well, _, stderr) = run(&["config", "check"], folder.path()).await;
    assert!(!well);
    for expected in ["unknown key `listn` in greenroom.toml", "sweeper.heartbeat_lost (10s)", "queue.max_timeout (1m)"]
    {
        assert!(stderr.contains(expected), "{stderr}");
    }
    let (well, _, stderr) = run(&["serve"], folder.path()).await;
    assert!(!well && stderr.contains("listn"), "serve refuses the same configuration: {stderr}");
    assert!(!folder.path().join("greenroom.db").exists(), "no database was created");
    let flags = ["config", "check", "--set", "sweeper.heartbeat_lost=2m", "--set", "queue.max_timeout=10m"];
    let (_, _, stderr) = run(&flags, folder.path()).await;
    assert!(stderr.contains("the configuration has 1 error"), "{stderr}");
}

#[tokio::test]
async fn the_example_configuration_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let example = crate::support::in_repository("greenroom.example.toml");
    let (well, stdout, stderr) = run(&["config", "check", "--config", example.to_str().unwrap()], folder.path()).await;
    assert!(well && stdout.contains("is valid"), "{stdout}{stderr}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn migrate_only_migrates_and_refuses_a_newer_database(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    for _ in 0..2 {
        let (well, stdout, stderr) = run(&["migrate", "--database", &database.url], database.folder.path()).await;
        assert!(well && stdout.contains("schema of this version"), "{stdout}{stderr}");
    }
    database
        .execute(
            "INSERT INTO schema_versions (version, name, applied_at)
             VALUES (9999, 'from the future', '2030-01-01T00:00:00.000000Z')",
        )
        .await;
    for command in ["migrate", "serve"] {
        let arguments = [command, "--listen", "127.0.0.1:0", "--database", &database.url];
        let (well, _, stderr) = run(&arguments, database.folder.path()).await;
        assert!(!well && stderr.contains("schema version 9999"), "{stderr}");
    }
}

#[tokio::test]
async fn a_port_in_use_is_reported_in_one_sentence_with_the_remedy() {
    let database = Database::new(Backend::Sqlite).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["serve", "--listen", &address, "--database", &database.url];
    let (well, _, stderr) = run(&arguments, database.folder.path()).await;
    assert!(!well && stderr.contains(&format!("greenroom: cannot listen on {address}")), "{stderr}");
    assert!(stderr.contains("another program uses this address") && stderr.contains("`--listen"), "{stderr}");
    // The failed start created no token or key, because the next start prints new ones.
    let server = Process::start_with(&database, &[]).await;
    assert!(shown(&server, "admin token").is_some() && shown(&server, "API key").is_some());
}

#[tokio::test]
async fn a_token_that_could_not_be_shown_is_shown_by_the_next_start() {
    let database = Database::new(Backend::Sqlite).await;
    let device = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Process::command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--database", &database.url]).stdout(device);
    let status = command.current_dir(database.folder.path()).status().await.unwrap();
    assert!(!status.success());
    let server = Process::start_with(&database, &[]).await;
    assert!(shown(&server, "admin token").is_some() && shown(&server, "API key").is_some());
}

/// A request of which one byte of the body was sent, and which the server has accepted.
async fn half_sent(server: &Process) -> tokio::net::TcpStream {
    let mut half = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let token = crate::support::ADMIN_TOKEN;
    let head = format!(
        "POST /admin/users HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 9\r\n\r\n{{"
    );
    half.write_all(head.as_bytes()).await.unwrap();
    while !server.client("").get("/metrics").await.as_str().unwrap().contains("greenroom_http_requests_under_way 2") {}
    half
}

/// Waits until the server no longer accepts connections.
async fn has_heard_to_stop(server: &Process) {
    while tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.is_ok() {}
}

#[tokio::test]
async fn a_stop_does_not_wait_long_for_a_client_that_stops_sending() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let mut half = half_sent(&server).await;
    server.terminate().await;
    // Well before the 30 s that a body may otherwise take.
    assert!(tokio::time::timeout(Duration::from_secs(20), server.wait()).await.unwrap());
    let mut answer = String::new();
    half.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "the request gets an answer: {answer}");
}

#[tokio::test]
async fn a_second_signal_no_longer_waits_for_requests() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let mut half = half_sent(&server).await;
    server.terminate().await;
    has_heard_to_stop(&server).await;
    server.terminate().await;
    assert!(tokio::time::timeout(Duration::from_secs(20), server.wait()).await.unwrap());
    let mut answer = String::new();
    // The connection was closed without an answer: the server did not wait for the rest of the body.
    let _ = half.read_to_string(&mut answer).await;
    assert_eq!(answer, "");
}

#[tokio::test]
async fn after_a_full_disk_the_server_writes_again_without_a_restart() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_on_small_disk(&database).await;
    let user = server.admin().user(500).await;
    user.bot(&meet_link(1)).await;
    server.limit_files(Some(database.largest_file() + 3_000)).await;
    let mut number = 2;
    let refused = loop {
        let (status, answer) = user.post("/bots", json!({"meeting_url": meet_link(number)})).await;
        number += 1;
        if status != StatusCode::CREATED {
            break (status, answer);
        }
    };
    assert_eq!((refused.0, &refused.1["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
    server.limit_files(None).await;
    user.bot(&meet_link(number)).await;
    until("the server says so", async || server.client("").send(Method::GET, "/readyz", None).await.1["store"] == "ok")
        .await;
}

#[tokio::test]
async fn no_key_or_token_is_ever_logged() {
    let database = Database::new(Backend::Sqlite).await;
    let log = database.folder.path().join("log");
    let mut command = Process::command();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--database", &database.url])
        .env("RUST_LOG", "trace")
        .stderr(std::fs::File::create(&log).unwrap())
        .current_dir(database.folder.path());
    let server = Process::spawn(command).await;
    let (admin, key) = (shown(&server, "admin token").unwrap(), shown(&server, "API key").unwrap());
    let user = server.client(&key);
    let bot = user.bot(&meet_link(1)).await;
    let (_, data) = server.client(&admin).post(&format!("/admin/bots/{bot}/assignment"), json!({})).await;
    let life = Life::from_data(&server.client(&admin), &data);
    life.report("started", json!({})).await;
    life.say("started", json!({"connection_id": 5})).await;
    server.terminate().await;
    assert!(tokio::time::timeout(Duration::from_secs(60), server.wait()).await.unwrap());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(&bot), "the log has a line about the bot");
    for secret in [&admin, &key, data["token"].as_str().unwrap()] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
}

#[tokio::test]
async fn the_configuration_option_is_accepted_before_and_after_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.toml");
    std::fs::write(&file, "listen = \"127.0.0.1:7799\"\n").unwrap();
    let file = file.to_str().unwrap();
    for arguments in [
        &["--config", file, "config", "check"][..],
        &["config", "check", "--config", file],
        &["--config", "nowhere.toml", "config", "check", "--config", file],
    ] {
        let (well, stdout, stderr) = run(arguments, folder.path()).await;
        assert!(well && stdout.contains("127.0.0.1:7799"), "{arguments:?}: {stdout}{stderr}");
    }
    for arguments in [&["--config", file, "doctor"][..], &["doctor", "--config", file]] {
        let (_, stdout, stderr) = run(arguments, folder.path()).await;
        assert!(stdout.contains("other.toml is valid"), "{arguments:?}: {stdout}{stderr}");
    }
    let before = ["--config", file, "doctor", "slot", "pool-x-001"];
    let (well, _, stderr) = run(&before, folder.path()).await;
    assert!(!well && stderr.contains("the database does not exist yet"), "{stderr}");
}

#[tokio::test]
async fn a_lost_admin_token_is_replaced_by_one_that_is_configured() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_with(&database, &[]).await;
    let lost = shown(&server, "admin token").unwrap();
    server.terminate().await;
    assert!(server.wait().await);
    let server = Process::start_with(&database, &["--set", "admin_token=a-new-one"]).await;
    server.client("a-new-one").get("/admin/users").await;
    let (status, _) = server.client(&lost).send(Method::GET, "/admin/users", None).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}
