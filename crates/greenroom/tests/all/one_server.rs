//! Only one server may use an SQLite file. A second one is refused, whatever path it uses for the file.

use std::path::Path;
use std::time::Duration;

use crate::support::{Backend, Database, Process};

/// Runs a command that ends by itself. Returns whether it succeeded, and its output.
async fn run(folder: &Path, arguments: &[&str]) -> (bool, String) {
    let mut command = Process::command();
    command.args(arguments).current_dir(folder);
    let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await.unwrap().unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

#[tokio::test]
async fn a_second_server_on_an_sqlite_file_is_refused_under_any_path_of_the_file() {
    let database = Database::new(Backend::Sqlite).await;
    let first = Process::start(&database).await;
    let folder = database.folder.path();
    std::os::unix::fs::symlink(folder.join("greenroom.db"), folder.join("other.db")).unwrap();
    std::fs::create_dir(folder.join("below")).unwrap();
    for (folder, name) in [
        (folder.to_owned(), database.url.clone()),
        (folder.to_owned(), "sqlite:greenroom.db".to_owned()),
        (folder.to_owned(), "sqlite:other.db".to_owned()),
        (folder.join("below"), "sqlite:../below/../greenroom.db".to_owned()),
        (folder.to_owned(), "sqlite://greenroom.db?mode=rwc".to_owned()),
    ] {
        let (well, said) = run(&folder, &["serve", "--listen", "127.0.0.1:0", "--database", &name]).await;
        assert!(!well, "{name}: {said}");
        let sentence = format!("another greenroom server (pid {}) uses the database", first.pid());
        assert!(said.contains(&sentence), "{name}: {said}");
    }
    assert_eq!(first.client("").get("/readyz").await["store"], "ok", "the first server keeps running");
}

#[tokio::test]
async fn commands_work_beside_a_server_and_a_new_server_starts_after_a_kill() {
    let database = Database::new(Backend::Sqlite).await;
    let first = Process::start(&database).await;
    let folder = database.folder.path();
    let (_, said) = run(folder, &["doctor", "--database", &database.url]).await;
    assert!(said.contains("as this program needs") && !said.contains("another greenroom server"), "{said}");
    let (well, said) = run(folder, &["migrate", "--database", &database.url]).await;
    assert!(well && said.contains("schema of this version"), "{said}");
    // A database that another version serves is not migrated.
    let other =
        "INSERT INTO schema_versions (version, name, applied_at) VALUES (9999, 'other', '2030-01-01T00:00:00Z')";
    database.execute(other).await;
    let (well, said) = run(folder, &["migrate", "--database", &database.url]).await;
    assert!(!well && said.contains("another greenroom server"), "{said}");
    database.execute("DELETE FROM schema_versions WHERE version = 9999").await;

    first.kill().await;
    let (well, said) = run(folder, &["migrate", "--database", &database.url]).await;
    assert!(well && said.contains("schema of this version"), "{said}");
    let second = Process::start(&database).await;
    second.terminate().await;
    assert!(second.wait().await);
    Process::start(&database).await;
}
