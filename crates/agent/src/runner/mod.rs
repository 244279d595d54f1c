//! The agent of a machine in a runner pool. It registers the machine, runs one bot after another, each in its own
//! folder, and releases the runner after each bot. When the machine must end, the agent runs the end command.

mod folder;
mod heartbeat;
mod leftovers;
mod link;
mod machine;
mod register;
mod session;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use reqwest::Client;

use crate::bot_run::Shutdown;
use crate::http::{self, Backoff};
use crate::log::log;
use crate::options::{Prewarm, RunnerOptions};
use crate::prewarm::{GaveUp, Prewarmer};
pub use folder::Folders;
use leftovers::LostBot;
pub use leftovers::MARK;
use link::Link;
use machine::Metadata;
pub use register::Settings;
use register::Unregistered;
use session::Session;

/// How long to try to report that the machine ends. The machine ends even if the report fails.
const FAREWELL: Duration = Duration::from_secs(5);

/// Why a runner takes no more bots.
#[derive(Debug)]
pub enum Over {
    /// The machine must end.
    Machine(String),
    /// Only the agent ends, or AWS ends the machine.
    Agent(String),
    /// The server does not know this registration any more.
    Unknown(String),
    /// No command is ready. The runner registers again when one is.
    NotReady(String),
}

/// The parts that stay the same across registrations.
#[derive(Debug)]
struct Runner {
    http: Client,
    options: RunnerOptions,
    instance: String,
    folders: Folders,
    metadata: Metadata,
}

/// How the agent of a runner ends.
#[derive(Debug)]
enum Finish {
    /// The agent was asked to end, or AWS ends the machine.
    Leave,
    /// The agent cannot work on this machine.
    Failure,
    EndMachine,
}

/// Runs bots until the machine must end, or the agent is asked to end.
pub async fn serve(http: Client, options: RunnerOptions, settings: Settings, mut shutdown: Shutdown) -> ExitCode {
    let opened = tokio::select! {
        () = asked(&mut shutdown) => return leave(),
        opened = open(http, options, &settings) => opened,
    };
    let (runner, lost) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            log!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut prewarmer = None;
    let finish = runner.serve(&settings, &mut prewarmer, lost, &mut shutdown).await;
    if let Some(prewarmer) = prewarmer {
        prewarmer.end().await;
    }
    match finish {
        Finish::Leave => ExitCode::SUCCESS,
        Finish::Failure => ExitCode::FAILURE,
        Finish::EndMachine => runner.end_machine(&mut shutdown).await,
    }
}

async fn open(
    http: Client,
    options: RunnerOptions,
    settings: &Settings,
) -> Result<(Runner, Option<LostBot>), Box<dyn Error>> {
    let metadata = Metadata::new(http::direct_client()?, settings.metadata.clone());
    let (folders, lost) = Folders::open(settings.folder.clone()).await?;
    let instance = match &settings.instance {
        Some(instance) => instance.clone(),
        None => metadata.instance_id().await?,
    };
    Ok((Runner { http, options: settled(options), instance, folders, metadata }, lost))
}

/// Makes relative paths absolute, because bots run in their own folders.
fn settled(mut options: RunnerOptions) -> RunnerOptions {
    let program = Path::new(&options.bot.command.program);
    if program.components().count() > 1
        && let Ok(absolute) = std::path::absolute(program)
    {
        options.bot.command.program = absolute.into();
    }
    options
}

