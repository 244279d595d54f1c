//! The agent as a process, with its output, and helpers for its bots.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::runner::side::{OWN_TOKEN, POOL_TOKEN};
use crate::server::{DEADLINE, Data, SLOT_TOKEN, Server};

#[derive(Debug)]
pub struct Agent {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// The result of an agent that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

#[derive(Debug)]
struct Output {
    so_far: Arc<watch::Sender<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Output {
    fn of(mut pipe: impl AsyncRead + Unpin + Send + 'static) -> Self {
        let so_far = Arc::new(watch::Sender::new(Vec::new()));
        let sender = so_far.clone();
        let reading = tokio::spawn(async move {
            let mut bytes = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = pipe.read(&mut bytes).await {
                sender.send_modify(|so_far| so_far.extend_from_slice(&bytes[..read]));
            }
        });
        Self { so_far, reading }
    }

    fn text(&self) -> String {
        // The agent's output must be valid text, whatever the bot printed.
        String::from_utf8(self.so_far.borrow().clone()).unwrap()
    }

    async fn until(&self, part: &str, times: usize) {
        let mut receiver = self.so_far.subscribe();
        let holds = receiver.wait_for(|so_far| String::from_utf8_lossy(so_far).matches(part).count() >= times);
        let held = tokio::time::timeout(DEADLINE, holds).await.is_ok_and(|held| held.is_ok());
        assert!(held, "{part:?} was not printed: {}", self.text());
    }
}

/// The agent with an empty environment.
pub fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom-agent"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).kill_on_drop(true).stdin(Stdio::null());
    command
}

/// The agent for one bot.
pub fn for_bot(data: &Data) -> Command {
    let mut command = bare();
    command.env("BOT_DATA", data.json.to_string());
    command
}

/// The agent of a hot slot.
pub fn for_slot(server: &Server) -> Command {
    let mut command = bare();
    command.env("GREENROOM_URL", server.url()).env("GREENROOM_SLOT_TOKEN", SLOT_TOKEN);
    command
}

impl Agent {
    /// Starts the agent with a bot that is a script for sh.
    pub fn start(command: Command, options: &[&str], script: &str) -> Self {
        Self::start_exactly(command, &[options, &["--", "sh", "-c", script]].concat())
    }

    pub fn start_exactly(mut command: Command, arguments: &[&str]) -> Self {
        let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Output::of(child.stdout.take().unwrap());
        let stderr = Output::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    pub async fn until_printed(&self, part: &str) {
        self.stdout.until(part, 1).await;
    }

    pub async fn until_logged(&self, part: &str) {
        self.stderr.until(part, 1).await;
    }

    pub async fn until_logged_times(&self, part: &str, times: usize) {
        self.stderr.until(part, times).await;
    }

    pub fn printed(&self) -> String {
        self.stdout.text()
    }

    /// The most memory that it ever had, in KiB.
    pub fn memory_peak(&self) -> u64 {
        let id = self.child.id().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub async fn signal(&self, signal: &str) {
        let id = self.child.id().expect("the agent runs").to_string();
        assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
    }

    /// Waits for the end of the agent. Asserts that its output contains no token.
    pub async fn end(mut self) -> Ended {
        let waiting = async {
            let status = self.child.wait().await.unwrap();
            // A pipe closes only when no process holds it. So this also shows that no process of the bot is left.
            (&mut self.stdout.reading).await.unwrap();
            (&mut self.stderr.reading).await.unwrap();
            status
        };
        let Ok(status) = tokio::time::timeout(DEADLINE, waiting).await else {
            panic!("the agent does not end; it printed {} and logged {}", self.stdout.text(), self.stderr.text());
        };
        let ended = Ended { code: status.code(), stdout: self.stdout.text(), stderr: self.stderr.text() };
        for secret in ["grb_secret", SLOT_TOKEN, POOL_TOKEN, OWN_TOKEN] {
            assert!(
                !ended.stdout.contains(secret) && !ended.stderr.contains(secret),
                "a token is in the output: {ended:?}"
            );
        }
        ended
    }
}

/// A point at which a bot waits once, until the test lets it continue.
#[derive(Debug)]
pub struct Gate {
    folder: tempfile::TempDir,
}

impl Gate {
    pub async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let gate = Self { folder };
        assert!(Command::new("mkfifo").arg(gate.path()).status().await.unwrap().success());
        gate
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("gate")
    }

    /// A part of the bot's script that waits here.
    pub fn pass(&self) -> String {
        format!("read _ < {}", self.path().display())
    }

    pub async fn open(&self) {
        let mut opening = Command::new("sh");
        opening.args(["-c", "echo go > \"$0\""]).arg(self.path()).kill_on_drop(true);
        let opened = tokio::time::timeout(DEADLINE, opening.status()).await.expect("the bot reaches the gate");
        assert!(opened.unwrap().success());
    }
}

/// Whether a process with this id exists.
pub fn lives(id: &str) -> bool {
    assert!(id.parse::<u32>().is_ok(), "{id:?} is no process");
    Path::new("/proc").join(id).exists()
}
