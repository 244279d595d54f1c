//! The benchmarks run to their end and check what they were answered. What they measure is nobody's condition.

use std::process::Stdio;

use rstest::rstest;

use crate::support::{Backend, Engine, Process, docker_gateway};

/// Runs `greenroom bench`, and gives what it printed.
async fn bench(backend: Backend, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Process::command();
    command.arg("bench").args(arguments).current_dir(folder.path()).env("TMPDIR", folder.path());
    if backend == Backend::Postgres {
        let server = std::env::var("TEST_POSTGRES_URL").expect("./scripts/test sets it");
        command.args(["--database", &server]);
        command.env("PGBENCH", std::env::var("PGBENCH").unwrap_or_else(|_| "pgbench".to_owned()));
    }
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await.unwrap();
    let [said, complained] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{said}\n{complained}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "it leaves nothing behind: {left:?}");
    said
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn starting_in_a_hot_slot_is_measured_beside_a_stopped_one(#[case] backend: Backend) {
    let said = bench(backend, &["start", "--bots", "3"]).await;
    for word in ["hot", "stopped", "to hot"] {
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
async fn the_way_to_the_next_in_line_is_measured_beside_a_poll(#[case] backend: Backend) {
    let said = bench(backend, &["next", "--ends", "2"]).await;
    assert_eq!(said.matches("a poll of 1 s").count(), 2, "{said}");
}

#[tokio::test]
async fn placing_is_measured_beside_pgbench_on_one_postgres_with_and_without_a_line() {
    let short = ["place", "--clients", "8", "--slots", "4,20", "--rounds", "1", "--seconds", "1"];
    let said = bench(Backend::Postgres, &short).await;
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn what_a_hostile_user_costs_others_is_measured_beside_what_they_see_alone(#[case] backend: Backend) {
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
    let moto = std::env::var("TEST_MOTO_URL").expect("./scripts/test sets it");
    let short = ["match", "--slots", "300", "--runners", "100", "--picks", "2"];
    let said =
        bench(Backend::Postgres, &[&short[..], &["--region", "eu-central-1", "--endpoint", &moto]].concat()).await;
    for words in ["where any fits", "where one in a hundred fits", "over SQS and DynamoDB", "times the store's"] {
        assert!(said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn finding_one_in_a_hundred_is_measured_in_sqlite_alone() {
    let said = bench(Backend::Sqlite, &["match", "--slots", "300", "--picks", "2"]).await;
    assert!(said.contains("where one in a hundred fits") && said.contains("not measured"), "{said}");
}
