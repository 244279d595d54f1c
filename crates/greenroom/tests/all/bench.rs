//! The benchmarks run to their end and check the answers that they get. The tests do not check the measured figures.

use std::process::Stdio;

use rstest::rstest;
use serde_json::Value;

use crate::support::{Backend, Engine, Process, docker_gateway};

/// Runs `greenroom bench`, and returns its output.
async fn bench(backend: Backend, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Process::command();
    command.arg("bench").args(arguments).current_dir(folder.path()).env("TMPDIR", folder.path());
    if backend == Backend::Postgres {
        let server = std::env::var("TEST_POSTGRES_URL").expect("TEST_POSTGRES_URL is not set; ./scripts/test sets it");
        command.args(["--database", &server]);
        command.env("PGBENCH", std::env::var("PGBENCH").unwrap_or_else(|_| "pgbench".to_owned()));
    }
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await.unwrap();
    let [said, complained] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}\n{complained}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "the benchmark leaves nothing behind: {left:?}");
    said
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn starting_in_a_hot_slot_is_measured_beside_a_stopped_one(#[case] backend: Backend) {
    let said = bench(backend, &["start", "--bots", "3"]).await;
    for word in ["hot", "stopped", "ratio"] {
        assert!(said.contains(word), "{said}");
    }
}

