//! Explanations of bots and slots over HTTP: for the user of a bot, without the operator's secrets, and for operators.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, ServerFixture, found, meet_link, process_pool};

/// Joins and stays until it is asked to leave.
const STAYS: &str = r#"echo '{"event": "joined"}'; read leave"#;
const ZOOM_LINK: &str = "https://zoom.us/j/81234567890";

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

/// The explanation for the bot's user.
async fn for_user(fixture: &ServerFixture, bot: &Value) -> Value {
    fixture.user.get(&format!("/bots/{}/explain", id(bot))).await
}

/// The explanation for operators.
async fn for_operator(fixture: &ServerFixture, bot: &Value) -> Value {
    fixture.admin.get(&format!("/admin/bots/{}/explain", id(bot))).await
}

fn text<'a>(explanation: &'a Value, field: &str) -> &'a str {
    explanation.pointer(field).and_then(Value::as_str).unwrap_or_else(|| panic!("no text {field}: {explanation}"))
}

#[track_caller]
fn expect_contains(explanation: &Value, field: &str, expected: &str) {
    let text = text(explanation, field);
    assert!(text.contains(expected), "{field} is `{text}`, without `{expected}`");
}

/// The steps, by what they are, without the names of slots.
fn step_names(explanation: &Value) -> Vec<&str> {
    let steps = explanation["steps"].as_array().unwrap().iter();
    steps.map(|step| step["what"].as_str().unwrap().split(" (").next().unwrap()).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_is_explained_while_it_waits_while_it_runs_and_after_its_end(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    let first = fixture.active(1).await;
    let active = for_user(&fixture, &first).await;
    assert_eq!((&active["status"], &active["waiting_for"]), (&json!("active"), &json!("the end of the meeting")));
    assert!(active["until"].is_string() && active["advice"].is_null(), "{active}");
    assert_eq!(active["provider"]["status"], "running");
    assert!(active["provider"]["message"].is_null(), "the provider's own words are for operators: {active}");
    assert_eq!(step_names(&active), ["starting its slot", "joining the meeting", "in the meeting"]);
    for step in active["steps"].as_array().unwrap() {
        assert!(step["median_ms"].is_null(), "no other bot has ended: {step}");
        assert_eq!(step["took_ms"].is_null(), step["what"] == "in the meeting", "{step}");
    }
    assert_eq!(active["since"], active["steps"][2]["at"]);
    expect_contains(&for_operator(&fixture, &first).await, "/provider/message", "run in it");

    let second = fixture.user.ask(json!({"meeting_url": meet_link(2)})).await;
    let queued = for_user(&fixture, &second).await;
    assert_eq!(queued["status"], "queued");
    expect_contains(&queued, "/waiting_for", "a slot of meet, at position 1 of the queue");
    expect_contains(&queued, "/summary", "The bot has waited in the queue for ");
    assert_eq!(queued["provider"], json!({"status": null, "message": null, "last_lines": []}));

    fixture.leave(&first).await;
    let completed = for_user(&fixture, &first).await;
    expect_contains(&completed, "/summary", "The bot completed, stopped, ");
    for field in ["waiting_for", "until", "advice"] {
        assert!(completed[field].is_null(), "{completed}");
    }
    fixture.user.until(id(&second), "active").await;
    let after = for_user(&fixture, &second).await;
    assert_eq!(step_names(&after)[..2], ["waiting for a slot", "starting its slot"]);
    let (deploying, of_first) = (&after["steps"][1], &completed["steps"][0]);
    assert_eq!(deploying["median_ms"], of_first["took_ms"], "the first bot is the only one that has ended");
    assert!(deploying["took_ms"].as_i64().unwrap() >= 0, "{deploying}");
    assert!(after["steps"][0]["median_ms"].is_null(), "the first bot did not wait: {after}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn only_a_bots_user_and_operators_get_its_explanation(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", STAYS)).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let path = format!("/bots/{}/explain", id(&bot));
    let stranger = fixture.admin.user(1).await;
    for (client, path, expected) in [
        (&stranger, path.clone(), StatusCode::NOT_FOUND),
        (&stranger, format!("/admin{path}"), StatusCode::UNAUTHORIZED),
        (&fixture.user, format!("/admin{path}"), StatusCode::UNAUTHORIZED),
        (&fixture.user, "/admin/slots/pool-meet-001/explain".to_owned(), StatusCode::UNAUTHORIZED),
        (&fixture.user, "/admin/attention".to_owned(), StatusCode::UNAUTHORIZED),
        (&fixture.user, format!("/bots/{}/explain", uuid::Uuid::nil()), StatusCode::NOT_FOUND),
        (&fixture.admin, format!("/admin/bots/{}/explain", uuid::Uuid::nil()), StatusCode::NOT_FOUND),
        (&fixture.admin, "/admin/slots/pool-meet-099/explain".to_owned(), StatusCode::NOT_FOUND),
    ] {
        assert_eq!(client.send(Method::GET, &path, None).await.0, expected, "{path}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_failing_provider_is_quoted_to_operators_and_without_its_address_to_users(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\n\
                docker = { host = \"unix:///nowhere/docker.sock\", image = \"bot\" }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let explanation = found("the start has failed", async || {
        let explanation = for_operator(&fixture, &bot).await;
        let advice = explanation["advice"].as_str()?.contains("greenroom doctor");
        advice.then_some(explanation)
    })
    .await;
    assert_eq!((&explanation["status"], &explanation["provider"]["status"]), (&json!("deploying"), &json!("failed")));
    expect_contains(&explanation, "/provider/message", "unix:///nowhere/docker.sock");
    assert!(explanation["until"].is_string(), "{explanation}");

    let explanation = for_user(&fixture, &bot).await;
    assert_eq!((&explanation["status"], &explanation["provider"]["status"]), (&json!("deploying"), &json!("failed")));
    expect_contains(&explanation, "/provider/message", "[address]");
    expect_contains(&explanation, "/summary", "The last error of the provider: ");
    expect_contains(&explanation, "/advice", "tell your operator");
    let whole = explanation.to_string();
    assert!(!whole.contains("nowhere") && !whole.contains(".sock"), "{whole}");
}

