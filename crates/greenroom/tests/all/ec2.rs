//! Pools of runners on a real server, with moto for AWS. Machines register, are picked up for bots and are released. No
//! bot is lost or runs twice, whichever process dies.

mod agent;
mod commands;
mod killed;
mod life;
mod load;
mod prewarm;
mod restarted;
mod teardown;
mod trouble;

use crate::support::{Backend, Client, Cloud, Database, Process, greenroom, until};

/// A server with pools of runners.
struct Ec2Fixture {
    cloud: Cloud,
    server: Process,
    admin: Client,
    user: Client,
    /// The token with which machines register as runners of the pool `meet`.
    token: String,
    database: Database,
}

impl Ec2Fixture {
    /// Starts a server with one pool, which has these settings.
    async fn open(settings: &str) -> Self {
        let cloud = Cloud::new().await;
        let config = cloud.pool("meet", settings);
        Self::configured(cloud, config).await
    }

    async fn configured(cloud: Cloud, config: String) -> Self {
        let database = Database::new(Backend::Sqlite).await;
        let server = Process::start_configured(&database, &config).await;
        let (well, _, stderr) = greenroom(&database, &["aws", "init"]).await;
        assert!(well, "{stderr}");
        let token = token_of(&database, "meet").await;
        let (admin, user) = (server.admin(), server.admin().user(100).await);
        Self { cloud, server, admin, user, token, database }
    }

    /// Waits until all slots are idle.
    async fn until_idle(&self) {
        until_idle(&self.admin).await;
    }

    /// Waits until a slot has this runner.
    async fn until_on(&self, slot: &str, instance: &str) {
        until_on(&self.admin, slot, instance).await;
    }
}

async fn until_idle(admin: &Client) {
    until("all slots are idle", async || {
        let slots = admin.get("/admin/slots").await;
        slots["slots"].as_array().unwrap().iter().all(|slot| slot["status"] == "idle")
    })
    .await;
}

async fn until_on(admin: &Client, slot: &str, instance: &str) {
    until("the slot has the runner", async || {
        admin.get(&format!("/admin/slots/{slot}")).await["slot"]["provider_ref"] == instance
    })
    .await;
}

async fn token_of(database: &Database, pool: &str) -> String {
    let (well, stdout, stderr) = greenroom(database, &["aws", "runner-token", "--pool", pool]).await;
    assert!(well, "{stderr}");
    stdout.trim().to_owned()
}
