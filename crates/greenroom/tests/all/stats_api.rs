//! `GET /admin/stats`: the figures of each step, and what it refuses.

use std::time::Duration;

use domain::event::StartKind;
use domain::stats::Figures;
use domain::{EventId, Fault, SlotStatus};
use greenroom::store::{NewFigures, Resolution, Store};
use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Process, ServerFixture, process_pool};

const BOT: &str = "echo '{\"event\": \"joined\"}'\nread leave";

/// The beginning of an hour in which all minutes are kept and over.
fn an_hour_ago() -> Timestamp {
    Resolution::Hour.begin(Timestamp::now() - Duration::from_hours(2))
}

fn minute(from: Timestamp, minutes: i64) -> Timestamp {
    Timestamp::from_second(from.as_second() + 60 * minutes).unwrap()
}

/// Adds figures to the minute of a pool, and of all pools together.
async fn add(store: &Store, pool: &str, at: Timestamp, figures: &Figures) {
    add_all(store, &["", pool].into_iter().map(|pool| ((pool.to_owned(), at), figures.clone())).collect()).await;
}

async fn add_all(store: &Store, figures: &NewFigures) {
    // The server may move the position meanwhile.
    loop {
        let position: EventId = store.stats_position().await.unwrap();
        if store.add_event_figures((position, position), figures).await.unwrap() {
            return;
        }
    }
}

fn requests(requests: u64) -> Figures {
    Figures { requests, ..Figures::default() }
}

