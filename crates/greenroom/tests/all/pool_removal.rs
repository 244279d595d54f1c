//! A pool that is no longer in the configuration: the server names it and deletes nothing, and `greenroom pools remove`
//! removes it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use rstest::rstest;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{
    Backend, Database, DockerFixture, Engine, OBEDIENT, Process, Recipe, ServerFixture, found, meet_link, process_pool,
};

const STAYS: &str = r#"echo '{"event": "joined"}'; sleep 1000"#;

async fn run(folder: &Path, database: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Process::command();
    command.args(arguments).args(["--database", database]).current_dir(folder);
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

async fn at(database: &Database, arguments: &[&str]) -> (bool, String) {
    run(database.folder.path(), &database.url, arguments).await
}

/// Another pool, without bots.
pub fn other_pool() -> String {
    process_pool("other", "max_slots = 1", STAYS).replace("google_meet", "zoom")
}

pub async fn pools(server: &Process) -> Vec<String> {
    let pools = server.admin().get("/admin/pools").await;
    let names = pools["pools"].as_array().unwrap().iter().map(|pool| pool["name"].as_str().unwrap().to_owned());
    names.collect()
}

/// Stops a server, and starts another with this configuration and its log in a file.
pub async fn start_again(server: Process, database: &Database, toml: &str) -> (Process, PathBuf) {
    server.terminate().await;
    assert!(server.wait().await);
    let file = database.folder.path().join("greenroom.toml");
    std::fs::write(&file, format!("admin_token = \"{}\"\n{toml}", crate::support::ADMIN_TOKEN)).unwrap();
    let log = database.folder.path().join("server.log");
    let mut command = Process::command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--database", &database.url]);
    command.current_dir(database.folder.path()).stderr(std::fs::File::create(&log).unwrap());
    (Process::spawn(command).await, log)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_that_left_the_configuration_is_named_and_removed_beside_a_server(#[case] backend: Backend) {
    let hot = process_pool("meet", "max_slots = 5\nmin_idle = 3\nstandby = \"running\"", STAYS);
    let fixture = ServerFixture::open(backend, &(hot + &other_pool())).await;
    fixture.until_slots(3, 0).await;
    let (well, said) = at(&fixture.database, &["pools", "remove", "meet", "--yes"]).await;
    assert!(!well && said.contains("the pool meet is still in the configuration"), "{said}");
    let ServerFixture { server, database, .. } = fixture;
    let (server, log) = start_again(server, &database, &other_pool()).await;
    let fields = found("the server names the pool", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().find(|line| line.contains("pool no longer configured")).map(str::to_owned)
    })
    .await;
    assert!(fields.contains("\"pool\":\"meet\"") && fields.contains("\"slots\":3"), "{fields}");
    let (well, said) = at(&database, &["doctor"]).await;
    assert!(!well, "{said}");
    assert!(
        said.contains("pool meet (process), not in the configuration") && said.contains("it still has slots (3)"),
        "{said}"
    );
    assert_eq!(
        database.running().iter().filter(|running| running.is_agent).count(),
        3,
        "nothing is removed automatically"
    );

    let (well, said) = at(&database, &["pools", "remove", "meet"]).await;
    assert!(!well && said.contains("use --yes"), "there is no terminal to ask for confirmation: {said}");
    let (well, said) = at(&database, &["pools", "remove", "meet", "--yes"]).await;
    assert!(well && said.contains("Removed 3 slots and the pool meet"), "{said}");
    assert_eq!(database.running(), []);
    assert_eq!(pools(&server).await, ["other"]);
    let (well, said) = at(&database, &["pools", "remove", "meet", "--yes"]).await;
    assert!(!well && said.contains("there is no pool meet"), "{said}");
    let (well, said) = at(&database, &["doctor"]).await;
    assert!(well && said.contains("All checks passed"), "{said}");
}

#[tokio::test]
async fn the_removal_waits_for_the_bots_of_the_pool() {
    let fixture =
        ServerFixture::open(Backend::Sqlite, &(process_pool("meet", "max_slots = 5", OBEDIENT) + &other_pool())).await;
    let bots = [fixture.active(1).await, fixture.active(2).await].map(|bot| bot["id"].as_str().unwrap().to_owned());
    let ServerFixture { server, database, user, .. } = fixture;
    // The second server has the address of the first, so that agents find it.
    let address = server.url.trim_start_matches("http://").to_owned();
    let (server, _) = start_again(server, &database, &other_pool()).await;
    server.terminate().await;
    assert!(server.wait().await);
    let (well, said) = at(&database, &["pools", "remove", "meet", "--yes"]).await;
    assert!(!well && said.contains("no server is running that receives their last calls"), "{said}");
    let mut command = Process::command();
    command.args(["serve", "--listen", &address, "--database", &database.url]).current_dir(database.folder.path());
    let _server = Process::spawn(command).await;
    let mut command = Process::command();
    command.args(["pools", "remove", "meet", "--yes", "--database", &database.url]);
    let mut removal = command.current_dir(database.folder.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(removal.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.starts_with("Waiting for 2 bots to end") {
            for bot in &bots {
                user.stop(bot).await;
            }
        }
        said.push(line);
    }
    assert!(removal.wait().await.unwrap().success(), "{said:?}");
    assert!(said.iter().any(|line| line.contains("Waiting for 2 bots")), "{said:?}");
    assert_eq!(said.last().unwrap(), "Removed 2 slots and the pool meet.");
    assert_eq!(database.running(), []);
    for bot in bots {
        let bot = user.until(&bot, "completed").await;
        assert_eq!(bot["reason"], "stopped");
    }
}

#[tokio::test]
async fn a_pool_on_docker_that_left_the_configuration_is_removed_with_its_stored_settings() {
    let engine = Engine::shared().await;
    let image = engine.image(&Recipe::bot(OBEDIENT)).await;
    let fixture =
        DockerFixture::start(&engine, "docker", &image, "max_slots = 4\nmin_idle = 2\nstandby = \"running\"", "").await;
    fixture.until_idle(2).await;
    let bot = fixture.user.bot(&meet_link(1)).await;
    fixture.user.until(&bot, "active").await;
    let name = fixture.slot(1).trim_start_matches("pool-").trim_end_matches("-001").to_owned();
    let DockerFixture { server, database, labelled, .. } = fixture;
    let (_server, _) = start_again(server, &database, &other_pool()).await;
    assert!(labelled.containers().await.len() >= 2);
    let (well, said) = at(&database, &["pools", "remove", &name, "--yes", "--force"]).await;
    assert!(well, "{said}");
    assert_eq!(labelled.containers().await.len(), 0);
}
