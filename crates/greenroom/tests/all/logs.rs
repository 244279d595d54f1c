//! The log of a bot over HTTP: while it runs, after its end, and after its agent was killed.

use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{
    Backend, Database, DockerFixture, Engine, Life, Process, Recipe, ServerFixture, meet_link, process_pool, until,
};

const SLOT: &str = "pool-meet-001";

/// Prints to both streams, misspells an event, joins, and stays until it gets the command to leave.
const TALKS: &str = r#"
    echo "hello from $(basename $PWD)"
    echo '{"event": "join"}'
    echo '{"event": "joined"}'
    echo "no camera" >&2
    read leave
    echo goodbye
"#;

async fn log(client: &crate::support::Client, bot: &str) -> Value {
    client.get(&format!("/bots/{bot}/logs")).await
}

fn texts(log: &Value) -> Vec<String> {
    log["lines"].as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect()
}

fn id(bot: &Value) -> String {
    bot["id"].as_str().unwrap().to_owned()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_log_of_a_bot_is_read_while_it_runs_and_after_its_end(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", TALKS)).await;
    let bot = fixture.active(1).await;
    let bot_id = id(&bot);
    until("its output is in the log", async || texts(&log(&fixture.user, &bot_id).await).contains(&"no camera".into()))
        .await;
    let running = log(&fixture.user, &bot_id).await;
    assert!(texts(&running).iter().all(|text| !text.starts_with("greenroom-agent")), "{running}");
    fixture.leave(&bot).await;
    let ended = log(&fixture.user, &bot_id).await;
    let lines = texts(&ended);
    for text in ["hello from work", "no camera", "goodbye", "warning: unknown event \"join\", did you mean \"joined\"?"]
    {
        assert!(lines.contains(&text.to_owned()), "{text} is not in {ended}");
    }
    assert!(!lines.iter().any(|text| text.contains("\"joined\"}")), "events are not in the log: {ended}");
    assert!(ended["lines"][0]["at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(ended["truncated"], false);
    let last = fixture.user.get(&format!("/bots/{bot_id}/logs?lines=1")).await;
    assert_eq!((texts(&last), &last["truncated"]), (vec!["goodbye".to_owned()], &json!(true)));
    assert_eq!(fixture.admin.get(&format!("/admin/bots/{bot_id}/logs")).await, ended);
    // An event reports the same, once.
    let events = fixture.user.get(&format!("/bots/{bot_id}/events")).await["events"].take();
    let warnings: Vec<&Value> = events.as_array().unwrap().iter().filter(|event| event["kind"] == "warning").collect();
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0]["reason"], "unknown event \"join\", did you mean \"joined\"?");
    assert_eq!(warnings[0]["actor"], "bot");
}

#[tokio::test]
async fn only_its_own_user_can_read_a_log_and_the_query_is_checked() {
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", TALKS)).await;
    let bot = id(&fixture.active(1).await);
    let path = format!("/bots/{bot}/logs");
    let other = fixture.admin.user(1).await;
    assert_eq!(other.send(reqwest::Method::GET, &path, None).await.0, StatusCode::NOT_FOUND);
    for query in ["lines=0", "lines=5001", "lines=x", "line=1"] {
        let (status, problem) = fixture.user.send(reqwest::Method::GET, &format!("{path}?{query}"), None).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {problem}");
    }
}

#[tokio::test]
async fn the_log_of_a_bot_whose_agent_was_killed_is_kept_before_its_slot_is_cleared() {
    let config = format!(
        "{}[sweeper]\nheartbeat_lost = \"2s\"\ninterval = \"1s\"\n[heartbeat]\ninterval = \"500ms\"\n",
        process_pool("meet", "max_slots = 1", TALKS)
    );
    let fixture = ServerFixture::open(Backend::Sqlite, &config).await;
    let bot = id(&fixture.active(1).await);
    until("its output is in the log", async || texts(&log(&fixture.user, &bot).await).contains(&"no camera".into()))
        .await;
    fixture.agent(SLOT).await.kill();
    fixture.user.until(&bot, "failed").await;
    fixture.until_slots(1, 0).await;
    let kept = log(&fixture.user, &bot).await;
    assert!(texts(&kept).contains(&"no camera".to_owned()), "{kept}");
    // The next bot of the slot does not see it.
    let next = fixture.active(2).await;
    assert_eq!(next["slot"], SLOT);
    until("its output is in the log", async || {
        texts(&log(&fixture.user, &id(&next)).await).contains(&"no camera".into())
    })
    .await;
    assert_eq!(texts(&log(&fixture.user, &id(&next)).await).iter().filter(|text| *text == "no camera").count(), 1);
}

/// Prints the id of its bot.
const NAMES_ITSELF: &str = r#"
    echo "$BOT_DATA" | grep -o '"bot_id": *"[^"]*"'
    echo '{"event": "joined"}'
    read leave
"#;

#[tokio::test]
async fn a_bot_in_a_slot_that_served_others_sees_only_its_own_lines() {
    let settings = "standby = \"running\"\nmax_slots = 1\nmin_idle = 1\nrecycle_after = 0";
    let fixture = ServerFixture::open(Backend::Sqlite, &process_pool("meet", settings, NAMES_ITSELF)).await;
    fixture.until_slots(1, 0).await;
    for number in 0..3 {
        let bot = fixture.active(number).await;
        until("its output is in the log", async || !texts(&log(&fixture.user, &id(&bot)).await).is_empty()).await;
        let shown = texts(&log(&fixture.user, &id(&bot)).await);
        assert_eq!(shown.len(), 1, "{shown:?}");
        assert!(shown[0].contains(&id(&bot)), "{shown:?}");
        fixture.leave(&bot).await;
        fixture.until_slots(1, 0).await;
        assert_eq!(texts(&log(&fixture.user, &id(&bot)).await), shown, "the same log is kept");
    }
}

#[tokio::test]
async fn the_log_of_a_bot_on_docker_has_the_times_of_its_lines() {
    let image = Engine::shared().await.image(&Recipe::bot(TALKS)).await;
    let fixture = DockerFixture::start(&Engine::shared().await, "docker", &image, "max_slots = 1", "").await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    until("its output is in the log", async || texts(&log(&fixture.user, &bot).await).contains(&"no camera".into()))
        .await;
    let running = log(&fixture.user, &bot).await;
    let line = running["lines"].as_array().unwrap().iter().find(|line| line["text"] == "no camera").unwrap();
    assert!(line["at"].as_str().is_some(), "{running}");
    fixture.user.stop(&bot).await;
    fixture.user.until(&bot, "completed").await;
    assert!(texts(&log(&fixture.user, &bot).await).contains(&"goodbye".to_owned()));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_log_that_is_sent_replaces_the_one_before_and_only_under_the_bots_connection(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    let old = Life::assign(&admin, &bot).await;
    let life = Life::assign(&admin, &bot).await;
    let line = |text: &str| json!({"lines": [{"at": "2026-11-17T09:00:00.123456789Z", "text": text}]});
    let (status, problem) = old.say("log", line("old")).await;
    assert_eq!((status, &problem["code"]), (StatusCode::CONFLICT, &json!("stale_connection")));
    life.report("started", json!({})).await;
    life.report("log", line("first")).await;
    let mut second = line("sec\0ond");
    second["warnings"] = (0..8).map(|number| json!(format!("w{number}\0"))).collect();
    for _ in 0..2 {
        life.report("log", second.clone()).await;
    }
    second["warnings"] = json!(["one more"]);
    life.report("log", second).await;
    let kept = log(&user, &bot).await;
    assert_eq!(kept["lines"], json!([{"at": "2026-11-17T09:00:00.123456Z", "text": "second"}]));
    let events = user.get(&format!("/bots/{bot}/events")).await["events"].take();
    let warnings: Vec<_> =
        events.as_array().unwrap().iter().filter(|e| e["kind"] == "warning").map(|e| e["reason"].clone()).collect();
    assert_eq!(warnings, ["w0", "w1", "w2", "w3", "w4"]);
    life.report("exited", json!({"exit_code": 0})).await;
    life.report("log", line("second")).await;
    assert_eq!(life.say("log", line("late")).await.0, StatusCode::GONE);
    assert_eq!(log(&user, &bot).await, kept);
}
