//! Starts the bot's command ahead of its meeting, and keeps it ready. A command that ends, or is not ready in time, is
//! started again after a pause. After three failures in a row the prewarmer gives up, because a fourth start would
//! probably fail too, and a person has to know.

use std::convert::Infallible;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::process::ChildStdout;
use tokio::time::Instant;

use crate::assignment::BotData;
use crate::bot_process::BotProcess;
use crate::bot_run::TOLD_LINES;
use crate::child;
use crate::lines::{Event, Lines};
use crate::log::log;
use crate::options::{CommandLine, Prewarm};
use crate::pipes;
use crate::runner::Folders;
use crate::tail::Tail;

const MOST_FAILURES: u32 = domain::pool::READY_ATTEMPTS;
/// The pause after the first failure. The next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Failures of commands that were ready for longer than this are not in a row.
const PROVEN_AFTER: Duration = Duration::from_secs(5 * 60);
/// How often to reap orphans of a command that waits.
const REAP_EVERY: Duration = Duration::from_secs(10);
/// How long to read the last output of a command that has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// How long a command may take to end when the agent ends. It has no meeting to leave.
const END_GRACE: Duration = Duration::from_secs(2);

/// The command failed too often.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}{}", self.message(), self.shown_lines())]
pub struct GaveUp {
    /// The last failure.
    why: String,
    /// The last output of the command, each line after a line break.
    last_lines: String,
}

impl GaveUp {
    /// The reason, without the last output.
    pub fn message(&self) -> String {
        format!("the command was not ready after {MOST_FAILURES} starts: {}", self.why)
    }

    pub fn last_lines(&self) -> Option<&str> {
        Some(self.last_lines.trim_start_matches('\n')).filter(|lines| !lines.is_empty())
    }

    fn shown_lines(&self) -> String {
        self.last_lines().map(|lines| format!(". Last lines:\n{lines}")).unwrap_or_default()
    }
}

#[derive(Debug)]
enum State {
    /// No command runs. The next one is started at this time.
    Down(Instant),
    /// The command has to be ready at this time.
    Starting(Box<BotProcess>, Instant),
    /// The command has been ready since this time.
    Ready(Box<BotProcess>, Instant),
    /// The command is not used any more, and its processes are being killed.
    Clearing(Box<BotProcess>),
}

/// Why a runner has no command for its next bot.
#[derive(Debug)]
pub enum Unready {
    /// The command has ended.
    Lost(String),
    /// The command is ready, and so old that it should be replaced.
    Old,
}

/// Keeps one command ready. Its futures may be dropped at any time, and the next call continues.
#[derive(Debug)]
pub struct Prewarmer<'a> {
    command: &'a CommandLine,
    settings: Prewarm,
    /// Where each command gets a folder of its own, if it does.
    folders: Option<&'a Folders>,
    state: State,
    failures: u32,
    /// The failure that the state `Clearing` follows.
    failed: Option<String>,
    gave_up: Option<GaveUp>,
}

impl<'a> Prewarmer<'a> {
    /// For a slot, in which the server replaces commands that are too old, one slot after another.
    pub fn in_slot(command: &'a CommandLine, settings: Prewarm) -> Self {
        let state = State::Down(Instant::now());
        let (folders, failures, failed, gave_up) = (None, 0, None, None);
        Self { command, settings, folders, state, failures, failed, gave_up }
    }

    /// For a runner, in which each command gets a folder of its own.
    pub fn on_runner(command: &'a CommandLine, settings: Prewarm, folders: &'a Folders) -> Self {
        Self { folders: Some(folders), ..Self::in_slot(command, settings) }
    }

    /// Uses other settings from now on. A command that is starting keeps the time that it was given.
    pub fn follow(&mut self, settings: Prewarm) {
        self.settings = settings;
    }

    /// Waits until a command is ready.
    pub async fn ready(&mut self) -> Result<(), GaveUp> {
        while !matches!(self.state, State::Ready(..)) {
            self.step().await?;
        }
        Ok(())
    }

    /// Keeps a command ready until that fails for good.
    pub async fn keep_ready(&mut self) -> GaveUp {
        loop {
            if let Err(gave_up) = self.step().await {
                return gave_up;
            }
        }
    }