#[tokio::test]
async fn starting_in_a_hot_docker_slot_is_measured_beside_docker_run() {
    let engine = Engine::shared().await;
    let docker = ["start", "--bots", "2", "--docker", &engine.host, "--address", &docker_gateway()];
    let said = bench(Backend::Sqlite, &docker).await;
    for word in ["hot", "stopped", "docker run"] {
        assert!(said.contains(word), "{said}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_time_until_the_next_in_the_queue_gets_a_slot_is_measured_beside_a_poll(#[case] backend: Backend) {
    let said = bench(backend, &["next", "--ends", "2"]).await;
    assert_eq!(said.matches("a poll of 1 s").count(), 2, "{said}");
}

#[tokio::test]
async fn placing_is_measured_beside_pgbench_on_one_postgres_with_and_without_a_queue() {
    let short = ["place", "--clients", "8", "--slots", "4,20", "--rounds", "1", "--seconds", "1"];
    let said = bench(Backend::Postgres, &short).await;
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_latency_of_others_beside_a_hostile_user_is_measured_beside_that_without(#[case] backend: Backend) {
    let said = bench(backend, &["hostile", "--seconds", "1", "--bots", "5", "--idle", "50"]).await;
    for attack in ["memory", "replay flood", "unread", "idle", "refusals"] {
        let line = said.lines().find(|line| line.starts_with(attack)).unwrap_or_else(|| panic!("{said}"));
        assert_eq!(line.matches("x)").count(), 4, "{line}");
        assert!(!line.contains("NaN") && !line.contains("the server"), "{line}");
    }
    let refusals = said.lines().find(|line| line.starts_with("refusals")).unwrap();
    assert!(!refusals.contains(" 0 refused"), "{refusals}");
}

#[tokio::test]
async fn finding_one_in_a_hundred_is_measured_in_a_store_of_postgres_beside_moto() {
    let moto = std::env::var("TEST_MOTO_URL").expect("TEST_MOTO_URL is not set; ./scripts/test sets it");
    let short = ["match", "--slots", "300", "--runners", "100", "--picks", "2"];
    let said =
        bench(Backend::Postgres, &[&short[..], &["--region", "eu-central-1", "--endpoint", &moto]].concat()).await;
    for expected in
        ["every slot fits", "database, one in a hundred fits", "SQS and DynamoDB, one", "ratio to the database"]
    {
        assert!(said.contains(expected), "{said}");
    }
}

#[tokio::test]
async fn finding_one_in_a_hundred_is_measured_in_sqlite_alone() {
    let said = bench(Backend::Sqlite, &["match", "--slots", "300", "--picks", "2"]).await;
    assert!(said.contains("database, one in a hundred fits") && said.contains("not measured"), "{said}");
}

/// Runs a benchmark for a second or two, and returns the JSON object that it prints.
async fn measured(backend: Backend, arguments: &[&str]) -> Value {
    let said = bench(backend, &[arguments, &["--json"]].concat()).await;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// A file into which a benchmark draws its figures.
struct Plot {
    file: String,
    _folder: tempfile::TempDir,
}

impl Plot {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plot.svg").to_str().unwrap().to_owned();
        Self { file, _folder: folder }
    }

    fn file(&self) -> &str {
        &self.file
    }

    /// Asserts that the figure was drawn, with this label.
    fn check(&self, label: &str) {
        let drawn = std::fs::read_to_string(&self.file).unwrap();
        assert!(drawn.starts_with("<svg") && drawn.contains(label), "{drawn}");
    }
}

#[tokio::test]
async fn placing_with_two_replicas_is_measured_beside_one_on_postgres() {
    let short = ["place", "--case", "20x8", "--replicas", "2", "--rounds", "1", "--time", "1s"];
    assert_eq!(measured(Backend::Postgres, &short).await["bench"], "place");
}

#[tokio::test]
async fn placing_while_operators_watch_is_measured_beside_placing_unwatched_on_postgres() {
    let short = ["place", "--case", "20x8", "--live-readers", "2", "--rounds", "1", "--time", "1s"];
    let measured = measured(Backend::Postgres, &short).await;
    assert_eq!((&measured["live_readers"], &measured["beside"]), (&2.into(), &"no readers".into()));
    assert!(measured["cases"][0]["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{measured}");
}

#[tokio::test]
async fn placing_on_sqlite_is_measured_beside_pgbench_on_postgres_and_drawn() {
    let plot = Plot::new();
    let short = ["place", "--case", "20x8", "--sqlite", "--rounds", "1", "--time", "1s", "--svg", plot.file()];
    assert_eq!(measured(Backend::Postgres, &short).await["bench"], "place");
    plot.check("20 slots, 8 clients");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn larger_pools_are_measured_beside_the_smallest_and_drawn(#[case] backend: Backend) {
    let plot = Plot::new();
    let mut short = vec!["scale", "--slots", "10,50", "--clients", "4", "--rounds", "1", "--time", "1s", "--svg"];
    short.push(plot.file());
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    assert_eq!(measured(backend, &short).await["bench"], "scale");
    plot.check("slots");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn reads_of_a_large_installation_are_measured_beside_a_small_one_and_drawn(#[case] backend: Backend) {
    let plot = Plot::new();
    let mut short = vec!["reads", "--ended", "3000", "--slots", "2000", "--queued", "2000", "--calls", "2", "--svg"];
    short.push(plot.file());
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    let measured = measured(backend, &short).await;
    assert_eq!((&measured["size"]["ended"], &measured["beside"]["ended"]), (&3000.into(), &3.into()));
    let calls = measured["calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0)), "{measured}");
    plot.check("milliseconds");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn more_requests_at_once_than_slots_are_all_answered(#[case] backend: Backend) {
    let mut short = vec!["burst", "--requests", "60", "--slots", "10", "--users", "5", "--time", "1s"];
    let plot = Plot::new();
    short.extend(["--svg", plot.file()]);
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    assert_eq!(measured(backend, &short).await["bench"], "burst");
    plot.check("60 requests at once on 10 slots");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn placing_while_old_bots_are_deleted_is_measured_beside_keeping_them_and_drawn(#[case] backend: Backend) {
    let plot = Plot::new();
    let mut short = vec!["prune", "--bots", "3000", "--slots", "20", "--clients", "4", "--rounds", "1", "--time", "1s"];
    short.extend(["--svg", plot.file()]);
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    let measured = measured(backend, &short).await;
    assert_eq!(measured["bench"], "prune");
    for case in measured["cases"].as_array().unwrap() {
        assert!(case["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{measured}");
    }
    plot.check("old bots");
}

#[rstest]
#[case::sqlite(true)]
#[case::postgres(false)]
#[tokio::test]
async fn heartbeats_are_measured_beside_one_update_each_and_drawn(#[case] is_sqlite: bool) {
    let plot = Plot::new();
    let mut short = vec!["heartbeats", "--bots", "20", "--rounds", "1", "--time", "1s", "--svg", plot.file()];
    short.extend(is_sqlite.then_some("--sqlite"));
    let measured = measured(Backend::Postgres, &short).await;
    assert_eq!(measured["bench"], "heartbeats");
    for figure in ["per_second", "beside", "ratio", "server_us", "statements_per_second"] {
        assert!(measured[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {measured}");
    }
    let reads = &measured["calls_per_second"]["bots.read"];
    assert!(reads.as_f64().unwrap_or(0.0) * 10.0 < measured["per_second"].as_f64().unwrap(), "{measured}");
    plot.check("Heartbeats of 20 bots");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_database_keeps_its_size_over_simulated_days_and_is_drawn(#[case] backend: Backend) {
    let plot = Plot::new();
    let days = ["prune", "--days", "10", "--bots-per-day", "200", "--kept-days", "2", "--day-length", "100ms"];
    let mut short = [&days[..], &["--svg", plot.file()]].concat();
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    let measured = measured(backend, &short).await;
    let days = measured["days"].as_array().unwrap();
    assert!(days[2..].iter().all(|day| day["bots"] == 400), "{measured}");
    if backend == Backend::Sqlite {
        // It uses the space of deleted rows at once. PostgreSQL first has to vacuum. Without deletion, it would have
        // two and a half times the size.
        assert!(measured["growth"].as_f64().is_some_and(|growth| growth < 1.6), "{measured}");
    }
    plot.check("simulated day");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_idle_server_with_waiting_agents_is_measured_and_drawn(#[case] backend: Backend) {
    let plot = Plot::new();
    let mut short = vec!["idle", "--slots", "5,20", "--settle", "1s", "--time", "1s", "--svg", plot.file()];
    short.extend((backend == Backend::Sqlite).then_some("--sqlite"));
    let measured = measured(backend, &short).await;
    let sizes = measured["sizes"].as_array().unwrap();
    assert_eq!((&measured["bench"], sizes.len()), (&"idle".into(), 2));
    assert!(sizes.iter().all(|size| size["resident_mib"].as_f64().is_some_and(|mib| mib > 0.0)), "{measured}");
    plot.check("20 slots");
}

#[tokio::test]
async fn a_burst_of_starts_is_measured_beside_xargs_and_drawn() {
    let plot = Plot::new();
    let short = ["start", "--burst", "--bots", "5", "--clients", "4", "--rounds", "1", "--svg", plot.file()];
    assert!(measured(Backend::Sqlite, &short).await["bench"].as_str().is_some_and(|name| name.contains("burst")));
    plot.check("5 commands at once");
}

#[tokio::test]
async fn a_start_of_a_browser_bot_is_measured_beside_a_start_by_hand() {
    let bot = crate::support::in_repository("examples/browser-bot/bot.py").display().to_string();
    let measured = measured(Backend::Sqlite, &["start", "--browser", "--bots", "1", "--bot", &bot]).await;
    let ways: Vec<&str> =
        measured["ways"].as_array().unwrap().iter().map(|way| way["name"].as_str().unwrap()).collect();
    assert_eq!(ways, ["stopped", "hot", "prewarmed", "by hand"]);
}

#[tokio::test]
async fn placing_while_a_transaction_is_held_on_postgres_is_measured_beside_the_time_before_and_drawn() {
    let plot = Plot::new();
    let short =
        ["bloat", "--slots", "10", "--clients", "4", "--before", "2s", "--hold", "2s", "--interval", "1s", "--svg"];
    let short = [&short[..], &[plot.file()]].concat();
    assert_eq!(measured(Backend::Postgres, &short).await["bench"], "bloat");
    plot.check("stays open");
}

#[tokio::test]
async fn a_server_that_is_killed_in_its_turn_on_postgres_loses_and_duplicates_nothing() {
    let short = ["failover", "--slots", "20", "--clients", "8", "--kills", "2", "--pause", "2s"];
    let measured = measured(Backend::Postgres, &short).await;
    assert_eq!(
        (&measured["lost"], &measured["doubled"], &measured["killed"]),
        (&0.into(), &0.into(), &"in its turn".into())
    );
}