impl Runner {
    /// Registers the machine and runs bots, again and again when the server forgets the registration.
    async fn serve<'a>(
        &'a self,
        settings: &Settings,
        prewarmer: &mut Option<Prewarmer<'a>>,
        mut lost: Option<LostBot>,
        shutdown: &mut Shutdown,
    ) -> Finish {
        let mut backoff = Backoff::default();
        let mut last_link: Option<Link> = None;
        loop {
            // A registered runner may get a bot at once, so its command is ready before.
            let ready = tokio::select! {
                () = asked(shutdown) => return self.leave_unregistered(last_link).await,
                ready = self.make_ready(settings, prewarmer) => ready,
            };
            if let Err(gave_up) = ready {
                return self.never_ready(&gave_up, last_link).await;
            }
            let registered = tokio::select! {
                () = asked(shutdown) => return self.leave_unregistered(last_link).await,
                registered = register::register(&self.http, settings, &self.instance) => registered,
                gave_up = keep_ready(prewarmer.as_mut()) => return self.never_ready(&gave_up, last_link).await,
            };
            // The report comes after the registration. Before it, the server would take the bot's end for the end of a
            // silent machine.
            if let Some(lost) = lost.take() {
                lost.report(&self.http).await;
            }
            let registration = match registered {
                Ok(registration) => registration,
                Err(Unregistered::Ended(why)) => {
                    log!("the machine is to end: {why}");
                    return Finish::EndMachine;
                }
                Err(refused) => {
                    log!("{refused}");
                    return Finish::Failure;
                }
            };
            log!("runner {} of pool {}: registered", self.instance, registration.pool);
            let link = Link::new(self.http.clone(), settings.url.clone(), registration.token.clone());
            let session = Session::begin(self, link.clone(), &registration, shutdown.clone());
            let over = session.run(prewarmer).await;
            match over {
                Over::Unknown(why) => {
                    log!("registers again: {why}");
                    tokio::time::sleep(backoff.next(None)).await;
                }
                Over::NotReady(why) => log!("takes no bot until a command is ready: {why}"),
                Over::Agent(why) => {
                    log!("ends: {why}");
                    link.end(&why, FAREWELL).await;
                    return Finish::Leave;
                }
                Over::Machine(why) => {
                    log!("the machine is to end: {why}");
                    link.end(&why, FAREWELL).await;
                    return Finish::EndMachine;
                }
            }
            last_link = Some(link);
        }
    }

    /// Waits until a command is ready, if the options or the pool's configuration say that commands are started ahead.
    async fn make_ready<'a>(
        &'a self,
        settings: &Settings,
        prewarmer: &mut Option<Prewarmer<'a>>,
    ) -> Result<(), GaveUp> {
        let prewarm = match self.options.bot.prewarm {
            Some(prewarm) => Some(prewarm),
            None => register::prewarm(&self.http, settings).await,
        };
        self.follow(prewarm, prewarmer).await;
        match prewarmer {
            Some(prewarmer) => prewarmer.ready().await,
            None => Ok(()),
        }
    }

    /// Starts commands ahead from now on, or no longer, or with other settings.
    async fn follow<'a>(&'a self, prewarm: Option<Prewarm>, prewarmer: &mut Option<Prewarmer<'a>>) {
        match (prewarm, prewarmer.as_mut()) {
            (Some(prewarm), Some(prewarmer)) => prewarmer.follow(prewarm),
            (Some(prewarm), None) => {
                *prewarmer = Some(Prewarmer::on_runner(&self.options.bot.command, prewarm, &self.folders));
            }
            (None, Some(_)) => {
                if let Some(prewarmer) = prewarmer.take() {
                    prewarmer.end().await;
                }
            }
            (None, None) => {}
        }
    }

    /// The command failed too often. A machine that was never registered is left as it is, so that a person can look at
    /// it. The server ends machines that do not register.
    async fn never_ready(&self, gave_up: &GaveUp, last_link: Option<Link>) -> Finish {
        log!("the runner is not registered: {gave_up}");
        match last_link {
            Some(link) => {
                link.end(&gave_up.message(), FAREWELL).await;
                Finish::EndMachine
            }
            None => Finish::Failure,
        }
    }

    /// The agent was asked to end while the runner had no command that was ready.
    async fn leave_unregistered(&self, last_link: Option<Link>) -> Finish {
        if let Some(link) = last_link {
            link.end("the agent was asked to end", FAREWELL).await;
        }
        Finish::Leave
    }

    async fn end_machine(&self, shutdown: &mut Shutdown) -> ExitCode {
        machine::end(self.options.end_command.as_ref(), shutdown).await
    }
}

/// Keeps a command ready, and returns only if that fails for good.
async fn keep_ready(prewarmer: Option<&mut Prewarmer<'_>>) -> GaveUp {
    match prewarmer {
        Some(prewarmer) => prewarmer.keep_ready().await,
        None => std::future::pending().await,
    }
}

fn leave() -> ExitCode {
    log!("ends");
    ExitCode::SUCCESS
}

async fn asked(shutdown: &mut Shutdown) {
    if shutdown.wait_for(|request| request.times > 0).await.is_err() {
        std::future::pending().await
    }
}
