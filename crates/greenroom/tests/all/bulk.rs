//! One action of an operator for many bots or slots.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Database, Life, Process, ServerFixture, meet_link, process_pool, until};

/// The id or name, the status and the code of the error of each result.
fn results(answer: &Value, name: &str) -> Vec<[String; 3]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let results = answer["results"].as_array().unwrap().iter();
    results.map(|one| [text(&one[name]), text(&one["status"]), text(&one["error"]["code"])]).collect()
}

fn row(name: &str, status: &str, code: &str) -> [String; 3] {
    [name, status, code].map(str::to_owned)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn many_bots_are_stopped_and_each_has_its_own_result(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let (one, other) = (admin.user(5).await, admin.user(5).await);
    let (running, ended, theirs) =
        (one.bot(&meet_link(1)).await, one.bot(&meet_link(2)).await, other.bot(&meet_link(3)).await);
    for bot in [&running, &ended, &theirs] {
        let life = Life::assign(&admin, bot).await;
        life.report("started", json!({})).await;
        life.report("joined", json!({})).await;
        if *bot == ended {
            life.report("exited", json!({"exit_code": 0})).await;
        }
    }
    let nobody = uuid::Uuid::new_v4().to_string();
    let bots = json!([running, nobody, "bot 7", running.to_uppercase(), ended, theirs]);
    let (status, answer) = admin.post("/admin/bots/bulk", json!({"action": "stop", "bots": bots})).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(
        results(&answer, "bot_id"),
        [
            row(&running, "stopping", ""),
            row(&nobody, "", "not_found"),
            row("bot 7", "", "not_found"),
            row(&ended, "completed", ""),
            row(&theirs, "stopping", ""),
        ]
    );
    assert_eq!(answer["results"][0]["error"], Value::Null);
    assert_eq!(answer["results"][1]["error"]["detail"], "there is no such bot");
    let events = other.get(&format!("/bots/{theirs}/events")).await["events"].take();
    assert_eq!(events.as_array().unwrap().last().unwrap()["actor"], "operator");

    // One entry for the call, with what it changed.
    let entry = admin.get("/admin/audit?limit=1").await["entries"][0].take();
    assert_eq!((&entry["action"], &entry["subject"]), (&json!("bots_stopped"), &Value::Null));
    assert_eq!(entry["detail"], json!({"requested": 5, "done": 2, "failed": 2, "bots": [running, theirs]}));

    // A call that changes nothing has no entry.
    let (status, answer) = admin.post("/admin/bots/bulk", json!({"action": "stop", "bots": [running, ended]})).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(results(&answer, "bot_id"), [row(&running, "stopping", ""), row(&ended, "completed", "")]);
    assert_eq!(admin.post("/admin/bots/bulk", json!({"action": "stop", "bots": []})).await.1, json!({"results": []}));
    assert_eq!(admin.get("/admin/audit?limit=1").await["entries"][0], entry);
}

#[tokio::test]
async fn a_wrong_bulk_is_refused_by_the_name_of_its_field() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let (admin, user) = (server.admin(), server.admin().user(1).await);
    let ids = |count: usize| (0..count).map(|_| uuid::Uuid::new_v4().to_string()).collect::<Vec<_>>();
    for (path, body, field) in [
        ("bots", json!({"action": "stop", "bots": ids(1001)}), "`bots`: must have at most 1000 entries"),
        ("bots", json!({"action": "dance", "bots": []}), "`action`"),
        ("bots", json!({"action": "stop", "bots": [7]}), "`bots[0]`"),
        ("bots", json!({"action": "stop", "slots": []}), "`slots`"),
        ("slots", json!({"action": "drain", "slots": vec!["pool-meet-001"; 1001]}), "`slots`: must have at most 1000"),
        ("slots", json!({"action": "stop", "slots": []}), "`action`"),
    ] {
        let (status, answer) = admin.post(&format!("/admin/{path}/bulk"), body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}");
        assert!(answer["detail"].as_str().unwrap().starts_with(field), "{field}: {answer}");
    }
    let (status, answer) = admin.post("/admin/bots/bulk", json!({"action": "stop", "bots": ids(1000)})).await;
    assert_eq!((status, answer["results"].as_array().unwrap().len()), (StatusCode::OK, 1000));
    let (status, _) = user.post("/admin/bots/bulk", json!({"action": "stop", "bots": []})).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn many_slots_are_recovered_drained_and_deleted_and_each_has_its_own_result(#[case] backend: Backend) {
    // The program of the first pool does not exist, so its slot comes to an error.
    let broken = "[[pool]]\nname = \"zoom\"\nplatform = \"zoom\"\nprovider = \"process\"\nmax_slots = 1\n\
                  process = { command = [\"/nowhere/bot\"] }\n";
    let config = format!("{}{broken}", process_pool("meet", "max_slots = 3\nmin_idle = 3", "read leave"));
    let fixture = ServerFixture::open(backend, &config).await;
    let failing = fixture.user.bot("https://zoom.us/j/81234567890").await;
    fixture.user.until(&failing, "failed").await;
    until("the slots are there", async || {
        let slots = fixture.slots().await;
        let count = |status: &str| slots.iter().filter(|slot| slot["status"] == status).count();
        (count("idle"), count("error")) == (3, 1)
    })
    .await;
    let bulk = async |action: &str, slots: Value| {
        let (status, answer) = fixture.admin.post("/admin/slots/bulk", json!({"action": action, "slots": slots})).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    };
    let audited = async || {
        let entry = fixture.admin.get("/admin/audit?limit=1").await["entries"][0].take();
        (entry["action"].clone(), entry["detail"].clone())
    };
    let answer = bulk("recover", json!(["pool-meet-001", "pool-zoom-001", "pool-zoom-009"])).await;
    let found = results(&answer, "name");
    assert_eq!(found[0], row("pool-meet-001", "", "invalid_transition"));
    assert_eq!((found[1][0].as_str(), found[1][2].as_str()), ("pool-zoom-001", ""), "{answer}");
    assert_eq!(found[2], row("pool-zoom-009", "", "not_found"));
    let expected = json!({"requested": 3, "done": 1, "failed": 2, "slots": ["pool-zoom-001"]});
    assert_eq!(audited().await, (json!("slots_recovered"), expected));

    let (status, _) = fixture.admin.send(Method::PATCH, "/admin/pools/meet", Some(json!({"min_idle": 0}))).await;
    assert_eq!(status, StatusCode::OK);
    let answer = bulk("drain", json!(["pool-meet-002", "pool-meet-002", "pool-meet-009"])).await;
    let expected = [row("pool-meet-002", "draining", ""), row("pool-meet-009", "", "not_found")];
    assert_eq!(results(&answer, "name"), expected);
    assert_eq!(audited().await.0, "slots_drained");
    let answer = bulk("delete", json!(["pool-meet-003", "pool-meet-001"])).await;
    let expected = ["pool-meet-003", "pool-meet-001"].map(|name| row(name, "draining", ""));
    assert_eq!(results(&answer, "name"), expected);
    assert_eq!(audited().await.0, "slots_deleted");
    until("the slots are gone", async || fixture.slots().await.iter().all(|slot| slot["pool"] != "meet")).await;
}
