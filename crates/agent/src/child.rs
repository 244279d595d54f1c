//! The bot's process. It leads its own process group, so one signal reaches the whole group. All processes of a bot end
//! before the next bot of the slot starts.

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

use crate::assignment::BotData;
use crate::log::log;
use crate::options::{CommandLine, PREWARM};
use crate::runner::MARK;

/// How long to wait for killed processes. A process that sleeps in the kernel may never end.
const CLEARING: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Process {
    child: Child,
    group: Pid,
}

/// The pipes between the agent and the bot.
#[derive(Debug)]
pub struct Pipes {
    pub stdin: Option<ChildStdin>,
    pub stdout: Option<ChildStdout>,
    pub stderr: Option<ChildStderr>,
}

/// The command could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be run: {source}", .program.display())]
pub struct CannotRun {
    program: OsString,
    source: std::io::Error,
}

impl CannotRun {
    /// The exit code that a shell uses: 127 if the command is not found, 126 if it cannot be run.
    pub fn code(&self) -> i32 {
        if self.source.kind() == ErrorKind::NotFound { 127 } else { 126 }
    }
}

/// Makes orphans of the bot's process tree children of this process. So the agent can find and end them even if they
/// left the bot's process group.
pub fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        log!("orphans of the command cannot be adopted ({error}); those that leave its process group may outlive it");
    }
}

/// Hides the environment and memory of this process, which contain tokens, from other processes of the same user, such
/// as the bot. A process that may trace any process, such as root on its own machine, can still read them.
pub fn hide() {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_dumpable(false) {
        log!("the environment and memory of the agent cannot be hidden from its bots ({error})");
    }
}

impl Process {
    /// Starts the command. Without a bot's data the command starts ahead of its meeting, and has no token.
    pub fn spawn(
        command: &CommandLine,
        data: Option<&BotData>,
        folder: Option<&Path>,
    ) -> Result<(Self, Pipes), CannotRun> {
        let CommandLine { program, arguments } = command;
        let cannot = |source| CannotRun { program: program.clone(), source };
        let mut child = Command::new(program);
        if let Some(folder) = folder {
            child.current_dir(folder).env("HOME", folder).env("TMPDIR", folder).env(MARK, folder);
        }
        match data {
            Some(data) => {
                if let Some(steps) = &data.steps {
                    // A command that makes spans of its own adds them to the trace of its bot.
                    child.env("TRACEPARENT", &steps.traceparent);
                }
                child.env("BOT_DATA", &data.text.0).env_remove(PREWARM)
            }
            None => child.env(PREWARM, "1").env_remove("BOT_DATA"),
        };
        let mut child = child
            .args(arguments)
            .env_remove("GREENROOM_SLOT_TOKEN")
            .env_remove("GREENROOM_RUNNER_TOKEN")
            // This variable describes the start of the agent, not of the bot.
            .env_remove("GREENROOM_PROCESS_START")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The bot does not share the agent's standard error, which may be the log of every bot of the slot.
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

    /// The exit status, if the command itself has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn signal(&self, signal: Signal) {
        match killpg(self.group, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => log!("{signal} could not be sent: {error}"),
        }
    }

    /// Reaps dead orphans, so that they do not fill the process table during a long meeting.
    pub fn bury_orphans(&self) {
        for orphan in children().into_iter().filter(|id| *id != self.group) {
            let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Kills all remaining processes of the bot.
    pub async fn clear(&mut self) {
        let begun = Instant::now();
        loop {
            let group_gone = killpg(self.group, Signal::SIGKILL) == Err(Errno::ESRCH);
            // The agent has no other children than the bot's processes. The children of a dead one become ours, for the
            // next pass.
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

/// The children of this process, including adopted ones.
fn children() -> Vec<Pid> {
    children_of(Pid::this())
}

/// The children of a process. Empty if the process has ended, or if the kernel does not list them.
pub fn children_of(process: Pid) -> Vec<Pid> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok().map(Pid::from_raw)).collect::<Vec<_>>())
        .collect()
}

/// The exit code, or 128 plus the signal number, as a shell reports it.
pub fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The exit status as text for people.
pub fn exit_text(status: ExitStatus) -> String {
    match status.signal().map(Signal::try_from) {
        Some(Ok(signal)) => format!("the command was ended by {signal}"),
        Some(Err(_)) => "the command was ended by a signal".to_owned(),
        None => format!("the command ended with code {}", code(status)),
    }
}
