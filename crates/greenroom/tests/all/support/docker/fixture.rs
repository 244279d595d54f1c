//! A server with one pool on a real Docker Engine, where its bots run.

use serde_json::Value;

use super::{Engine, Labelled};
use crate::support::{Backend, Client, Database, Process, found, meet_link};

/// A bot that joins, and leaves when it gets the command.
pub const OBEDIENT: &str = r#"
    echo '{"event": "joined"}'
    while read line; do case "$line" in *leave*) exit 0;; esac; done
"#;

#[derive(Debug)]
pub struct DockerFixture {
    pub engine: Engine,
    pub server: Process,
    pub user: Client,
    pub database: Database,
    pub toml: String,
    pool: String,
    /// The server's resources on the engine, which are removed with the test.
    pub labelled: Labelled,
}

impl DockerFixture {
    /// `settings` are lines of the pool's configuration, `section` those of its provider's.
    pub async fn start(engine: &Engine, provider: &str, image: &str, settings: &str, section: &str) -> Self {
        let pool = format!("s{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
        let toml = format!(
            "[[pool]]\nname = \"{pool}\"\nplatform = \"google_meet\"\nprovider = \"{provider}\"\n{settings}\n\
             [pool.{provider}]\nhost = \"{}\"\nimage = \"{image}\"\n{section}\n",
            engine.host
        );
        let database = Database::new(Backend::Sqlite).await;
        let server = Process::start_for_containers(&database, &toml).await;
        let installation = found("the first start is done", async || {
            let rows = database.reader().await.pairs("SELECT name, value FROM settings").await;
            rows.into_iter().find(|(name, _)| name == "installation").map(|(_, value)| value)
        })
        .await;
        let labelled = engine.labelled(&format!("greenroom.installation={installation}"));
        let user = server.admin().user(100).await;
        Self { engine: engine.clone(), database, server, pool, toml, user, labelled }
    }

    /// Kills the server, like a power cut, and starts another on the same address.
    pub async fn restart(mut self) -> Self {
        let address = self.server.url.trim_start_matches("http://").to_owned();
        self.server.kill().await;
        self.server = Process::start_for_containers_at(&self.database, &self.toml, &address).await;
        self
    }

    pub fn slot(&self, number: usize) -> String {
        format!("pool-{}-{number:03}", self.pool)
    }

    pub async fn slots(&self) -> Vec<Value> {
        self.server.admin().get("/admin/slots").await["slots"].as_array().unwrap().clone()
    }

    /// Waits until this many slots are idle, and returns all slots.
    pub async fn until_idle(&self, count: usize) -> Vec<Value> {
        found("slots are idle", async || {
            let slots = self.slots().await;
            (slots.iter().filter(|slot| slot["status"] == "idle").count() == count).then_some(slots)
        })
        .await
    }

    pub async fn container(&self, number: usize) -> bollard::models::ContainerInspectResponse {
        self.engine.docker.inspect_container(&self.slot(number), None).await.unwrap()
    }

    /// A slot with its failures.
    pub async fn slot_and_failures(&self, number: usize) -> Value {
        self.server.admin().get(&format!("/admin/slots/{}", self.slot(number))).await
    }

    /// Runs twenty obedient bots in a pool of at most five slots that keeps two ready. Meanwhile it kills the server
    /// during starts, meetings and ends. Returns the names of the slots, which are then all idle.
    pub async fn twenty_lives(mut self) -> (Self, Vec<String>) {
        self.until_idle(2).await;
        let mut bots = Vec::new();
        for number in 0..20 {
            bots.push(self.user.bot(&meet_link(number)).await);
            if number == 3 {
                self = self.restart().await;
            }
        }
        for (number, bot) in bots.iter().enumerate() {
            self.user.until(bot, "active").await;
            self.user.stop(bot).await;
            if number == 9 {
                self = self.restart().await;
            }
        }
        for bot in &bots {
            let bot = self.user.until(bot, "completed").await;
            assert_eq!(bot["reason"], "stopped");
        }
        let slots = found("every slot is idle", async || {
            let slots = self.slots().await;
            slots.iter().all(|slot| slot["status"] == "idle").then_some(slots)
        })
        .await;
        assert!(slots.len() <= 5, "{slots:?}");
        (self, slots.iter().map(|slot| slot["name"].as_str().unwrap().to_owned()).collect())
    }
}
