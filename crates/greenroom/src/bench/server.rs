//! The measured server, which runs as a separate process of this program, `greenroom bench serve`. It reads its
//! settings from standard input, and ends when that is closed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::{Attributes, Deadlines, Platform, SlotName};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::Done;
use super::client::Client;
use super::database::{Database, IdleSlots};
use crate::config::pool::{PoolConfig, Prewarm, Standby};
use crate::config::provider::{DockerConfig, ProcessConfig, ProviderConfig};
use crate::config::{Config, LimitsConfig, RetentionConfig};
use crate::providers::{Found, Provider, ProviderError, Spec, Stopped};
use crate::server::Server;

/// The pool of benchmarks that need only one.
pub const POOL: &str = "bench";
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STARTS_WITHIN: Duration = Duration::from_secs(120);
const STOPS_WITHIN: Duration = Duration::from_secs(60);
const SLOTS_READY_WITHIN: Duration = Duration::from_secs(180);

/// The settings of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerSpec {
    pub database: String,
    /// The local address to listen on.
    pub host: String,
    /// 0 for any free port.
    pub port: u16,
    pub admin_token: String,
    pub concurrent_deployments: u32,
    pub pools: Vec<PoolSpec>,
    /// Whether old data is never deleted.
    #[serde(default)]
    pub keeps_everything: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolSpec {
    pub name: String,
    pub platform: String,
    pub slots: u32,
    pub min_idle: u32,
    pub is_hot: bool,
    #[serde(default)]
    pub is_prewarmed: bool,
    pub recycle_after: u32,
    pub provider: ProviderSpec,
    pub attributes: AttributesSpec,
}

/// The attributes of a pool's new slots. Only the benchmark `match` has slots with attributes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AttributesSpec {
    pub resource_class: Option<String>,
    pub instance_type: Option<String>,
    pub cpu: u32,
    pub mem: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum ProviderSpec {
    /// Slots run nothing, so that only the server is measured.
    None,
    Process {
        command: Vec<String>,
    },
    Docker {
        host: String,
        image: String,
        command: Vec<String>,
    },
}

/// A server's message that it is ready.
#[derive(Debug, Serialize, Deserialize)]
struct Serving {
    address: SocketAddr,
}

impl ServerSpec {
    pub fn new(database: &Database, pools: Vec<PoolSpec>) -> Self {
        Self {
            database: database.url.clone(),
            host: "127.0.0.1".to_owned(),
            port: 0,
            admin_token: uuid::Uuid::new_v4().simple().to_string(),
            concurrent_deployments: 4,
            pools,
            keeps_everything: false,
        }
    }
}

impl PoolSpec {
    /// A pool of hot slots that run nothing.
    pub fn hot(slots: u32) -> Self {
        Self {
            name: POOL.to_owned(),
            platform: Platform::GoogleMeet.as_str().to_owned(),
            slots,
            min_idle: 0,
            is_hot: true,
            is_prewarmed: false,
            recycle_after: 0,
            provider: ProviderSpec::None,
            attributes: AttributesSpec::default(),
        }
    }

    fn config(&self) -> Done<PoolConfig> {
        let provider = match self.provider.clone() {
            ProviderSpec::None => ProviderConfig::Process(ProcessConfig::default()),
            ProviderSpec::Process { command } => {
                ProviderConfig::Process(ProcessConfig { command: Some(command), user: None })
            }
            ProviderSpec::Docker { host, image, command } => ProviderConfig::Docker(DockerConfig {
                host: Some(host),
                image,
                command: Some(command),
                ..DockerConfig::default()
            }),
        };
        let AttributesSpec { resource_class, instance_type, cpu, mem } = self.attributes.clone();
        Ok(PoolConfig {
            idle_timeout: None,
            prewarm: self.is_prewarmed.then_some(Prewarm { ready_timeout: READY_TIMEOUT, max_warm_age: None }),
            name: self.name.clone(),
            platform: self.platform.parse()?,
            provider,
            stored_provider: Default::default(),
            max_slots: self.slots,
            min_idle: self.min_idle,
            standby: if self.is_hot { Standby::Running } else { Standby::Stopped },
            recycle_after: self.recycle_after,
            attributes: Attributes { resource_class, instance_type, cpu, mem, ..Attributes::default() },
            expire_after: None,
        })
    }
}

