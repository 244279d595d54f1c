//! The agent of a slot that starts before its bots: it waits for one bot after another and runs each. With prewarm it
//! waits for a bot only while the bot's command is ready.

use std::process::ExitCode;
use std::time::Duration;

use reqwest::Client;

use crate::assignment::{AssignmentPoller, BotData, NotReady, UnknownSlot};
use crate::bot_run::{BotStart, RunLocation, Shutdown, live};
use crate::log::log;
use crate::options::{Options, Prewarm};
use crate::prewarm::{GaveUp, Prewarmer};

/// How long to wait for the end of an agent that has had its last bot. If the pool's settings have changed meanwhile,
/// there may be a next bot after all.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// How long to try to report that no command gets ready, after the bot that it failed.
const LAST_REPORT: Duration = Duration::from_secs(10);

/// Why no bot comes any more.
#[derive(Debug, thiserror::Error)]
enum NoMoreBots {
    #[error(transparent)]
    UnknownSlot(#[from] UnknownSlot),
    #[error(transparent)]
    GaveUp(#[from] GaveUp),
}

/// Runs one bot after another.
pub async fn serve(http: &Client, options: &Options, mut waiting: AssignmentPoller, shutdown: Shutdown) -> ExitCode {
    let mut prewarmer = options.prewarm.map(|settings: Prewarm| Prewarmer::in_slot(&options.command, settings));
    let code = loop {
        let next = tokio::select! {
            biased;
            () = asked_to_end(&shutdown) => {
                log!("ends");
                break ExitCode::SUCCESS;
            }
            next = next_bot(http, &mut waiting, prewarmer.as_mut()) => next,
        };
        let data = match next {
            Ok(data) => data,
            Err(error) => {
                log!("{error}");
                // The server knows that the slot failed, so nothing has to start this agent again.
                break if matches!(error, NoMoreBots::GaveUp(_)) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            }
        };
        if prewarmer.as_ref().is_some_and(|prewarmer| !prewarmer.is_ready()) {
            log!("bot {}: waits until a command is ready", data.bot_id);
        }
        let taken = match &mut prewarmer {
            None => None,
            Some(prewarmer) => Some(tokio::select! {
                biased;
                () = asked_to_end(&shutdown) => None,
                taken = prewarmer.take_for(&data) => Some(taken),
            }),
        };
        let gave_up = match &taken {
            Some(Some(Err(gave_up))) => Some(gave_up.clone()),
            _ => None,
        };
        let start = taken.map_or(BotStart::Spawn, BotStart::ahead);
        live(http, options, data, start, RunLocation::slot(), |_| {}, shutdown.clone()).await;
        if let Some(gave_up) = gave_up {
            // The next bot would fail in the same way.
            let report = NotReady::of(&gave_up);
            let _ = tokio::time::timeout(LAST_REPORT, waiting.report_not_ready(http, &report)).await;
            break ExitCode::SUCCESS;
        }
        // A command for a bot that never comes would open a browser in vain, among the files of the last bot.
        if prewarmer.is_some() && waiting.had_last_bot {
            let _ = tokio::time::timeout(ENDED_WITHIN, asked_to_end(&shutdown)).await;
        }
    };
    if let Some(prewarmer) = prewarmer {
        prewarmer.end().await;
    }
    code
}

async fn asked_to_end(shutdown: &Shutdown) {
    if shutdown.clone().wait_for(|request| request.times > 0).await.is_err() {
        std::future::pending().await
    }
}

/// Waits for the next bot; with prewarm, only while a command is ready.
async fn next_bot(
    http: &Client,
    waiting: &mut AssignmentPoller,
    prewarmer: Option<&mut Prewarmer<'_>>,
) -> Result<BotData, NoMoreBots> {
    let Some(prewarmer) = prewarmer else {
        log!("waits for a bot");
        return Ok(waiting.next(http).await?);
    };
    loop {
        if let Err(gave_up) = prewarmer.ready().await {
            // A bot that the slot was started for has to fail with the same reason.
            if waiting.report_not_ready(http, &NotReady::of(&gave_up)).await?
                && let Some(data) = waiting.assigned(http).await?
            {
                return Ok(data);
            }
            return Err(gave_up.into());
        }
        log!("waits for a bot");
        let lost = tokio::select! {
            data = waiting.next(http) => return Ok(data?),
            lost = prewarmer.lost() => lost,
        };
        let report = NotReady { message: lost, last_lines: None, failed: false };
        // The next command starts meanwhile.
        let has_bot = tokio::select! {
            has_bot = waiting.report_not_ready(http, &report) => has_bot?,
            _ = prewarmer.keep_ready() => false,
        };
        // The slot may have got a bot in the same moment. That bot waits until a command is ready again.
        if has_bot && let Some(data) = waiting.assigned(http).await? {
            return Ok(data);
        }
    }
}
