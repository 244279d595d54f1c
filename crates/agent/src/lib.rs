//! The agent runs the bot's command in a slot and makes the calls to Greenroom for it. So a bot needs no code for
//! tokens, retries and heartbeats. The bot prints lines, reads lines, and ends.

mod assignment;
mod bot_process;
mod bot_run;
mod callbacks;
mod child;
mod commands;
mod demo;
mod http;
mod lines;
mod log;
mod memory;
mod options;
mod pipes;
mod prewarm;
mod probe;
mod runner;
mod screenshots;
mod slot;
mod steps;
mod tail;

use std::ffi::OsString;
use std::process::ExitCode;

use assignment::Source;
use bot_run::{BotStart, EndRequest, RunLocation, Shutdown, live};
pub use demo::play as play_demo_bot;
use log::log;
use nix::sys::signal::Signal;
use options::{Asked, Options, RunnerOptions};
use runner::Settings;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

const MISUSED: u8 = 2;

/// The task of this agent.
#[derive(Debug)]
enum Work {
    Slot(Options, Source),
    Runner(RunnerOptions, Settings),
}

/// Runs the agent with these arguments, which do not include the program name. With the only argument `demo-bot` it runs
/// the demo bot, as the agent itself does for a probe.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    if matches!(&arguments[..], [only] if only == demo::COMMAND) {
        return demo::play();
    }
    // This comes first, before any other process can read the environment.
    child::hide();
    let work = match options::parse(arguments, |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
    {
        Ok(Asked::Run(options)) => Source::from_environment().map(|source| Work::Slot(options, source)),
        Ok(Asked::Runner(options)) => Settings::from_environment().map(|settings| Work::Runner(options, settings)),
        Ok(Asked::Help) => return print(options::HELP),
        Ok(Asked::Version) => return print(concat!("greenroom-agent ", env!("CARGO_PKG_VERSION"), "\n")),
        Err(error) => {
            log!("{error}");
            return ExitCode::from(MISUSED);
        }
    };
    let work = match work {
        Ok(work) => work,
        Err(error) => {
            log!("{error}");
            return ExitCode::from(MISUSED);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            log!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(serve(work));
    // Its threads may still resolve a name or write to an output that no process reads.
    runtime.shutdown_background();
    code
}

fn print(text: &str) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn serve(work: Work) -> ExitCode {
    let (shutdown, http) = match (shutdown(), http::client()) {
        (Ok(shutdown), Ok(http)) => (shutdown, http),
        (Err(error), _) => {
            log!("cannot listen for signals: {error}");
            return ExitCode::FAILURE;
        }
        (_, Err(error)) => {
            log!("cannot speak HTTP: {error}");
            return ExitCode::FAILURE;
        }
    };
    child::adopt_orphans();
    match work {
        Work::Slot(options, Source::Given(data)) => {
            let code = live(&http, &options, *data, BotStart::Spawn, RunLocation::slot(), |_| {}, shutdown).await;
            ExitCode::from(u8::try_from(code & 0xFF).unwrap_or(u8::MAX))
        }
        Work::Slot(options, Source::Server(waiting)) => slot::serve(&http, &options, waiting, shutdown).await,
        Work::Runner(options, settings) => runner::serve(http, options, settings, shutdown).await,
    }
}

/// Counts the requests to end the agent.
fn shutdown() -> std::io::Result<Shutdown> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // The default action would end only the agent, because the bot has its own process group.
    let mut hangup = signal(SignalKind::hangup())?;
    let (sender, receiver) = watch::channel(EndRequest::default());
    tokio::spawn(async move {
        loop {
            let signal = tokio::select! {
                Some(()) = terminate.recv() => Signal::SIGTERM,
                Some(()) = interrupt.recv() => Signal::SIGINT,
                Some(()) = hangup.recv() => Signal::SIGHUP,
                else => return,
            };
            sender.send_modify(|request| *request = EndRequest { times: request.times + 1, signal: Some(signal) });
        }
    });
    Ok(receiver)
}
