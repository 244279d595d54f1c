//! A backup of a server that works, restored after more has happened: with the commands of `docs/how-to/backup.md`.

use std::process::Command;

use reqwest::{Method, StatusCode};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Process, found, markdown::Page, meet_link, process_pool, until};

/// Bots join, and stay until they are asked to leave.
const BOT: &str = "echo '{\"event\": \"joined\"}'; read -r command";
const LIMIT: i64 = 3;

/// Runs the commands of the page under this name, in the folder of the database.
fn run(name: &str, database: &Database) {
    let page = Page::read("docs/how-to/backup.md");
    let block = page.blocks().into_iter().find(|block| block.mark("name") == Some(name)).expect(name);
    let path = format!("/usr/bin:/bin:{}", std::env::var("POSTGRES_BIN").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-e", "-o", "pipefail", "-c", &block.text]).current_dir(database.folder.path());
    let output = bash.env("PATH", path).env("DATABASE", &database.url).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn active(user: &Client, number: usize) -> Value {
    let bot = user.bot(&meet_link(number)).await;
    user.until(&bot, "active").await
}

fn id(bot: &Value) -> &str {
    bot["id"].as_str().unwrap()
}

#[rstest]
#[case::sqlite3(Backend::Sqlite, "sqlite")]
#[case::postgres(Backend::Postgres, "postgres")]
#[tokio::test]
async fn after_a_restore_known_bots_continue_and_unknown_ones_end(#[case] backend: Backend, #[case] name: &str) {
    let mut database = Database::new(backend).await;
    let config = format!(
        "sync = {{ interval = \"1s\", grace = \"1s\" }}\nheartbeat = {{ interval = \"1s\" }}\n{}",
        process_pool("meet", "max_slots = 10", BOT)
    );
    let server = Process::start_configured(&database, &config).await;
    let user = server.admin().user(LIMIT).await;
    let continues = active(&user, 0).await;
    let ends = active(&user, 1).await;
    run(&format!("{name}-backup"), &database);

    // After the backup, one bot ends, another takes its slot, and a third gets a slot that the backup does not know.
    user.stop(id(&ends)).await;
    user.until(id(&ends), "completed").await;
    let in_known_slot = found("the slot is used again", async || {
        let bot = active(&user, 2).await;
        if bot["slot"] == ends["slot"] {
            return Some(bot);
        }
        user.stop(id(&bot)).await;
        user.until(id(&bot), "completed").await;
        None
    })
    .await;
    let in_new_slot = active(&user, 3).await;
    assert_ne!(in_new_slot["slot"], in_known_slot["slot"]);
    let address = server.url.trim_start_matches("http://").to_owned();
    server.terminate().await;
    assert!(server.wait().await);

    run(&format!("{name}-restore"), &database);
    if backend == Backend::Postgres {
        database.url.push_str("_restored");
    }
    let file = database.folder.path().join("greenroom.toml");
    let server = Process::start_listening(&database, &address, &["--config", file.to_str().unwrap()]).await;
    let (admin, user) = (server.admin(), user.on(&server.url));

    // The bot that ran all the time is still heard, and obeys.
    assert_eq!(user.show_bot(id(&continues)).await["status"], "active");
    // The bot whose end is forgotten does not stay active.
    let ended = user.until(id(&ends), "failed").await;
    assert_eq!(ended["reason"], "interrupted", "{ended}");
    // Bots of after the backup are unknown, and nothing of them is left at the provider.
    for bot in [&in_known_slot, &in_new_slot] {
        let (status, body) = user.send(Method::GET, &format!("/bots/{}", id(bot)), None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{body}");
    }
    until("only the bot that continues is at the provider", async || {
        database.running().iter().all(|process| continues["slot"] == process.slot)
    })
    .await;
    assert!(database.agent(continues["slot"].as_str().unwrap()).is_some());

    // The limit holds, with the bot that continues. The key and the admin token are those of before.
    let mut bots = vec![id(&continues).to_owned()];
    for number in 4..6 {
        bots.push(id(&active(&user, number).await).to_owned());
    }
    let (status, body) = user.post("/bots", json!({"meeting_url": meet_link(6)})).await;
    assert_eq!((status, &body["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("limit_reached")), "{body}");
    let slots = admin.get("/admin/slots").await;
    assert!(slots["slots"].as_array().unwrap().iter().all(|slot| slot["status"] != "error"), "{slots}");
    for bot in &bots {
        user.stop(bot).await;
        assert_eq!(user.until(bot, "completed").await["reason"], "stopped");
    }
}
