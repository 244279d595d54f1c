//! Lists with filters, counts that are kept, and the estimate of the wait, which is the same everywhere.

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Database, Life, Process, ServerFixture, meet_link, process_pool};

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|bot| bot["id"].as_str().unwrap()).collect()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn filters_by_meeting_and_metadata_find_bots_that_run_and_bots_that_ended(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let (admin, user, other) = (server.admin(), server.admin().user(99).await, server.admin().user(99).await);
    let ask = async |number: usize, metadata: Value| {
        let body = json!({"meeting_url": meet_link(number), "metadata": metadata});
        user.ask(body).await["id"].as_str().unwrap().to_owned()
    };
    let first = ask(1, json!({"customer": "42", "team": "a", "deep": {"x": 1}})).await;
    let second = ask(2, json!({"customer": 42, "paid": true, "none": null})).await;
    let third = ask(3, json!({"customer": "7", "a.b": "c"})).await;
    let strangers = other.bot(&meet_link(1)).await;
    // One has ended, so that it is not found among the open ones.
    let life = Life::assign(&admin, &first).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    life.report("exited", json!({"exit_code": 0})).await;
    let again = ask(1, json!({})).await;
    let native = user.show_bot(&first).await["native_meeting_id"].as_str().unwrap().to_owned();
    let link = meet_link(1).replace(':', "%3A");
    for (question, expected) in [
        (format!("meeting={native}"), vec![&again, &first]),
        (format!("meeting={link}"), vec![&again, &first]),
        (format!("meeting={native}&status=completed"), vec![&first]),
        (format!("meeting={link}&platform=zoom"), vec![]),
        (format!("meeting={native}&metadata.team=a"), vec![&first]),
        ("meeting=nowhere".to_owned(), vec![]),
        ("metadata.customer=42".to_owned(), vec![&second, &first]),
        ("metadata.customer=42&metadata.team=a".to_owned(), vec![&first]),
        ("metadata.customer=42&status=completed".to_owned(), vec![&first]),
        ("metadata.paid=true".to_owned(), vec![&second]),
        ("metadata.none=null".to_owned(), vec![&second]),
        ("metadata.a.b=c".to_owned(), vec![&third]),
        ("metadata.deep=%7B%22x%22%3A1%7D".to_owned(), vec![&first]),
        ("metadata.customer=4".to_owned(), vec![]),
        ("status=completed".to_owned(), vec![&first]),
    ] {
        for path in ["bots", "meetings"] {
            let page = user.get(&format!("/{path}?{question}")).await;
            assert_eq!(ids(&page[path]), expected, "/{path}?{question}");
            assert_eq!(page["next_cursor"], Value::Null, "/{path}?{question}");
        }
    }
    let everyones = admin.get(&format!("/admin/bots?meeting={native}")).await;
    assert_eq!(ids(&everyones["bots"]), [again.as_str(), strangers.as_str(), first.as_str()]);
    // Pages of one continue where the last one ended.
    let page = user.get("/bots?metadata.customer=42&limit=1").await;
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = user.get(&format!("/bots?metadata.customer=42&limit=1&cursor={cursor}")).await;
    assert_eq!((ids(&page["bots"]), ids(&rest["bots"])), (vec![second.as_str()], vec![first.as_str()]));
    for (question, field) in [
        ("meeting=https://example.com/x", "`meeting`"),
        ("meeting=%00", "`meeting`"),
        ("metadata.=x", "`metadata.`"),
        ("metadata=x", "`metadata`"),
        ("meta.customer=42", "`meta.customer`"),
        ("cursor=x&metadata.customer=42", "`cursor`"),
        ("limit=0&meeting=x", "`limit`"),
    ] {
        let (status, answer) = user.send(Method::GET, &format!("/bots?{question}"), None).await;
        assert_eq!((status, &answer["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{question}");
        assert!(answer["detail"].as_str().unwrap().contains(field), "{question}: {answer}");
    }
}

/// Bots of the only user that is not made by the server, newest first by their numbers.
fn many_ended_bots(backend: Backend, count: usize) -> String {
    let (id, numbers, json) = match backend {
        Backend::Postgres => (
            "('00000000-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid",
            format!("generate_series(1, {count}) AS numbers (number)"),
            "::json",
        ),
        Backend::Sqlite => (
            "'00000000-0000-7000-8000-' || printf('%012x', number)",
            format!(
                "(WITH RECURSIVE counted (number) AS
                    (SELECT 1 UNION ALL SELECT number + 1 FROM counted WHERE number < {count})
                  SELECT number FROM counted) AS numbers"
            ),
            "",
        ),
    };
    format!(
        "INSERT INTO bots (id, user_id, platform, native_meeting_id, meeting_url, status, status_since, priority,
                           queue_timeout_ms, config, metadata, created_at, updated_at)
         SELECT {id}, (SELECT id FROM users WHERE max_concurrent_bots = 77), 'zoom', 'm', 'u', 'completed',
                '2025-01-01T00:00:00.000000Z', 100, 1000, '{{}}'{json}, '{{}}'{json},
                '2025-01-01T00:00:00.000000Z', '2025-01-01T00:00:00.000000Z'
           FROM {numbers}"
    )
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_search_that_finds_nothing_ends_and_says_where_to_continue(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(77).await;
    database.reader().await.execute(many_ended_bots(backend, 2_600)).await;
    let (mut pages, mut cursor) = (0, String::new());
    loop {
        let page = user.get(&format!("/bots?metadata.customer=42&cursor={cursor}")).await;
        assert_eq!(page["bots"], json!([]));
        pages += 1;
        let Some(next) = page["next_cursor"].as_str() else { break };
        assert!(cursor.is_empty() || next < cursor.as_str(), "it goes on to older bots: {next} after {cursor}");
        next.clone_into(&mut cursor);
    }
    assert!(pages >= 3, "no page searched everything: {pages}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_numbers_of_a_users_bots_are_exact_at_once_and_after_the_keeper_ran(#[case] backend: Backend) {
    let pool = process_pool("meet", "max_slots = 1", "echo '{\"event\": \"joined\"}'; read leave");
    let fixture = ServerFixture::open(backend, &pool).await;
    let (admin, user) = (&fixture.admin, &fixture.user);
    let counts = async || {
        let usage = user.get("/bots/status?limit=1").await;
        let of = |status: &str| usage["by_status"][status].as_i64().unwrap();
        let shown = usage["bots"].as_array().unwrap().len();
        (usage["running"].as_i64().unwrap(), of("active"), of("queued"), of("completed"), of("failed"), shown)
    };
    assert_eq!(counts().await, (0, 0, 0, 0, 0, 0));
    let active = fixture.active(0).await;
    let mut waiting = Vec::new();
    for number in 1..4 {
        waiting.push(user.bot(&meet_link(number)).await);
    }
    assert_eq!(counts().await, (4, 1, 3, 0, 0, 1));
    assert_eq!(ids(&user.get("/bots?status=active").await["bots"]), [active["id"].as_str().unwrap()]);
    let queued = user.get("/bots?status=queued&limit=2").await;
    assert_eq!(ids(&queued["bots"]), [waiting[2].as_str(), waiting[1].as_str()]);
    let cursor = queued["next_cursor"].as_str().unwrap();
    let rest = user.get(&format!("/bots?status=queued&limit=2&cursor={cursor}")).await;
    assert_eq!((ids(&rest["bots"]), &rest["next_cursor"]), (vec![waiting[0].as_str()], &Value::Null));
    // Those behind move up, at once.
    user.stop(&waiting[0]).await;
    assert_eq!(counts().await, (3, 1, 2, 1, 0, 1));
    assert_eq!(user.show_bot(&waiting[1]).await["queue_position"], 1);
    assert_eq!(user.show_bot(&waiting[2]).await["queue_position"], 2);
    assert_eq!(admin.send(Method::POST, "/admin/stats/run", None).await.0, StatusCode::OK);
    assert_eq!(counts().await, (3, 1, 2, 1, 0, 1));
    user.stop(&waiting[1]).await;
    user.stop(&waiting[2]).await;
    assert_eq!(counts().await, (1, 1, 0, 3, 0, 1));
    let pool = &admin.get("/admin/pools/meet").await["pool"];
    assert_eq!((&pool["queued"], &pool["slots"]["busy"], &pool["slots"]["idle"]), (&json!(0), &json!(1), &json!(0)));
    fixture.leave(&active).await;
    assert_eq!(counts().await.3, 4);
    // Another user has none of them.
    let usage = admin.user(1).await.get("/bots/status").await;
    assert_eq!((&usage["running"], &usage["by_status"]["completed"]), (&json!(0), &json!(0)));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_estimate_is_the_same_in_every_answer_and_exists_before_any_history(#[case] backend: Backend) {
    let pool = process_pool("meet", "max_slots = 2", "read leave");
    let large = process_pool("large", "max_slots = 1\nattributes = { cpu = 8, mem = 16384 }", "read leave");
    let config = format!("[schedule]\nexpected_duration = \"10m\"\n{pool}\n{large}");
    let fixture = ServerFixture::open(backend, &config).await;
    let (admin, user) = (&fixture.admin, &fixture.user);
    let needs_large = json!({"cpu": 8});
    let ask = async |number: usize, requirements: Option<&Value>| {
        let body = json!({"meeting_url": meet_link(number), "requirements": requirements});
        user.post("/bots", body).await.1
    };
    for number in 0..3 {
        assert_eq!(ask(number, None).await["estimated_wait_ms"], Value::Null);
    }
    // Three slots serve the first, only one serves the second.
    let any = ask(10, None).await;
    let picky = ask(11, Some(&needs_large)).await;
    assert_eq!((&any["queue_position"], &any["estimated_wait_ms"]), (&json!(1), &json!(200_000)));
    assert_eq!((&picky["queue_position"], &picky["estimated_wait_ms"]), (&json!(2), &json!(1_200_000)));
    let queue = admin.get("/admin/queue").await;
    for (answer, entry) in [&any, &picky].into_iter().zip(queue["entries"].as_array().unwrap()) {
        let id = answer["bot"]["id"].as_str().unwrap();
        let shown = user.show_bot(id).await;
        let active = user.get("/bots/active").await;
        let listed = active["bots"].as_array().unwrap().iter().find(|bot| bot["id"] == id).unwrap();
        for field in ["estimated_wait_ms", "queue_position"] {
            assert_eq!((&answer["bot"][field], &answer[field]), (&answer[field], &shown[field]), "{field}");
            assert_eq!(listed[field], answer[field], "{field}");
        }
        assert_eq!((&entry["bot_id"], &entry["estimated_wait_ms"]), (&json!(id), &answer["estimated_wait_ms"]));
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn deployments_pools_keepers_and_slots_of_a_status_come_in_pages(#[case] backend: Backend) {
    // No provider answers here, so that starts wait at the gate.
    let pool = |name: &str| {
        format!(
            "[[pool]]\nname = \"{name}\"\nplatform = \"google_meet\"\nprovider = \"coolify\"\nmax_slots = 3
             coolify = {{ api_url = \"http://127.0.0.1:1\", api_token = \"t\", project_uuid = \"p\", \
             server_uuid = \"s\", environment_name = \"e\", image = \"i\" }}\n"
        )
    };
    let fixture = ServerFixture::open(backend, &[pool("one"), pool("two")].concat()).await;
    for number in 0..6 {
        fixture.user.bot(&meet_link(number)).await;
    }
    for (path, name, key, expected) in [
        ("/admin/deployments", "entries", "slot", 6),
        ("/admin/pools", "pools", "name", 2),
        ("/admin/slots?status=creating", "slots", "name", 6),
        ("/admin/slots?pool=two", "slots", "name", 3),
        ("/admin/slots?pool=two&status=creating", "slots", "name", 3),
        ("/admin/slots?status=idle", "slots", "name", 0),
    ] {
        let mark = if path.contains('?') { '&' } else { '?' };
        let all = fixture.admin.get(path).await;
        let all: Vec<&Value> = all[name].as_array().unwrap().iter().map(|row| &row[key]).collect();
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = fixture.admin.get(&format!("{path}{mark}limit=2&cursor={cursor}")).await;
            assert!(page[name].as_array().unwrap().len() <= 2, "{path}");
            seen.extend(page[name].as_array().unwrap().iter().map(|row| row[key].clone()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            next.clone_into(&mut cursor);
        }
        assert_eq!((seen.iter().collect::<Vec<_>>(), seen.len()), (all, expected), "{path}");
    }
    let keepers = fixture.admin.get("/admin/keepers?limit=1").await;
    let cursor = keepers["next_cursor"].as_str().unwrap();
    let next = fixture.admin.get(&format!("/admin/keepers?limit=1&cursor={cursor}")).await;
    assert_ne!(keepers["keepers"][0]["name"], next["keepers"][0]["name"]);
    for path in ["deployments", "pools", "keepers", "slots", "queue", "audit", "users", "bots"] {
        for (question, field) in [("cursor=%21", "`cursor`"), ("limit=0", "`limit`"), ("limit=x", "`limit`")] {
            let (status, answer) = fixture.admin.send(Method::GET, &format!("/admin/{path}?{question}"), None).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}?{question}: {answer}");
            assert!(answer["detail"].as_str().unwrap().contains(field), "{path}?{question}: {answer}");
        }
    }
}
