//! Several servers on one database, behind a balancer that is their public URL.

use std::net::SocketAddr;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::servers::any_port;
use super::{ADMIN_TOKEN, Balancer, Client, Database, PrivateRedis, Process, found, meet_link};

#[derive(Debug)]
pub struct Replicas {
    replicas: Vec<Replica>,
    pub balancer: Balancer,
    /// Each call of this client may go to any replica.
    pub admin: Client,
    file: PathBuf,
    /// The folder for the logs of the replicas. With `None`, they go to the output of the test.
    pub logs: Option<PathBuf>,
    /// The last field, so that the processes in slots end after the servers, which would restart them.
    pub database: Database,
}

#[derive(Debug)]
struct Replica {
    address: SocketAddr,
    /// `None` while the replica does not run.
    process: Option<Process>,
}

impl Replicas {
    /// Starts no replica yet. `toml` is the configuration that all replicas share.
    pub async fn new(database: Database, redis: &PrivateRedis, toml: &str) -> Self {
        let balancer = Balancer::listen().await;
        let file = database.folder.path().join("greenroom.toml");
        let common = format!(
            "admin_token = \"{ADMIN_TOKEN}\"\npublic_url = \"{}\"\nredis = \"{}\"\nbots_redis = \"{}\"\n{toml}",
            balancer.url,
            redis.url(),
            redis.url_for_bots()
        );
        std::fs::write(&file, common).unwrap();
        let admin = Client::anywhere(&balancer.url, ADMIN_TOKEN);
        Self { replicas: Vec::new(), balancer, admin, file, logs: None, database }
    }

    /// Starts three replicas on the PostgreSQL that all tests share.
    pub async fn three(redis: &PrivateRedis, toml: &str) -> Self {
        let mut replicas = Self::new(Database::new(super::Backend::Postgres).await, redis, toml).await;
        for _ in 0..3 {
            replicas.add().await;
        }
        replicas
    }

    pub async fn add(&mut self) {
        found("a port is free", async || {
            let address = SocketAddr::from(([127, 0, 0, 1], any_port()));
            let process = Some(self.try_spawn(self.replicas.len(), address).await?);
            self.replicas.push(Replica { address, process });
            Some(())
        })
        .await;
        self.balancer.set(self.replicas.iter().map(|replica| replica.address));
    }

    async fn try_spawn(&self, number: usize, address: SocketAddr) -> Option<Process> {
        let mut command = Process::command();
        command.args(["serve", "--listen", &address.to_string(), "--database", &self.database.url]);
        command.arg("--config").arg(&self.file).current_dir(self.database.folder.path());
        if let Some(folder) = &self.logs {
            let log = folder.join(format!("replica-{number}.log"));
            command.stderr(std::fs::File::options().create(true).append(true).open(log).unwrap());
        }
        Process::try_spawn(command).await.ok()
    }

    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// A client with the admin token for one replica.
    pub fn admin_at(&self, number: usize) -> Client {
        self.admin.on(&self.url(number))
    }

    /// The address of one replica, without the balancer.
    pub fn url(&self, number: usize) -> String {
        format!("http://{}", self.replicas[number].address)
    }

    /// The number of the replica whose name `host:port` this is.
    pub fn named(&self, name: &str) -> usize {
        let port = name.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let index = self.replicas.iter().position(|replica| Some(replica.address.port()) == port);
        index.unwrap_or_else(|| panic!("{name} is not one of {:?}", self.replicas))
    }

    /// Kills one replica, like a power cut.
    pub async fn kill(&mut self, number: usize) {
        self.expect_alive();
        self.replicas[number].process.take().expect("the replica runs").kill().await;
    }

    /// Asks one replica to stop.
    pub async fn terminate(&self, number: usize) {
        self.replicas[number].process.as_ref().expect("the replica runs").terminate().await;
    }

    /// Asserts that no replica has ended except those that were killed.
    pub fn expect_alive(&mut self) {
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let ended = replica.process.as_mut().is_some_and(Process::has_ended);
            assert!(!ended, "replica {number} at {} ended by itself", replica.address);
        }
    }

    /// Starts one replica on its earlier address. Returns false if it ends before it serves.
    pub async fn try_start(&mut self, number: usize) -> bool {
        let process = self.try_spawn(number, self.replicas[number].address).await;
        self.replicas[number].process = process;
        self.replicas[number].process.is_some()
    }

    /// Suspends one replica: it keeps its locks and connections, and does nothing. New connections go to the others.
    pub fn freeze(&self, number: usize) {
        self.replicas[number].process.as_ref().expect("the replica runs").signal(Signal::SIGSTOP);
        let others = self.replicas.iter().enumerate().filter(|(other, _)| *other != number);
        self.balancer.set(others.map(|(_, replica)| replica.address));
    }

    /// Resumes a suspended replica.
    pub fn thaw(&self, number: usize) {
        self.replicas[number].process.as_ref().expect("the replica runs").signal(Signal::SIGCONT);
        self.balancer.set(self.replicas.iter().map(|replica| replica.address));
    }

    /// Requests a bot, and waits until it is in its meeting.
    pub async fn active(&self, user: &Client, number: usize) -> Value {
        let bot = user.bot(&meet_link(number)).await;
        user.until(&bot, "active").await
    }
}
