//! The work of a registered runner: wait for a bot, acknowledge it, run it, release the runner, and repeat. The agent
//! starts nothing and sends no callbacks for a bot before the server confirms that the bot belongs to this runner.

use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::heartbeat::Heartbeat;
use super::link::{Acknowledged, Link, NotReady, Run};
use super::register::Registration;
use super::{Over, Runner, keep_ready};
use crate::bot_run::{BotStart, EndRequest, RunLocation, Shutdown, Task, live, task};
use crate::http::Backoff;
use crate::log::log;
use crate::prewarm::{GaveUp, Prewarmer, Unready};

/// The server terminates a runner that is not released in time after its bot. If the next command needs longer, the
/// runner is released without it, and registers again when it is ready.
const READY_BEFORE_RELEASE: Duration = Duration::from_secs(10);
/// When to ask again for the replacement of a command that is too old, and for the bot of a runner without a command.
const ASK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Session<'a> {
    runner: &'a Runner,
    link: Link,
    shutdown: Shutdown,
    heartbeat: Heartbeat,
    /// Whether AWS is about to take the machine back.
    notice: watch::Receiver<bool>,
    _looking: Option<Task<()>>,
    orphaned_after: Duration,
    /// Since when the runner has no bot.
    idle_since: Instant,
}

impl<'a> Session<'a> {
    pub fn begin(runner: &'a Runner, link: Link, registration: &Registration, shutdown: Shutdown) -> Self {
        let (notice, looking) = runner.metadata.notice(registration.is_spot);
        Self {
            runner,
            heartbeat: Heartbeat::begin(link.clone(), registration.heartbeat_interval),
            link,
            shutdown,
            notice,
            _looking: looking,
            orphaned_after: registration.orphaned_after,
            idle_since: Instant::now(),
        }
    }

    /// Runs one bot after another, until there is a reason to stop.
    pub async fn run(mut self, prewarmer: &mut Option<Prewarmer<'a>>) -> Over {
        let mut declined = Backoff::default();
        let mut pause = Duration::ZERO;
        log!("waits for a bot");
        loop {
            let run = match self.unless_over(self.next(pause, prewarmer.as_mut())).await {
                Ok(run) => run,
                Err(over) => return over,
            };
            let run_id = run.id.clone();
            match self.serve(run, prewarmer).await {
                Ok(Acknowledged::Yes) => {
                    declined = Backoff::default();
                    pause = Duration::ZERO;
                    log!("waits for a bot");
                }
                Ok(Acknowledged::No(why)) => {
                    log!("run {run_id} is not run: {why}");
                    // The server may offer the same run again at once.
                    pause = declined.next(None);
                }
                Err(over) => return over,
            }
        }
    }

    /// Waits for the next bot, after a pause; with prewarm, only while a command is ready.
    async fn next(&self, pause: Duration, prewarmer: Option<&mut Prewarmer<'_>>) -> Result<Run, Over> {
        let Some(prewarmer) = prewarmer else {
            tokio::time::sleep(pause).await;
            return self.link.next().await;
        };
        let begun = Instant::now();
        let mut renews_at = begun;
        loop {
            let next = async {
                tokio::time::sleep_until(begun + pause).await;
                self.link.next().await
            };
            let unready = tokio::select! {
                next = next => return next,
                unready = prewarmer.unready(renews_at) => unready,
            };
            match unready {
                Unready::Lost(why) => {
                    if let Some(run) = self.without_command(&why, prewarmer).await? {
                        return Ok(run);
                    }
                }
                Unready::Old => {
                    let why = "its command is too old";
                    let reported = tokio::select! {
                        reported = self.link.not_ready(why, true) => reported?,
                        why = prewarmer.lost() => {
                            // The server may have heard the question.
                            self.link.not_ready(&why, false).await?
                        }
                    };
                    match reported {
                        NotReady::Unregistered => {
                            prewarmer.renew();
                            return Err(Over::NotReady(why.to_owned()));
                        }
                        NotReady::Unsupported => prewarmer.renew(),
                        // Its bot comes next. A command that is too old by then is replaced before.
                        NotReady::Assigned | NotReady::Later => renews_at = Instant::now() + ASK_AGAIN,
                    }
                }
            }
        }
    }