/// A running server.
#[derive(Debug)]
pub struct ServerProcess {
    pub address: SocketAddr,
    pub pid: u32,
    /// How long it took until it was ready.
    pub ready_in: Duration,
    spec: ServerSpec,
    child: Child,
    _stdin: ChildStdin,
}

impl ServerProcess {
    /// Starts a server in the folder `folder`, or in the current one.
    pub async fn start_in(spec: &ServerSpec, folder: Option<&Path>) -> Done<Self> {
        Self::start_command(spec, Command::new(std::env::current_exe()?), folder).await
    }

    /// Starts the server of another build of this program, if one is given.
    pub async fn start_program(spec: &ServerSpec, program: Option<&Path>) -> Done<Self> {
        match program {
            Some(program) => Self::start_command(spec, Command::new(program), None).await,
            None => Self::start(spec).await,
        }
    }

    async fn start_command(spec: &ServerSpec, mut command: Command, folder: Option<&Path>) -> Done<Self> {
        let begun = Instant::now();
        command.args(["bench", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // A log line for each bot would be measured too. The provider's error for its list is intended.
        command.env("RUST_LOG", "error");
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        let mut child = command.spawn()?;
        let (stdin, stdout) =
            child.stdin.take().zip(child.stdout.take()).ok_or("the server has no standard input and output")?;
        let mut stdin = stdin;
        let mut line = serde_json::to_string(spec)?;
        line.push('\n');
        stdin.write_all(line.as_bytes()).await?;
        let mut line = String::new();
        tokio::time::timeout(STARTS_WITHIN, BufReader::new(stdout).read_line(&mut line)).await??;
        let Serving { address } = serde_json::from_str(&line).map_err(|_| "the server did not start")?;
        let pid = child.id().ok_or("the server has ended")?;
        Ok(Self { address, pid, ready_in: begun.elapsed(), spec: spec.clone(), child, _stdin: stdin })
    }

    pub async fn start(spec: &ServerSpec) -> Done<Self> {
        Self::start_in(spec, None).await
    }

    /// Stops it normally.
    pub async fn stop(mut self) -> Done {
        self.signal(nix::sys::signal::Signal::SIGTERM)?;
        let ended = tokio::time::timeout(STOPS_WITHIN, self.child.wait()).await;
        let status = ended.map_err(|_| "the server did not stop")??;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}").into()) }
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) -> Done {
        Ok(nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(self.pid)?), signal)?)
    }

    /// Kills it as `kill -9` does.
    pub async fn kill(mut self) -> Done {
        Ok(self.child.kill().await?)
    }

    /// Calls the operators' API.
    pub async fn admin(&self, call: &str, body: &str, expected: u16) -> Done<Value> {
        let mut client = Client::connect(self.address).await?;
        client.send(call, &self.spec.admin_token, None, body, expected).await
    }

    /// Creates users and returns their keys.
    pub async fn create_users(&self, count: usize, max_concurrent_bots: i64) -> Done<Vec<String>> {
        let mut client = Client::connect(self.address).await?;
        let mut keys = Vec::with_capacity(count);
        for number in 0..count {
            let email = format!("bench-{number}@localhost");
            let body = json!({"email": email, "name": "Bench", "max_concurrent_bots": max_concurrent_bots}).to_string();
            let created: Value = client.send("POST /admin/users", &self.spec.admin_token, None, &body, 201).await?;
            keys.push(created["api_key"].as_str().ok_or("the new user has no API key")?.to_owned());
        }
        Ok(keys)
    }

    /// Waits until a pool has this number of idle slots.
    pub async fn until_idle(&self, database: &Database, pool: &str, slots: i64) -> Done {
        let deadline = Instant::now() + SLOTS_READY_WITHIN;
        let ready = format!("SELECT COUNT(*) FROM slots WHERE pool = '{pool}' AND status = 'idle'");
        while database.number(ready.as_str()).await? < slots {
            if Instant::now() > deadline {
                return Err(format!("the pool {pool} did not get {slots} idle slots in time").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Deletes all slots, also at their provider, and stops.
    pub async fn delete_slots_and_stop(self, database: &Database) -> Done {
        for pool in &self.spec.pools {
            self.admin(&format!("PATCH /admin/pools/{}", pool.name), "{\"min_idle\": 0}", 200).await?;
        }
        for slot in database.texts("SELECT name FROM slots").await? {
            // A slot that was removed meanwhile is not found.
            let mut client = Client::connect(self.address).await?;
            client.call(&format!("DELETE /admin/slots/{slot}"), &self.spec.admin_token, None, "").await?;
        }
        let deadline = Instant::now() + SLOTS_READY_WITHIN;
        while database.number("SELECT COUNT(*) FROM slots").await? > 0 {
            if Instant::now() > deadline {
                return Err("the slots were not deleted in time".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.stop().await
    }
}

/// Creates a database with the schema of this version and a pool of idle hot slots.
pub async fn filled_database(postgres: Option<&str>, pool: &PoolSpec, attribute_sets: &[String]) -> Done<Database> {
    let database = Database::create(postgres).await?;
    let filled = async {
        ServerProcess::start(&ServerSpec::new(&database, vec![pool.clone()])).await?.stop().await?;
        database.fill(&IdleSlots { pool: &pool.name, count: i64::from(pool.slots), attribute_sets }).await
    };
    match filled.await {
        Ok(()) => Ok(database),
        Err(error) => {
            database.remove().await?;
            Err(error)
        }
    }
}

/// `greenroom bench serve`: serves with the settings from standard input, until that is closed or a signal arrives.
pub async fn serve() -> Done {
    crate::telemetry::log();
    // First, so that no signal arrives too early.
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).await?;
    let spec: ServerSpec = serde_json::from_str(&line)?;
    let pools = spec.pools.iter().map(PoolSpec::config).collect::<Done<Vec<_>>>()?;
    let config = Config {
        queue_order: Default::default(),
        listen: format!("{}:{}", spec.host, spec.port),
        public_url: None,
        database: spec.database.into(),
        redis: None,
        bots_redis: None,
        admin_token: Some(spec.admin_token.into()),
        limits: LimitsConfig::default(),
        retention: if spec.keeps_everything { RetentionConfig::forever() } else { RetentionConfig::default() },
        otlp_endpoint: None,
        deadlines: Deadlines::default(),
        max_concurrent_deployments: spec.concurrent_deployments,
        pull_stall: Duration::from_mins(2),
        max_recovery_attempts: 3,
        pools,
        has_own_pools: true,
        file: None,
    };
    let has_provider = spec.pools.iter().any(|pool| !matches!(pool.provider, ProviderSpec::None));
    let server = if has_provider {
        Server::start(&config, |_, _| Ok(())).await?
    } else {
        let none: Arc<dyn Provider> = Arc::new(NoProvider);
        let providers = spec.pools.iter().map(|pool| (pool.name.clone(), none.clone())).collect::<BTreeMap<_, _>>();
        Server::start_on(&config, Box::new(|_, _, _| Arc::new(providers)), Box::new(|_, _| Ok(()))).await?
    };
    println!("{}", serde_json::to_string(&Serving { address: server.address })?);
    let stop = async move || {
        let mut rest = [0; 16];
        tokio::select! {
            _ = terminate.recv() => {}
            _ = input.read(&mut rest) => {}
        }
    };
    Ok(server.run(stop).await?)
}

/// A provider that runs nothing.
#[derive(Debug)]
struct NoProvider;

#[async_trait]
impl Provider for NoProvider {
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        Ok(spec.slot.to_string())
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        Ok(spec.slot.to_string())
    }

    async fn stop(&self, _: &SlotName, _: bool) -> Result<Stopped, ProviderError> {
        Ok(Stopped::Seen)
    }

    /// An error, so that the server does not conclude that a slot is gone.
    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        Err(ProviderError::permanent("the benchmark provider cannot list slots"))
    }

    async fn inspect(&self, _slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        Ok(None)
    }

    async fn delete(&self, _: &SlotName) -> Result<(), ProviderError> {
        Ok(())
    }
}
