//! `greenroom down` removes everything of the installation.

use std::path::Path;

use rstest::rstest;

use crate::support::{
    Backend, DockerFixture, Engine, OBEDIENT, Process, Recipe, ServerFixture, meet_link, process_pool,
};

const STAYS: &str = r#"echo '{"event": "joined"}'; sleep 1000"#;

async fn down(folder: &Path, database: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Process::command();
    command.arg("down").args(arguments).args(["--database", database]).current_dir(folder);
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

#[rstest]
#[case::sqlite(Backend::Sqlite, false)]
#[case::postgres(Backend::Postgres, false)]
#[case::sqlite_killed(Backend::Sqlite, true)]
#[tokio::test]
async fn no_process_slot_is_left(#[case] backend: Backend, #[case] killed: bool) {
    let hot = process_pool("meet", "max_slots = 9\nmin_idle = 4\nstandby = \"running\"", STAYS);
    let second = process_pool("second", "max_slots = 5\nmin_idle = 2", STAYS);
    let fixture = ServerFixture::open(backend, &(hot + &second)).await;
    fixture.until_slots(6, 0).await;
    let bot = fixture.active(1).await;
    let (folder, url) = (fixture.database.folder.path().to_owned(), fixture.database.url.clone());
    let (well, said) = down(&folder, &url, &["--yes"]).await;
    assert!(!well && said.contains("a server is running") && said.contains("stop it first"), "{said}");
    let ServerFixture { server, database, user, .. } = fixture;
    if killed {
        server.kill().await;
    } else {
        server.terminate().await;
        assert!(server.wait().await);
    }
    let agents = database.running().iter().filter(|running| running.is_agent).count();
    assert!(agents >= 4, "slots survive their server");
    let (well, said) = down(&folder, &url, &[]).await;
    assert!(!well && said.contains("This command ends 1 bot and removes") && said.contains("use --yes"), "{said}");
    assert_eq!(
        database.running().iter().filter(|running| running.is_agent).count(),
        agents,
        "nothing ends without --yes"
    );
    // The command finds the slots also from another folder.
    let elsewhere = tempfile::tempdir().unwrap();
    let file = folder.join("greenroom.toml");
    let (well, said) = down(elsewhere.path(), &url, &["--yes", "--config", file.to_str().unwrap()]).await;
    assert!(well && said.contains("no more slots of this installation"), "{said}");
    assert_eq!(database.running(), []);
    assert_eq!(std::fs::read_dir(folder.join("greenroom-slots")).unwrap().filter(is_slot).count(), 0);
    let (well, said) = down(&folder, &url, &["--yes"]).await;
    assert!(well && said.contains("no bots and no slots to remove"), "{said}");

    let server = Process::start_with(&database, &[]).await;
    let bot = user.on(&server.url).show_bot(bot["id"].as_str().unwrap()).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&"completed".into(), &"stopped".into()), "{bot}");
}

fn is_slot(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("pool-"))
}

#[tokio::test]
async fn no_container_slot_is_left_also_of_a_pool_that_left_the_configuration() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let fixture =
        DockerFixture::start(&engine, "docker", &image, "max_slots = 4\nmin_idle = 2\nstandby = \"running\"", "").await;
    fixture.until_idle(2).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    let (folder, url) = (fixture.database.folder.path().to_owned(), fixture.database.url.clone());
    let DockerFixture { server, labelled, database: _database, .. } = fixture;
    server.terminate().await;
    assert!(server.wait().await);
    assert!(labelled.containers().await.len() >= 2);
    // The configuration no longer has the pool.
    std::fs::write(folder.join("greenroom.toml"), process_pool("meet", "max_slots = 1", STAYS)).unwrap();
    let (well, said) = down(&folder, &url, &["--yes"]).await;
    assert!(well && said.contains("Ended 1 bot and"), "{said}");
    assert_eq!(labelled.containers().await.len(), 0);
}

#[tokio::test]
async fn without_a_database_nothing_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let (well, said) = down(folder.path(), "sqlite:greenroom.db", &["--yes"]).await;
    assert!(!well && said.contains("the database sqlite:greenroom.db does not exist"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