    /// Waits until the command that is ready has ended, and returns why.
    pub async fn lost(&mut self) -> String {
        while matches!(self.state, State::Ready(..)) {
            // The failure is told by the next call of `ready`.
            let _ = self.step().await;
        }
        self.failed.clone().unwrap_or_else(|| "the command is not ready".to_owned())
    }

    /// Waits until the command that is ready has ended, or should be replaced. It should be before it is too old,
    /// because runners replace their commands one after another. Before `not_before` no command is too old.
    pub async fn unready(&mut self, not_before: Instant) -> Unready {
        let age = self.settings.max_age.map(|age| age / 4 * 3);
        let old_at = match &self.state {
            State::Ready(_, since) => age.map(|age| (*since + age).max(not_before)),
            _ => None,
        };
        tokio::select! {
            why = self.lost() => Unready::Lost(why),
            () = sleep_until(old_at) => Unready::Old,
        }
    }

    /// Replaces the command that is ready.
    pub fn renew(&mut self) {
        log!("command too old: replaced");
        self.clear_next();
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(..))
    }

    /// Waits until a command is ready, and hands it over. A command that is too old is replaced first.
    async fn take(&mut self) -> Result<Box<BotProcess>, GaveUp> {
        loop {
            self.ready().await?;
            let State::Ready(command, since) = &mut self.state else { continue };
            if let Some(status) = command.process.ended() {
                self.fail(lost_text(status));
            } else if self.settings.max_age.is_some_and(|age| since.elapsed() > age) {
                log!("command too old: replaced before it gets its bot");
                self.clear_next();
            } else if let State::Ready(command, _) = self.replace(State::Down(Instant::now())) {
                self.failures = 0;
                return Ok(command);
            }
        }
    }

    /// Hands over the command for this bot. A probe runs another command, so the command that is ready ends, and there
    /// is none to hand over.
    pub async fn take_for(&mut self, bot: &BotData) -> Result<Option<Box<BotProcess>>, GaveUp> {
        if !bot.is_probe {
            return self.take().await.map(Some);
        }
        self.ready().await?;
        log!("command ended: the bot is a probe");
        self.failures = 0;
        self.clear_next();
        while matches!(self.state, State::Clearing(_)) {
            self.step().await?;
        }
        Ok(None)
    }

    /// Ends the command, because the agent ends.
    pub async fn end(mut self) {
        if let State::Starting(mut command, _) | State::Ready(mut command, _) | State::Clearing(mut command) =
            self.replace(State::Down(Instant::now()))
        {
            command.process.signal(Signal::SIGTERM);
            let _ = tokio::time::timeout(END_GRACE, command.process.wait()).await;
            command.clear(DRAIN).await;
            if let (Some(folders), Some(folder)) = (self.folders, command.folder.take()) {
                let _ = folders.remove(folder).await;
            }
        }
    }

    /// Goes on until the state changes.
    async fn step(&mut self) -> Result<(), GaveUp> {
        if let Some(gave_up) = &self.gave_up {
            return Err(gave_up.clone());
        }
        match &mut self.state {
            State::Down(at) => {
                tokio::time::sleep_until(*at).await;
                self.start()?;
            }
            State::Starting(command, deadline) => {
                let BotProcess { process, stdout, tail, .. } = &mut **command;
                let is_ready = tokio::select! {
                    status = process.wait() => Err(early_text(status)),
                    () = tokio::time::sleep_until(*deadline) => {
                        Err(format!("the command was not ready within {:?}", self.settings.ready_timeout))
                    }
                    () = pipes::read_ahead(stdout, tail, |event| matches!(event, Event::Ready)) => Ok(()),
                };
                match is_ready {
                    Ok(()) if stdout.is_some() => self.now_ready(),
                    // It can never say that it is ready. Most likely it ends, and its exit code says more.
                    Ok(()) => {
                        let ended = tokio::time::timeout(DRAIN, process.wait()).await;
                        let closed = "the command closed its standard output before it was ready";
                        self.fail(ended.map_or_else(|_| closed.to_owned(), early_text));
                    }
                    Err(why) => self.fail(why),
                }
            }
            State::Ready(command, _) => {
                let BotProcess { process, stdout, tail, .. } = &mut **command;
                let status = tokio::select! {
                    status = process.wait() => status,
                    never = read_on(stdout, tail) => match never {},
                    () = tokio::time::sleep(REAP_EVERY) => {
                        process.bury_orphans();
                        return Ok(());
                    }
                };
                self.fail(status.map_or_else(|error| error.to_string(), lost_text));
            }
            State::Clearing(command) => {
                command.clear(DRAIN).await;
                if let (Some(folders), Some(folder)) = (self.folders, command.folder.clone())
                    && let Err(error) = folders.remove(folder).await
                {
                    log!("{error}");
                }
                self.cleared()?;
            }
        }
        Ok(())
    }

    fn start(&mut self) -> Result<(), GaveUp> {
        let folder = match self.folders.map(Folders::make).transpose() {
            Ok(folder) => folder,
            Err(error) => return Err(self.give_up(error.to_string(), String::new())),
        };
        match BotProcess::spawn(self.command, None, folder.clone()) {
            Ok(command) => {
                log!("command started ahead as process {}", command.process.id());
                let deadline = Instant::now() + self.settings.ready_timeout;
                self.state = State::Starting(Box::new(command), deadline);
            }
            Err(error) => {
                // It is empty.
                let _ = folder.map(std::fs::remove_dir);
                self.failures += 1;
                self.pause_after(error.to_string(), String::new())?;
            }
        }
        Ok(())
    }

    fn now_ready(&mut self) {
        if let State::Starting(command, _) = self.replace(State::Down(Instant::now())) {
            log!("command ready: process {}", command.process.id());
            self.failed = None;
            self.state = State::Ready(command, Instant::now());
        }
    }

    /// Counts a failure. The processes of the command are killed in the next step.
    fn fail(&mut self, why: String) {
        // A command that was ready for long has shown that the next one can be, too.
        if matches!(&self.state, State::Ready(_, since) if since.elapsed() > PROVEN_AFTER) {
            self.failures = 0;
        }
        self.failures += 1;
        self.failed = Some(why);
        self.clear_next();
    }

    fn clear_next(&mut self) {
        self.state = match self.replace(State::Down(Instant::now())) {
            State::Starting(command, _) | State::Ready(command, _) => State::Clearing(command),
            other => other,
        };
    }

    /// Nothing of the command runs any more.
    fn cleared(&mut self) -> Result<(), GaveUp> {
        let State::Clearing(command) = self.replace(State::Down(Instant::now())) else { return Ok(()) };
        match self.failed.take() {
            Some(why) => self.pause_after(why, command.tail.last_lines(TOLD_LINES)),
            None => Ok(()),
        }
    }

    fn pause_after(&mut self, why: String, last_lines: String) -> Result<(), GaveUp> {
        log!("{why} ({} of {MOST_FAILURES})", self.failures);
        if self.failures >= MOST_FAILURES {
            return Err(self.give_up(why, last_lines));
        }
        self.state = State::Down(Instant::now() + FIRST_PAUSE * 2_u32.pow(self.failures - 1));
        Ok(())
    }

    fn give_up(&mut self, why: String, last_lines: String) -> GaveUp {
        let gave_up = GaveUp { why, last_lines };
        self.gave_up = Some(gave_up.clone());
        gave_up
    }

    fn replace(&mut self, state: State) -> State {
        std::mem::replace(&mut self.state, state)
    }
}

/// Reads the output of a command that waits for its meeting, for as long as it waits.
async fn read_on(stdout: &mut Option<Lines<ChildStdout>>, tail: &Tail) -> Infallible {
    pipes::read_ahead(stdout, tail, |_| false).await;
    std::future::pending().await
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn early_text(status: std::io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => format!("{} before it was ready", child::exit_text(status)),
        Err(error) => format!("the command was lost: {error}"),
    }
}

fn lost_text(status: ExitStatus) -> String {
    format!("{} while it waited for a meeting", child::exit_text(status))
}
