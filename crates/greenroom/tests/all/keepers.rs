//! The driver of the keepers, as operators see it: the last run and the next run of each keeper, the leader, and a run
//! on request.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Process, ServerFixture, found, meet_link, process_pool, until};

const NAMES: [&str; 9] =
    ["queue_expiry", "deployment", "warm_buffer", "sweeper", "recovery", "sync", "invariants", "stats", "retention"];
const BOT: &str = r#"
    echo '{"event": "joined"}'
    read leave
"#;

async fn keeper(admin: &Client, name: &str) -> Value {
    let keepers = admin.get("/admin/keepers").await;
    keepers["keepers"].as_array().unwrap().iter().find(|keeper| keeper["name"] == name).unwrap().clone()
}

async fn run(admin: &Client, name: &str) -> (StatusCode, Value) {
    admin.send(Method::POST, &format!("/admin/{name}/run"), None).await
}

async fn leader(admin: &Client) -> Option<String> {
    keeper(admin, "sync").await["leader"].as_str().map(str::to_owned)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn every_keeper_runs_at_the_start_and_shows_what_it_did_and_when_it_runs_next(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 2", BOT)).await;
    until("all have run", async || {
        let keepers = fixture.admin.get("/admin/keepers").await;
        keepers["keepers"].as_array().unwrap().iter().all(|keeper| keeper["last_run"].is_string())
    })
    .await;
    let keepers = fixture.admin.get("/admin/keepers").await;
    let names: Vec<&str> = keepers["keepers"].as_array().unwrap().iter().map(|k| k["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);
    for keeper in keepers["keepers"].as_array().unwrap() {
        let fields: BTreeSet<&str> = keeper.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = ["name", "last_run", "took_ms", "did", "error", "next_run", "leader"];
        assert_eq!(fields, expected.into());
        assert!(keeper["took_ms"].is_u64() && keeper["error"].is_null(), "{keeper}");
        assert!(keeper["did"].as_object().unwrap().values().all(|count| count == 0), "{keeper}");
        assert!(keeper["next_run"].as_str().unwrap() > keeper["last_run"].as_str().unwrap(), "{keeper}");
        assert!(keeper["leader"].as_str().unwrap().ends_with(fixture.server.url.rsplit_once(':').unwrap().1));
    }
    let metrics = fixture.admin.text("/metrics").await;
    for name in NAMES {
        assert!(metrics.contains(&format!("greenroom_keeper_runs_total{{keeper=\"{name}\"}}")), "{name}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn each_keeper_can_be_run_at_once_by_its_name(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 2", BOT)).await;
    assert_eq!(
        run(&fixture.admin, "recovery").await,
        (StatusCode::OK, json!({"recovered": 0, "failed": 0, "deleted": 0}))
    );
    for name in NAMES.into_iter().chain(["queue-expiry", "warm-buffer"]) {
        let (status, did) = run(&fixture.admin, name).await;
        assert_eq!(status, StatusCode::OK, "{name}: {did}");
        assert!(did.as_object().unwrap().values().all(Value::is_u64), "{name}: {did}");
    }
    assert_eq!(run(&fixture.admin, "sweeper").await.1["failed"], 0);
    assert_eq!(run(&fixture.admin, "gardener").await.0, StatusCode::NOT_FOUND);
    assert_eq!(run(&fixture.user, "sweeper").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(fixture.user.send(Method::GET, "/admin/keepers", None).await.0, StatusCode::UNAUTHORIZED);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_could_not_be_started_is_shown_with_its_error_and_recovered_by_hand(#[case] backend: Backend) {
    let pool = "[recovery]\ninterval = \"1h\"\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\n\
                provider = \"process\"\nmax_slots = 1\nprocess = { command = [\"no-such-command\"] }\n";
    let fixture = ServerFixture::open(backend, pool).await;
    // After the run at the start.
    until("it has run", async || keeper(&fixture.admin, "recovery").await["last_run"].is_string()).await;
    for attempt in 1..=3 {
        let bot = fixture.user.ask(json!({"meeting_url": meet_link(attempt)})).await;
        fixture.user.until(bot["id"].as_str().unwrap(), "failed").await;
        let slots = fixture.slots().await;
        assert_eq!(slots[0]["status"], "error");
        assert!(slots[0]["error_message"].as_str().unwrap().contains("no-such-command"), "{slots:?}");
        let expected = match attempt {
            3 => json!({"recovered": 0, "failed": 0, "deleted": 1}),
            _ => json!({"recovered": 1, "failed": 0, "deleted": 0}),
        };
        assert_eq!(run(&fixture.admin, "recovery").await, (StatusCode::OK, expected.clone()));
        assert_eq!(keeper(&fixture.admin, "recovery").await["did"], expected);
        if attempt == 3 {
            assert_eq!(fixture.slots().await, Vec::<Value>::new());
        } else {
            fixture.until_slots(1, 0).await;
            assert_eq!(fixture.slots().await[0]["recovery_attempts"], attempt);
        }
    }
}

#[tokio::test]
async fn a_run_that_is_requested_at_another_replica_is_done_by_the_leader_on_postgres() {
    let database = Database::new(Backend::Postgres).await;
    let config = process_pool("meet", "max_slots = 2", BOT);
    let first = Process::start_configured(&database, &config).await;
    let leading = found("the first leads", async || leader(&first.admin()).await).await;
    let second = Process::start_configured(&database, &config).await;
    assert_eq!(leader(&second.admin()).await.as_ref(), Some(&leading));
    let before = keeper(&first.admin(), "recovery").await["last_run"].clone();
    for _ in 0..3 {
        let (status, did) = run(&second.admin(), "recovery").await;
        assert_eq!((status, did), (StatusCode::OK, json!({"recovered": 0, "failed": 0, "deleted": 0})));
    }
    let after = keeper(&first.admin(), "recovery").await["last_run"].clone();
    assert!(after.as_str() > before.as_str(), "{before} {after}");
    // Both replicas show the same.
    assert_eq!(keeper(&second.admin(), "recovery").await, keeper(&first.admin(), "recovery").await);
}

#[rstest]
#[case::killed(true)]
#[case::stopped(false)]
#[tokio::test]
async fn another_replica_leads_when_the_leader_is_gone_on_postgres(#[case] killed: bool) {
    let database = Database::new(Backend::Postgres).await;
    let config = process_pool("meet", "max_slots = 2", BOT);
    let first = Process::start_configured(&database, &config).await;
    let leading = found("the first leads", async || leader(&first.admin()).await).await;
    let second = Process::start_configured(&database, &config).await;
    if killed {
        first.kill().await;
    } else {
        first.terminate().await;
        assert!(first.wait().await);
    }
    let successor =
        found("another leads", async || leader(&second.admin()).await.filter(|name| *name != leading)).await;
    assert!(successor.ends_with(second.url.rsplit_once(':').unwrap().1));
    let (status, _) = run(&second.admin(), "sweeper").await;
    assert_eq!(status, StatusCode::OK);
}
