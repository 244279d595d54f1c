//! The bot's process. It leads a process group of its own, so that a signal reaches all of it, and nothing of it may
//! outlive it: the next bot of the slot must not meet what the one before left behind.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use crate::assignment::BotText;
use crate::log::log;
use crate::options::CommandLine;
use crate::runner::MARK;

/// How long killed processes may take to be gone. One that sleeps in the kernel cannot be waited for forever.
const CLEARING: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
}

/// What the agent and the bot say to each other.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
    pub stderr: Option<ChildStderr>,
}

/// The command could not be run at all.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be run: {source}", .program.display())]
pub struct CannotRun {
    program: OsString,
    source: std::io::Error,
}

impl CannotRun {
    /// As a shell says it: 127 not found, 126 found and not to be run.
    pub fn code(&self) -> i32 {
        if self.source.kind() == ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Makes orphans of the bot's tree children of this process, where they can be found and ended even if they left the
/// bot's process group.
pub fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        log!("orphans of the command cannot be adopted ({error}); those that leave its process group may outlive it");
    }
}

/// Keeps the environment and the memory of this process, with the tokens in them, from other processes of the same user:
/// from its bots above all. Only what may trace any process, as root on a machine of its own, still sees them.
pub fn hide() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        log!("the environment and memory of the agent cannot be hidden from its bots ({error})");
    }
}

impl Process {
    pub fn spawn(command: &CommandLine, data: &BotText, folder: Option<&Path>) -> Result<(Self, Pipes), CannotRun> {
        let CommandLine { program, arguments } = command;
        let cannot = |source| CannotRun { program: program.clone(), source };
        let mut child = Command::new(program);
        if let Some(folder) = folder {
            child.current_dir(folder).env("HOME", folder).env("TMPDIR", folder).env(MARK, folder);
        }
        let mut child = child
            .args(arguments)
            .env("BOT_DATA", &data.0)
            .env_remove("GREENROOM_SLOT_TOKEN")
            .env_remove("GREENROOM_RUNNER_TOKEN")
            // What the slot was started for is the agent, not its bot.
            .env_remove("GREENROOM_PROCESS_START")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Not the agent's own, which may be the log of every bot of the slot.
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(cannot)?;
        let pipes = Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() };
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| cannot(std::io::Error::other("it has no process id")))?;
        Ok((Self { child, group: Pid::from_raw(id) }, pipes))
    }

    pub fn id(&self) -> i32 {
        self.group.as_raw()
    }

    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    pub fn signal(&self, signal: Signal) {
        match killpg(self.group, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => log!("{signal} could not be sent: {error}"),
        }
    }

    /// Buries orphans that have died meanwhile, so that a long meeting does not fill the process table.
    pub fn bury_orphans(&self) {
        for orphan in children().into_iter().filter(|id| *id != self.group) {
            let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Ends what the process left behind, to the last of it.
    pub async fn clear(self) {
        let begun = Instant::now();
        loop {
            let group_gone = killpg(self.group, Signal::SIGKILL) == Err(Errno::ESRCH);
            // Only the bot's tree: the agent has no other children. A dead one leaves its own to us, for the next round.
            let left = children();
            for id in &left {
                let _ = kill(*id, Signal::SIGKILL);
                let _ = waitpid(*id, Some(WaitPidFlag::WNOHANG));
            }
            if group_gone && left.is_empty() {
                return;
            }
            if begun.elapsed() > CLEARING {
                log!("something of the command is still there after SIGKILL");
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// The children of this process, the adopted ones among them. Empty where the kernel does not tell.
fn children() -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok().map(Pid::from_raw)).collect::<Vec<_>>())
        .collect()
}

/// A process's exit code, or 128 and the signal that ended it, as a shell says it.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// For people.
pub fn exit_text(status: ExitStatus) -> String {
    match status.signal().map(Signal::try_from) {
        Some(Ok(signal)) => format!("the command was ended by {signal}"),
        Some(Err(_)) => "the command was ended by a signal".to_owned(),
        None => format!("the command ended with code {}", code(status)),
    }
}