fn points(answer: &Value) -> &Vec<Value> {
    answer["points"].as_array().unwrap()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn each_step_has_the_sum_of_its_minutes_and_the_percentiles_of_all_their_waits(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 2", BOT)).await;
    let (store, hour) = (fixture.database.open().await, an_hour_ago());
    let mut early = requests(3);
    early.add_start(Some(StartKind::Hot), 0);
    early.add_start(Some(StartKind::Cold), 5);
    early.add_end(Some("finished"), Some(Fault::None));
    early.add_end(Some("removed"), Some(Fault::Host));
    (early.samples, early.slots) = (1, [("idle".to_owned(), 4)].into());
    let mut late = requests(1);
    late.add_start(Some(StartKind::Stopped), 60_000);
    late.add_end(Some("finished"), Some(Fault::None));
    late.add_end(Some("queue_timeout"), Some(Fault::Capacity));
    late.samples = 1;
    late.add_slots(SlotStatus::Idle, 1);
    late.add_slots(SlotStatus::Busy, 2);
    add(&store, "meet", minute(hour, 0), &early).await;
    add(&store, "meet", minute(hour, 4), &late).await;
    add(&store, "gone", minute(hour, 5), &requests(7)).await;

    let asked = format!("/admin/stats?from={hour}&to={}&step=5m", minute(hour, 15));
    let answer = fixture.admin.get(&asked).await;
    assert_eq!((&answer["from"], &answer["to"]), (&json!(hour), &json!(minute(hour, 15))));
    assert_eq!(answer["step_ms"], 300_000);
    assert_eq!(points(&answer).len(), 3);
    assert_eq!(
        answer["points"][0],
        json!({
            "at": hour,
            "requests": 4,
            "starts": {"hot": 1, "stopped": 1, "cold": 1},
            "waits": {"count": 3, "p50_ms": 5, "p95_ms": 59_391},
            "slots": {"creating": 0, "idle": 2.5, "busy": 1, "error": 0, "draining": 0},
            "ends": {"by_reason": {"finished": 2, "queue_timeout": 1, "removed": 1},
                     "by_fault": {"host": 1, "bot": 0, "provider": 0, "capacity": 1, "none": 2}},
            "placed_per_second": 0.01,
        })
    );
    assert_eq!(answer["points"][1]["requests"], 7);
    assert_eq!(
        answer["points"][2],
        json!({
            "at": minute(hour, 10),
            "requests": 0,
            "starts": {"hot": 0, "stopped": 0, "cold": 0},
            "waits": {"count": 0, "p50_ms": null, "p95_ms": null},
            "slots": {"creating": null, "idle": null, "busy": null, "error": null, "draining": null},
            "ends": {"by_reason": {}, "by_fault": {"host": 0, "bot": 0, "provider": 0, "capacity": 0, "none": 0}},
            "placed_per_second": 0.0,
        })
    );

    let by_pool = async |pool: &str| {
        let answer = fixture.admin.get(&format!("{asked}&pool={pool}")).await;
        points(&answer).iter().map(|point| point["requests"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(by_pool("meet").await, [4, 0, 0]);
    assert_eq!(by_pool("gone").await, [0, 7, 0], "a pool that was removed has figures");

    // By hours, the same is in one point.
    let answer = fixture.admin.get(&format!("/admin/stats?from={hour}&to={}&step=hour", minute(hour, 60))).await;
    assert_eq!((points(&answer).len(), answer["points"][0]["requests"].as_u64()), (1, Some(11)));
    assert_eq!(answer["points"][0]["waits"], json!({"count": 3, "p50_ms": 5, "p95_ms": 59_391}));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn hours_from_long_ago_are_shown_and_the_future_is_not(#[case] backend: Backend) {
    let fixture = ServerFixture::open(backend, &process_pool("meet", "max_slots = 2", BOT)).await;
    let (store, hour) = (fixture.database.open().await, an_hour_ago());
    let long_ago = hour - Duration::from_hours(30 * 24);
    // More rows than are read at once.
    let new: NewFigures =
        (0..1_100).map(|number| ((String::new(), minute(long_ago, -60 * number)), requests(1))).collect();
    add_all(&store, &new).await;
    let from = minute(long_ago, -60 * 1_099);
    let answer = fixture.admin.get(&format!("/admin/stats?from={from}&to={}&step=1h", minute(long_ago, 60))).await;
    assert_eq!(points(&answer).len(), 1_100);
    assert!(points(&answer).iter().all(|point| point["requests"] == 1));
    let answer = fixture.admin.get(&format!("/admin/stats?from={from}&to={}", minute(long_ago, 60))).await;
    assert!(points(&answer).len() <= 300, "the server chooses the step");
    assert_eq!(points(&answer).iter().map(|point| point["requests"].as_u64().unwrap()).sum::<u64>(), 1_100);

    let tomorrow = Timestamp::now() + Duration::from_hours(24);
    let answer = fixture.admin.get(&format!("/admin/stats?to={tomorrow}&from={hour}&step=10m")).await;
    let last: Timestamp = points(&answer).last().unwrap()["at"].as_str().unwrap().parse().unwrap();
    assert!(last < Timestamp::now());
    let answer = fixture.admin.get("/admin/stats").await;
    assert_eq!(answer["step_ms"], 60_000);
    assert!((59..=61).contains(&points(&answer).len()), "the last hour by minutes");
}

async fn refused(client: &Client, query: &str) -> (StatusCode, String) {
    let (status, problem) = client.send(Method::GET, &format!("/admin/stats?{query}"), None).await;
    (status, problem["detail"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_wrong_parameter_is_refused_by_its_name() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &process_pool("meet", "max_slots = 2", BOT)).await;
    let admin = server.admin();
    for (query, words) in [
        ("from=yesterday", ["`from`", "RFC 3339"]),
        ("to=1763409999", ["`to`", "RFC 3339"]),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", ["`from`", "before `to`"]),
        ("step=30s", ["`step`", "whole minutes"]),
        ("step=often", ["`step`", "duration"]),
        ("from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z&step=5m", ["`step`", "48 hours"]),
        ("from=2020-01-01T00:00:00Z&to=2021-01-01T00:00:00Z&step=1h", ["`step`", "1500"]),
        ("pool=unknown", ["`pool`", "no such pool"]),
        ("pool=", ["`pool`", "no such pool"]),
        ("steps=5m", ["`steps`", "from, pool, step, to"]),
    ] {
        let (status, detail) = refused(&admin, query).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{query}: {detail}");
        assert!(words.iter().all(|word| detail.contains(word)), "{query}: {detail}");
    }
    assert_eq!(refused(&admin, "pool=meet").await.0, StatusCode::OK);
    let user = admin.user(1).await;
    assert_eq!(refused(&user, "").await.0, StatusCode::UNAUTHORIZED);
}
