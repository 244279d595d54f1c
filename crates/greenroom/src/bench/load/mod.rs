//! The load generator, which runs as a separate process, `greenroom bench load`, on one thread. It reads its task and
//! its keys from standard input, and writes its counts to standard output.
//!
//! - this file: the task, the report, and the start of the process
//! - [`shared`]: the state that its clients share: the slots in use and the events received
//! - [`place`]: places and ends bots for a while, at one server or at the one that answers
//! - [`burst`]: requests many bots at once
//! - [`heartbeats`]: sends heartbeats for running bots
//! - [`wait`]: waits for bots in hot slots
//! - [`start`]: requests many bots at once whose commands report that they run

mod burst;
mod heartbeats;
mod place;
pub mod shared;
pub mod start;
mod wait;

use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::Done;

/// The task of a load generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadSpec {
    pub addresses: Vec<SocketAddr>,
    /// The clients use the keys in turn.
    pub keys: Vec<String>,
    /// The secret that signs bot tokens.
    pub signing_secret: String,
    /// The number of the first meeting. Each bot has its own meeting.
    pub first_meeting: u64,
    pub clients: usize,
    pub work: Work,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Work {
    Place {
        time: Duration,
        /// Also count pairs in intervals of this length.
        interval: Option<Duration>,
        /// When a connection breaks, send the same request with the same key to another address.
        retry: bool,
        /// All clients together place at most so many. Without a number, as many as they can.
        pairs_per_second: Option<u32>,
    },
    /// Each client requests one bot, all at the same time.
    Burst,
    /// The clients request this number of bots. Each sends its next request after its last answer.
    Start { bots: usize },
    /// Each of the running bots sends heartbeats. A pair is one heartbeat.
    Heartbeats { bots: Vec<RunningBot>, time: Duration },
    /// An agent waits in each of these slots, until the process is ended.
    Wait { slots: Vec<WaitingSlot> },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunningBot {
    pub id: Uuid,
    pub connection_id: Uuid,
}

/// A hot slot in its first generation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WaitingSlot {
    pub name: String,
    pub incarnation: Uuid,
}

/// The counts of a load generator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Bots that were placed and ended.
    pub pairs: u64,
    pub seconds: f64,
    /// Pairs in each interval, if requested.
    pub intervals: Vec<u64>,
    /// How often a slot had two bots.
    pub doubles: u64,
    /// Bots that had to wait for a slot.
    pub queued: u64,
    /// Requests that were sent again because a connection broke.
    pub retries: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// The longest time in which no client got an answer.
    pub longest_pause: Duration,
    /// From a request to its effect, in milliseconds.
    pub latency_p50_ms: f64,
    pub latency_p99_ms: f64,
    pub cpu: Duration,
    /// The acknowledged bots, if the load repeats requests.
    pub bots: Vec<Uuid>,
}

impl LoadReport {
    pub fn pairs_per_second(&self) -> f64 {
        self.pairs as f64 / self.seconds
    }

    /// Fails if there were errors.
    pub fn check(&self) -> Done {
        if self.errors > 0 || self.doubles > 0 {
            let first = self.first_error.as_deref().unwrap_or("none");
            return Err(format!("{} duplicates, {} errors; first error: {first}", self.doubles, self.errors).into());
        }
        Ok(())
    }
}

/// A running load generator.
#[derive(Debug)]
pub struct LoadProcess {
    child: Child,
}

impl LoadProcess {
    pub async fn start(spec: &LoadSpec) -> Done<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "load"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let mut stdin = child.stdin.take().ok_or("the load generator has no input")?;
        stdin.write_all(&serde_json::to_vec(spec)?).await?;
        Ok(Self { child })
    }

    /// Waits until the process has finished.
    pub async fn report(self) -> Done<LoadReport> {
        let output = self.child.wait_with_output().await?;
        if !output.status.success() {
            return Err(format!("the load generator ended with {}", output.status).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Ends a process that would go on. Fails if it has ended before.
    pub async fn stop(mut self) -> Done {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("the load generator ended with {status}").into());
        }
        Ok(self.child.kill().await?)
    }

    pub async fn run(spec: &LoadSpec) -> Done<LoadReport> {
        Self::start(spec).await?.report().await
    }
}

/// `greenroom bench load`.
pub fn main() -> ExitCode {
    match generate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("greenroom bench load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn generate() -> Done {
    raise_file_limit();
    let spec: LoadSpec = serde_json::from_reader(std::io::stdin().lock())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = runtime.block_on(async {
        match spec.work.clone() {
            Work::Place { time, interval, retry, pairs_per_second } => {
                place::run(&spec, time, interval, retry, pairs_per_second).await
            }
            Work::Burst => burst::run(&spec).await,
            Work::Start { bots } => start::run(&spec, bots).await,
            Work::Heartbeats { bots, time } => heartbeats::run(&spec, &bots, time).await,
            Work::Wait { slots } => wait::run(&spec, &slots).await,
        }
    })?;
    report.cpu = super::usage::cpu_of(std::process::id()).unwrap_or_default();
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Each connection needs an open file.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
