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

use crate::http::{self, Backoff};
use crate::life::Shutdown;
use crate::log::log;
use crate::options::RunnerOptions;
use folder::Folders;
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

/// Runs bots until the machine must end, or the agent is asked to end.
pub async fn serve(http: Client, options: RunnerOptions, settings: Settings, mut shutdown: Shutdown) -> ExitCode {
    let (runner, mut lost) = tokio::select! {
        () = asked(&mut shutdown) => return leave(),
        opened = open(http, options, &settings) => match opened {
            Ok(opened) => opened,
            Err(error) => {
                log!("{error}");
                return ExitCode::FAILURE;
            }
        },
    };
    let mut backoff = Backoff::default();
    loop {
        let registered = tokio::select! {
            () = asked(&mut shutdown) => return leave(),
            registered = register::register(&runner.http, &settings, &runner.instance) => registered,
        };
        // The report comes after the registration. Before it, the server would take the bot's end for the end of a
        // silent machine.
        if let Some(lost) = lost.take() {
            lost.report(&runner.http).await;
        }
        let registration = match registered {
            Ok(registration) => registration,
            Err(Unregistered::Ended(why)) => {
                log!("the machine is to end: {why}");
                return runner.end_machine(&mut shutdown).await;
            }
            Err(refused) => {
                log!("{refused}");
                return ExitCode::FAILURE;
            }
        };
        log!("runner {} of pool {}: registered", runner.instance, registration.pool);
        let link = Link::new(runner.http.clone(), settings.url.clone(), registration.token.clone());
        match Session::begin(&runner, &link, &registration, shutdown.clone()).run().await {
            Over::Unknown(why) => {
                log!("registers again: {why}");
                tokio::time::sleep(backoff.next(None)).await;
            }
            Over::Agent(why) => {
                log!("ends: {why}");
                link.end(&why, FAREWELL).await;
                return ExitCode::SUCCESS;
            }
            Over::Machine(why) => {
                log!("the machine is to end: {why}");
                link.end(&why, FAREWELL).await;
                return runner.end_machine(&mut shutdown).await;
            }
        }
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
    async fn end_machine(&self, shutdown: &mut Shutdown) -> ExitCode {
        machine::end(self.options.end_command.as_ref(), shutdown).await
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
