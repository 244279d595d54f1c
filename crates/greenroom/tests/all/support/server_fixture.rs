//! A server as its users run it, with pools whose slots are processes of this machine.

use serde_json::{Value, json};

use super::{Backend, Client, Database, Process, Running, found, meet_link, until};

#[derive(Debug)]
pub struct ServerFixture {
    pub server: Process,
    pub admin: Client,
    pub user: Client,
    /// The last field, so that the processes in slots end after the server, which would restart them.
    pub database: Database,
}

impl ServerFixture {
    pub async fn open(backend: Backend, config: &str) -> Self {
        let database = Database::new(backend).await;
        let server = Process::start_configured(&database, config).await;
        let (admin, user) = (server.admin(), server.admin().user(1_000).await);
        Self { server, admin, user, database }
    }

    pub async fn slots(&self) -> Vec<Value> {
        let mut slots = self.admin.get("/admin/slots").await;
        slots["slots"].as_array_mut().map(std::mem::take).unwrap()
    }

    /// Waits until exactly this many slots are idle and this many busy, and there are no others.
    pub async fn until_slots(&self, idle: usize, busy: usize) {
        until(&format!("{idle} slots are idle and {busy} busy"), async || {
            let slots = self.slots().await;
            let count = |status| slots.iter().filter(|slot| slot["status"] == status).count();
            (count("idle"), count("busy"), slots.len()) == (idle, busy, idle + busy)
        })
        .await;
    }

    /// Requests a bot, and waits until it is in its meeting.
    pub async fn active(&self, number: usize) -> Value {
        let bot = self.user.ask(json!({"meeting_url": meet_link(number)})).await;
        self.user.until(bot["id"].as_str().unwrap(), "active").await
    }

    /// Stops a bot, and waits until it has left.
    pub async fn leave(&self, bot: &Value) {
        let id = bot["id"].as_str().unwrap();
        self.user.stop(id).await;
        assert_eq!(self.user.until(id, "completed").await["reason"], "stopped");
    }

    /// The agent in a slot.
    pub async fn agent(&self, slot: &str) -> Running {
        found("an agent is in the slot", async || self.database.agent(slot)).await
    }
}
