//! Waiting for a bot: `bots start --wait`, `bots watch`, `bots stop --wait`, `pools probe --wait`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::client::Client;
use crate::error::{CliError, Exit};
use crate::follow::{self, Followed, is_ended};
use crate::pages;
use crate::show::{Output, text};
use crate::state_lines::StateLines;
use crate::stream::Reconnect;

/// How often the command asks what a bot waits for.
const ASK: Duration = Duration::from_millis(1_500);
const DRAW: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum Until {
    /// The bot is in its meeting.
    Active,
    /// The bot has ended.
    #[default]
    Ended,
}

#[derive(Clone, Copy, Debug, Default, Args)]
pub struct Timeout {
    /// Stop waiting after so long, with exit code 8: 30s, 5m, 2h. The bot goes on.
    #[arg(long, value_name = "DURATION", value_parser = crate::show::parse_duration)]
    pub timeout: Option<Duration>,
}

/// What is learned about a bot that waits.
enum Detail {
    WaitingFor(String),
    Pulls(Vec<Value>),
}

/// Follows a bot until it is where it is waited for, and returns it. An error if it failed, or did not get there.
pub async fn wait(
    client: &Client,
    out: &Output,
    bot: &str,
    until: Until,
    Timeout { timeout }: Timeout,
) -> Result<Value, CliError> {
    let mut lines = StateLines::new(out);
    let mut events = follow::bot(client, bot);
    let (status, statuses) = watch::channel(String::new());
    let (sender, mut details) = mpsc::channel(4);
    if lines.is_live() {
        tokio::spawn(ask(client.clone(), bot.to_owned(), statuses, sender));
    }
    let mut draw = tokio::time::interval(DRAW);
    let mut was_active = false;
    let deadline = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    // Made once: a signal between two turns of the loop is not lost.
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(deadline, interrupt);
    loop {
        tokio::select! {
            followed = events.recv() => match followed {
                Some(Followed::Event(event)) => {
                    lines.event(&event)?;
                    let to = event["to"].as_str().unwrap_or_default();
                    if !to.is_empty() {
                        let _ = status.send(to.to_owned());
                    }
                    was_active |= to == "active";
                    if until == Until::Active && was_active {
                        break;
                    }
                }
                Some(Followed::Lost(message)) => lines.note(&format!("{message}; trying again")),
                Some(Followed::Failed(error)) => {
                    lines.finish();
                    return Err(error);
                }
                // Nothing more will happen to it.
                None => break,
            },
            Some(detail) = details.recv() => match detail {
                Detail::WaitingFor(what) => lines.detail(&what),
                Detail::Pulls(pulls) => lines.pulls(&pulls),
            },
            _ = draw.tick() => lines.draw(),
            _ = &mut interrupt => {
                lines.finish();
                return Err(goes_on(Exit::Interrupted, "stopped waiting; the bot goes on", bot));
            }
            () = &mut deadline => {
                lines.finish();
                return Err(goes_on(Exit::TimedOut, "the time to wait is over; the bot goes on", bot));
            }
        }
    }
    lines.finish();
    drop(lines);
    let answer = tokio::select! {
        answer = read(client, bot) => answer?,
        _ = &mut interrupt => return Err(unread(Exit::Interrupted, "stopped waiting", bot)),
        () = &mut deadline => return Err(unread(Exit::TimedOut, "the time to wait is over", bot)),
    };
    if out.json {
        out.json_line(&json!({"bot": answer["bot"]}))?;
    }
    fate(out, &answer["bot"], until == Until::Ended || was_active)?;
    Ok(answer)
}

/// The bot as it is now. The server may be away for a moment, like while events are followed.
async fn read(client: &Client, bot: &str) -> Result<Value, CliError> {
    let mut reconnect = Reconnect::default();
    loop {
        match client.get(&client.bots(&[bot]), &[]).await {
            Ok(answer) => return Ok(answer),
            Err(error) => reconnect.wait(Some(error)).await?,
        }
    }
}

fn unread(exit: Exit, message: &str, bot: &str) -> CliError {
    CliError::new(exit, message).next(format!("See how it is with `greenroom bots show {bot}`."))
}

fn goes_on(exit: Exit, message: &str, bot: &str) -> CliError {
    CliError::new(exit, message)
        .next(format!("Follow it with `greenroom bots watch {bot}`, or stop it with `greenroom bots stop {bot}`."))
}

/// Says how a bot ended. A bot that failed, or did not get where it was waited for, is an error.
fn fate(out: &Output, bot: &Value, got_there: bool) -> Result<(), CliError> {
    let (id, status, reason) = (text(&bot["id"]), text(&bot["status"]), text(&bot["reason"]));
    if status == "failed" {
        let mut message = format!("the bot failed: {reason}");
        if !text(&bot["error"]).is_empty() {
            message = format!("{message}: {}", text(&bot["error"]));
        }
        if let Some(fault) = bot["fault"].as_str().filter(|fault| *fault != "none") {
            message = format!("{message} (fault: {fault})");
        }
        return Err(
            CliError::new(Exit::BotFailed, message).next(format!("See why with `greenroom bots explain {id}`."))
        );
    }
    if !got_there {
        return Err(CliError::new(Exit::BotFailed, format!("the bot ended before it was active: {reason}"))
            .next(format!("See why with `greenroom bots explain {id}`.")));
    }
    if out.is_terminal && !out.json {
        out.note(&match is_ended(&status) {
            true => format!("The bot has completed: {reason}."),
            false => "The bot is in its meeting.".to_owned(),
        });
    }
    Ok(())
}

/// Asks what a bot waits for as long as it is on its way, for the lines of a terminal.
async fn ask(client: Client, bot: String, statuses: watch::Receiver<String>, details: mpsc::Sender<Detail>) {
    while !details.is_closed() {
        tokio::time::sleep(ASK).await;
        let status = statuses.borrow().clone();
        if !matches!(status.as_str(), "queued" | "reserved" | "deploying" | "starting" | "awaiting_admission") {
            continue;
        }
        if let Ok(explained) = client.get(&client.bots(&[&bot, "explain"]), &[]).await
            && *statuses.borrow() == status
            && let Some(what) = explained["waiting_for"].as_str()
        {
            let _ = details.send(Detail::WaitingFor(format!("waits for {what}"))).await;
        }
        if client.is_operator()
            && let Ok(deployments) = client.get(&["admin", "deployments"], &[]).await
        {
            let _ = details.send(Detail::Pulls(pages::rows(&deployments, "pulls").to_vec())).await;
        }
    }
}
