//! The bots of `examples/` work under the agent, in slots of a real server.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, in_repository, meet_link};

async fn pool_of(bot: &str, settings: &str) -> ServerFixture {
    let bot = in_repository(&format!("examples/{bot}")).canonicalize().unwrap();
    let command = [env!("CARGO_BIN_EXE_greenroom"), "agent", "--", bot.to_str().unwrap()];
    let pool = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 2\n{settings}\n\
         process = {{ command = {} }}\n",
        serde_json::to_string(&command).unwrap()
    );
    ServerFixture::open(Backend::Sqlite, &pool).await
}

async fn ask(fixture: &ServerFixture, number: usize, config: Value) -> String {
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(number), "config": config})).await;
    bot["id"].as_str().unwrap().to_owned()
}

#[rstest]
#[case::python("python-bot/bot.py")]
#[case::node("node-bot/bot.mjs")]
#[tokio::test]
async fn an_example_bot_waits_in_the_lobby_joins_reports_and_ends_with_its_meeting(#[case] bot: &str) {
    let fixture = pool_of(bot, "").await;
    let id = ask(&fixture, 0, json!({"lobby_ms": 300, "lines": 2, "interval_ms": 50})).await;
    let ended = fixture.user.until(&id, "completed").await;
    assert_eq!(ended["reason"], "meeting_ended");
    let events = fixture.user.get(&format!("/bots/{id}/events")).await;
    let shown: Vec<&str> =
        events["events"].as_array().unwrap().iter().filter_map(|event| event["to"].as_str()).collect();
    let steps = ["starting", "awaiting_admission", "active", "completed"];
    assert!(steps.iter().all(|step| shown.contains(step)), "{shown:?}");
    let transcript = fixture.user.get(&format!("/bots/{id}/transcript")).await;
    assert_eq!(transcript["segments"].as_array().unwrap().len(), 2, "{transcript}");

    let id = ask(&fixture, 1, json!({"refuse": true})).await;
    let failed = fixture.user.until(&id, "failed").await;
    assert_eq!((&failed["reason"], failed["error"].is_null()), (&json!("not_admitted"), false), "{failed}");
}

#[rstest]
#[case::python("python-bot/bot.py")]
#[case::node("node-bot/bot.mjs")]
#[tokio::test]
async fn an_example_bot_is_ready_ahead_of_its_meeting_and_leaves_when_asked(#[case] bot: &str) {
    let fixture = pool_of(bot, "standby = \"running\"\nmin_idle = 1\nprewarm = true").await;
    fixture.until_slots(1, 0).await;
    let id = ask(&fixture, 0, json!({"lines": 0})).await;
    let active = fixture.user.until(&id, "active").await;
    fixture.leave(&active).await;
    let log = fixture.user.get(&format!("/bots/{id}/logs")).await.to_string();
    assert!(!log.contains("warning") && !log.contains("Traceback"), "{log}");
}
