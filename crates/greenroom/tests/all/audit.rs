//! The audit log: every change that an operator makes has one entry, without secrets.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, ServerFixture, meet_link, process_pool};

/// Leaves only when it is told to, also after it was reconfigured.
const BOT: &str = r#"
    echo '{"event": "joined"}'
    while read -r line; do case $line in *leave*) exit 0;; esac; done
"#;

/// The entries, newest first.
async fn entries(admin: &Client) -> Vec<Value> {
    admin.get("/admin/audit").await["entries"].as_array_mut().map(std::mem::take).unwrap()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn each_change_by_an_operator_has_one_entry_that_says_what_when_and_from_where(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 2", BOT)).await;
    // The header is a claim of the caller, not where the call came from.
    let act = async |method: Method, path: &str, body: Value, expected: u16| -> Value {
        let request = fixture.admin.request(method, path).header("X-Forwarded-For", "203.0.113.9").json(&body);
        let response = request.send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(status, expected, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    let begun = entries(&fixture.admin).await;
    assert_eq!(begun.len(), 1, "the fixture made a user: {begun:?}");

    let user = json!({"email": "eve@example.com", "name": "Eve", "max_concurrent_bots": 4, "data": {"note": "hush"}});
    let user = act(Method::POST, "/admin/users", user, 201).await;
    let (id, key) = (user["user"]["id"].as_str().unwrap(), user["api_key"].as_str().unwrap());
    let user_path = format!("/admin/users/{id}");
    act(Method::PATCH, &user_path, json!({"name": "Eva", "max_concurrent_bots": 5}), 200).await;
    let grace = json!({"old_keys_valid_for_ms": 5000});
    let second_key = act(Method::POST, &format!("{user_path}/keys"), grace, 201).await["api_key"].take();
    let request = json!({"user_id": id, "meeting_url": meet_link(1), "config": {"password": "swordfish"}});
    let bot = act(Method::POST, "/admin/bots", request, 201).await["bot"].take();
    let bot = bot["id"].as_str().unwrap();
    let bot_path = format!("/admin/bots/{bot}");
    let user = fixture.admin.with(key);
    let slot = user.until(bot, "active").await["slot"].take();
    act(Method::PUT, &format!("{bot_path}/config"), json!({"config": {"password": "marlin"}}), 202).await;
    let slot = slot.as_str().unwrap();
    act(Method::POST, &format!("/admin/slots/{slot}/drain"), json!({}), 202).await;
    let assigned = act(Method::POST, &format!("{bot_path}/assignment"), json!({}), 201).await;
    act(Method::DELETE, &bot_path, json!({}), 202).await;
    act(Method::PATCH, "/admin/pools/meet", json!({"max_slots": 3}), 200).await;
    act(Method::POST, "/admin/sweeper/run", json!({}), 200).await;

    // None of these changes anything.
    act(Method::DELETE, &bot_path, json!({}), 202).await;
    act(Method::PATCH, &format!("/admin/users/{bot}"), json!({"name": "Nobody"}), 404).await;
    act(Method::PATCH, "/admin/pools/meet", json!({"max_slots": 0}), 422).await;
    act(Method::PATCH, "/admin/pools/zoom", json!({"max_slots": 1}), 404).await;
    act(Method::POST, "/admin/slots/pool-meet-009/recover", json!({}), 404).await;
    act(Method::DELETE, "/admin/slots/pool-meet-009", json!({}), 404).await;
    act(Method::POST, "/admin/janitor/run", json!({}), 404).await;
    assert_eq!(user.send(Method::DELETE, &bot_path, None).await.0, StatusCode::UNAUTHORIZED);

    let found = entries(&fixture.admin).await;
    let told = found.iter().rev().skip(1).map(|entry| json!([entry["action"], entry["subject"], entry["detail"]]));
    let told: Vec<Value> = told.collect();
    assert_eq!(
        told,
        [
            json!(["user_created", id, {"max_concurrent_bots": 4, "min_priority": 0}]),
            json!(["user_changed", id, {"max_concurrent_bots": 5, "fields": ["name", "max_concurrent_bots"]}]),
            json!(["key_rotated", id, {"old_keys_valid_for_ms": 5000}]),
            json!(["bot_created", bot, {"user_id": id}]),
            json!(["bot_reconfigured", bot, {}]),
            json!(["slot_drained", slot, {}]),
            json!(["bot_assigned", bot, {}]),
            json!(["bot_stopped", bot, {}]),
            json!(["pool_changed", "meet", {"max_slots": 3}]),
            json!(["keeper_run", "sweeper", {"outcome": "done"}]),
        ]
    );
    for pair in found.windows(2) {
        let time = |entry: &Value| entry["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        assert!(time(&pair[0]) >= time(&pair[1]) && pair[0]["id"].as_i64() > pair[1]["id"].as_i64(), "{pair:?}");
    }
    assert!(found.iter().all(|entry| entry["address"] == "127.0.0.1"), "{found:?}");
    let text = Value::Array(found).to_string();
    let (second_key, token) = (second_key.as_str().unwrap(), assigned["token"].as_str().unwrap());
    for secret in [key, second_key, token, fixture.admin.token(), "swordfish", "marlin", "hush", "eve@", "203.0.113.9"]
    {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_recovered_or_deleted_by_hand_has_its_entry(#[case] backend: Backend) {
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                process = { command = [\"/nowhere/bot\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    let failing = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&failing, "failed").await;
    let (status, answer) = fixture.admin.post("/admin/slots/pool-meet-001/recover", json!({})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let (status, answer) = fixture.admin.send(Method::DELETE, "/admin/slots/pool-meet-001", None).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let found = entries(&fixture.admin).await;
    let told: Vec<_> = found.iter().map(|entry| (entry["action"].as_str().unwrap(), &entry["subject"])).collect();
    let slot = json!("pool-meet-001");
    assert_eq!(told[..2], [("slot_deleted", &slot), ("slot_recovered", &slot)]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_log_is_paged_newest_first_and_only_for_operators(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 1", BOT)).await;
    for size in 2..7 {
        let (status, _) =
            fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(json!({"max_slots": size}))).await;
        assert_eq!(status, StatusCode::OK);
    }
    let whole = entries(&fixture.admin).await;
    assert_eq!(whole.len(), 6);
    assert_eq!(whole[0]["detail"], json!({"max_slots": 6}), "the newest is the first");
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    for length in [4, 2] {
        let page = fixture.admin.get(&format!("/admin/audit?limit=4{cursor}")).await;
        assert_eq!(page["entries"].as_array().unwrap().len(), length);
        paged.extend(page["entries"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => assert_eq!(length, 2, "there is one more page"),
        }
    }
    assert_eq!(paged, whole);
    for (query, field) in [("limit=0", "`limit`"), ("cursor=x", "`cursor`"), ("action=x", "`action`")] {
        let (status, answer) = fixture.admin.send(Method::GET, &format!("/admin/audit?{query}"), None).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}");
        assert!(answer["detail"].as_str().unwrap().starts_with(field), "{answer}");
    }
    assert_eq!(fixture.user.send(Method::GET, "/admin/audit", None).await.0, StatusCode::UNAUTHORIZED);
}