#[tokio::test]
async fn a_silent_provider_is_said_and_is_no_error_of_the_call() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\n\
         docker = {{ host = \"tcp://{}\", image = \"bot\" }}\n",
        silent.local_addr().unwrap()
    );
    let fixture = ServerFixture::open(Backend::Sqlite, &pool).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    let explanation = for_user(&fixture, &bot).await;
    assert_eq!(explanation["provider"]["status"], "no_answer", "{explanation}");
    expect_contains(&explanation, "/provider/message", "does not answer within");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_failed_bot_and_its_slot_in_error_are_explained(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"process\"\nmax_slots = 1\n\
                process = { command = [\"/nowhere/agent\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let bot = fixture.user.ask(json!({"meeting_url": ZOOM_LINK})).await;
    fixture.user.until(id(&bot), "failed").await;
    let explanation = for_operator(&fixture, &bot).await;
    expect_contains(&explanation, "/provider/message", "cannot run /nowhere/agent");
    let explanation = for_user(&fixture, &bot).await;
    expect_contains(&explanation, "/summary", "The bot failed, deploy_failed, ");
    expect_contains(&explanation, "/provider/message", "cannot run [path]");
    expect_contains(&explanation, "/advice", "Request the bot again");
    assert!(!explanation.to_string().contains("nowhere"), "{explanation}");
    assert!(step_names(&explanation).contains(&"failed"), "{explanation}");

    let slot = found("the slot is in error", async || {
        let slot = fixture.admin.get("/admin/slots/pool-zoom-001/explain").await;
        (slot["status"] == "error").then_some(slot)
    })
    .await;
    expect_contains(&slot, "/summary", "The slot pool-zoom-001 is in error for ");
    expect_contains(&slot, "/waiting_for", "recovery");
    expect_contains(&slot, "/provider/message", "cannot run /nowhere/agent");
    expect_contains(&slot, "/advice", "POST /admin/slots/pool-zoom-001/recover");
    assert!(step_names(&slot).iter().any(|step| step.contains("failed: cannot run")), "{slot}");

    let attention = fixture.admin.get("/admin/attention").await;
    let items = attention["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["kind"] == "slot_error").unwrap_or_else(|| panic!("{attention}"));
    assert_eq!((&item["subject"], &item["severity"]), (&json!("pool-zoom-001"), &json!("warning")));
    assert_eq!(item["action"]["method"], "POST");
    assert_eq!(item["action"]["path"], "/admin/slots/pool-zoom-001/recover");
    let (status, answer) = fixture.admin.post(item["action"]["path"].as_str().unwrap(), json!({})).await;
    assert_eq!(status, StatusCode::OK, "the action is a call that works: {answer}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_lines_of_a_bot_are_shown_to_its_user_without_secrets(#[case] backend: Backend) {
    let script = "echo fetching https://ada:hunter2@10.9.8.7/x with grk_secret into /var/lib/greenroom/x; exit 3";
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", script)).await;
    let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
    fixture.user.until(id(&bot), "failed").await;
    let lines = async |explanation: Value| explanation["provider"]["last_lines"].as_array().unwrap().clone();
    let of_operator = found("the log is stored", async || {
        let lines = lines(for_operator(&fixture, &bot).await).await;
        (!lines.is_empty()).then_some(lines)
    })
    .await;
    assert!(of_operator[0].as_str().unwrap().contains("ada:hunter2@10.9.8.7"), "{of_operator:?}");
    let explanation = for_user(&fixture, &bot).await;
    assert_eq!(explanation["provider"]["last_lines"], json!(["fetching [address] with [token] into [path]"]));
    let whole = explanation.to_string();
    for secret in ["hunter2", "10.9.8.7", "grk_secret", "/var/lib"] {
        assert!(!whole.contains(secret), "{secret}: {whole}");
    }
    expect_contains(&explanation, "/advice", "/logs");
}