    /// Reports that no command is ready, while the next one starts. Returns the bot that the runner got in the same
    /// moment; it waits until a command is ready. `None` if a command is ready again.
    async fn without_command(&self, why: &str, prewarmer: &mut Prewarmer<'_>) -> Result<Option<Run>, Over> {
        let machine = |gave_up: GaveUp| Over::Machine(gave_up.to_string());
        loop {
            // The report is not given up when a command is ready: the server may have heard it.
            let reported = tokio::select! {
                reported = self.link.not_ready(why, false) => reported?,
                gave_up = prewarmer.keep_ready() => return Err(machine(gave_up)),
            };
            let wait = match reported {
                NotReady::Unregistered => return Err(Over::NotReady(why.to_owned())),
                NotReady::Assigned | NotReady::Later => Some(ASK_AGAIN),
                // Bots come, and wait until a command is ready.
                NotReady::Unsupported => None,
            };
            let over = async {
                match wait {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                run = self.link.next() => return run.map(Some),
                gave_up = prewarmer.keep_ready() => return Err(machine(gave_up)),
                () = over => {}
            }
            // The claim of the runner is over without a bot.
            if prewarmer.is_ready() {
                return Ok(None);
            }
        }
    }

    /// Runs the bot, if it belongs to this runner, and releases the runner.
    async fn serve(&mut self, run: Run, prewarmer: &mut Option<Prewarmer<'a>>) -> Result<Acknowledged, Over> {
        let folders = &self.runner.folders;
        let unclean = |error: super::folder::FolderError| Over::Machine(error.to_string());
        // The folder comes before the acknowledgement: a machine without disk space must leave the bot to another
        // runner. A command that was started ahead has its folder, and a probe runs another command.
        let mut folder = match prewarmer {
            Some(_) if !run.data.is_probe => None,
            _ => Some(folders.make().map_err(unclean)?),
        };
        match self.unless_over(self.link.acknowledge(&run.id)).await {
            Ok(Acknowledged::Yes) => {}
            other => {
                if let Some(folder) = folder {
                    folders.remove(folder).await.map_err(unclean)?;
                }
                return other;
            }
        }
        self.heartbeat.run.send_replace(Some(run.id.clone()));
        let start = match prewarmer.as_mut() {
            None => BotStart::Spawn,
            Some(prewarmer) => {
                BotStart::ahead(self.unless_over(async { Ok(prewarmer.take_for(&run.data).await) }).await.ok())
            }
        };
        // The record has the bot's token. A command that waits for a meeting could read it, so it is written only when
        // the bot has its command.
        let mut record = folders.record(&run.data).map_err(unclean)?;
        if let BotStart::Ready(process) = &start {
            folder.clone_from(&process.folder);
        }
        let location = RunLocation { id: Some(self.runner.instance.clone()), folder: folder.clone(), sends_log: true };
        let (shutdown, _asking) = self.shutdown_of(run.id.clone());
        let note = |process| record.note(process);
        live(&self.runner.http, &self.runner.options.bot, run.data, start, location, note, shutdown).await;
        record.remove();
        self.idle_since = Instant::now();
        // The next bot must not find this bot's files. A machine that cannot remove them takes no more bots.
        if let Some(folder) = folder {
            folders.remove(folder).await.map_err(unclean)?;
        }
        // A free runner may get a bot at once, so its next command should be ready before.
        let is_ready = self.unless_over(self.ready_for_next(prewarmer)).await?;
        let release = async {
            tokio::select! {
                released = self.link.release(&run.id, is_ready) => released,
                gave_up = keep_ready(prewarmer.as_mut()) => Err(Over::Machine(gave_up.to_string())),
            }
        };
        let is_registered = self.unless_over(release).await?;
        self.heartbeat.run.send_replace(None);
        match is_registered {
            true => Ok(Acknowledged::Yes),
            false => Err(Over::NotReady("the next command needs longer".to_owned())),
        }
    }

    /// Waits for a while until the command for the next bot is ready, with the settings that the pool has now. Returns
    /// whether it is.
    async fn ready_for_next(&self, prewarmer: &mut Option<Prewarmer<'a>>) -> Result<bool, Over> {
        if self.runner.options.bot.prewarm.is_none()
            && let Ok(prewarm) = self.link.prewarm().await
        {
            self.runner.follow(prewarm, prewarmer).await;
        }
        let Some(prewarmer) = prewarmer else { return Ok(true) };
        match tokio::time::timeout(READY_BEFORE_RELEASE, prewarmer.ready()).await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(gave_up)) => Err(Over::Machine(gave_up.to_string())),
            Err(_) => Ok(false),
        }
    }

    /// Does the work, unless there is a reason to take no more bots.
    async fn unless_over<T>(&self, work: impl Future<Output = Result<T, Over>>) -> Result<T, Over> {
        tokio::select! {
            biased;
            over = self.over() => Err(over),
            done = work => done,
        }
    }

    /// Waits for a reason to take no more bots.
    async fn over(&self) -> Over {
        let (mut shutdown, mut notice) = (self.shutdown.clone(), self.notice.clone());
        let mut heard = self.heartbeat.heard.clone();
        loop {
            if shutdown.borrow_and_update().times > 0 {
                return Over::Agent("the agent was asked to end".to_owned());
            }
            if *notice.borrow_and_update() {
                return Over::Agent("the spot machine is taken back".to_owned());
            }
            let now = heard.borrow_and_update().clone();
            if let Some(why) = now.end {
                return Over::Machine(why);
            }
            if let Some(why) = now.unknown {
                return Over::Unknown(why);
            }
            let orphaned = now.at.max(self.idle_since) + self.orphaned_after;
            if Instant::now() >= orphaned {
                return Over::Machine("the server was away for too long".to_owned());
            }
            tokio::select! {
                Ok(()) = shutdown.changed() => {}
                Ok(()) = notice.changed() => {}
                Ok(()) = heard.changed() => {}
                () = tokio::time::sleep_until(orphaned) => {}
            }
        }
    }

    /// The requests to end the bot of this run: all requests to end the agent, and one request of the server.
    fn shutdown_of(&self, run: String) -> (Shutdown, Task<()>) {
        let (sender, receiver) = watch::channel(EndRequest::default());
        let (mut shutdown, mut heard) = (self.shutdown.clone(), self.heartbeat.heard.clone());
        let polling = task(async move {
            let mut stopped = false;
            loop {
                let stop = {
                    let heard = heard.borrow_and_update();
                    heard.end.is_some() || heard.stop.as_deref() == Some(run.as_str())
                };
                if stop && !stopped {
                    log!("run {run} is to end, says the server");
                    stopped = true;
                }
                let mut request = *shutdown.borrow_and_update();
                if request.times == 0 && stopped {
                    request.times = 1;
                }
                sender.send_if_modified(|said| std::mem::replace(said, request) != request);
                tokio::select! {
                    Ok(()) = shutdown.changed() => {}
                    Ok(()) = heard.changed() => {}
                    else => return,
                }
            }
        });
        (receiver, polling)
    }
}
