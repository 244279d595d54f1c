//! A server with one pool on a real engine, and bots that live there.

use serde_json::Value;

use super::{Engine, Ours};
use crate::support::{Backend, Client, Database, Process, found, meet_link};

/// A bot that comes in, and leaves when it is asked to.
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
    /// What the server has on the engine goes with the test.
    pub ours: Ours,
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
        let ours = engine.ours(&format!("greenroom.installation={installation}"));
        let user = server.admin().user(100).await;
        Self { engine: engine.clone(), database, server, pool, toml, user, ours }
    }

    /// Kills the server as a power cut would, and starts another in its place.
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

    /// Waits until so many slots are idle, and gives all slots as they are then.
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

    /// A slot, and what went wrong in it.
    pub async fn slot_and_failures(&self, number: usize) -> Value {
        self.server.admin().get(&format!("/admin/slots/{}", self.slot(number))).await
    }

    /// Lets twenty obedient bots live in a pool of at most five slots that keeps two ready, while the server is killed in
    /// the middle of starts, of lives and of ends. Gives the names of the slots, all of which are idle then.
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
