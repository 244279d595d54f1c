//! Commands for the bot. Heartbeats deliver and acknowledge commands, and a waiting request delivers them sooner. Both
//! may deliver the same command, so the agent passes each on once, and acknowledges it when the bot has it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};

use crate::bot_run::News;
use crate::callbacks::CallbackClient;
use crate::http::{Backoff, Refusal};
use crate::log::log;

const WAIT: Duration = Duration::from_secs(30);

/// A command in the form that the bot reads, as one line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Command {
    pub id: String,
    pub action: String,
    #[serde(default)]
    pub payload: Value,
}

impl Command {
    /// A command of the agent itself that asks the bot to leave.
    pub fn leave() -> Self {
        Self { id: uuid::Uuid::new_v4().to_string(), action: "leave".to_owned(), payload: json!({}) }
    }

    pub fn is_leave(&self) -> bool {
        self.action == "leave"
    }
}

/// The received commands and their progress.
#[derive(Debug, Default)]
struct Standing {
    seen: HashSet<String>,
    /// Received, but not yet acknowledged to the server.
    open: HashSet<String>,
    /// The bot has them; the next heartbeat acknowledges them.
    heard: Vec<String>,
}

#[derive(Debug, Default)]
pub struct Commands {
    standing: Mutex<Standing>,
    heard: Notify,
    settled: Notify,
    last_beat: Notify,
}

impl Commands {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commands that were not received before.
    fn new_ones(&self, commands: Vec<Command>) -> Vec<Command> {
        let mut standing = self.standing();
        let mut new = Vec::new();
        for command in commands {
            if standing.seen.insert(command.id.clone()) {
                standing.open.insert(command.id.clone());
                new.push(command);
            } else if !standing.open.contains(&command.id) && !standing.heard.contains(&command.id) {
                // The server lost the acknowledgement. The next regular heartbeat repeats it.
                standing.heard.push(command.id);
            }
        }
        new
    }

    /// The bot has received the command.
    pub fn heard(&self, id: String) {
        self.standing().heard.push(id);
        self.heard.notify_one();
    }

    /// Stops heartbeats after the one that may be in progress.
    pub fn stop_beating(&self) {
        self.last_beat.notify_one();
    }

    fn acknowledged(&self, ids: &[String]) {
        let mut standing = self.standing();
        standing.heard.retain(|id| !ids.contains(id));
        standing.open.retain(|id| !ids.contains(id));
        self.settled.notify_waiters();
    }

    /// Waits until all received commands are acknowledged. A request before that would only return the same commands.
    async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            if self.standing().open.is_empty() {
                return;
            }
            settled.await;
        }
    }
}

#[derive(Deserialize)]
struct Brought {
    #[serde(default)]
    status: String,
    #[serde(default)]
    commands: Vec<Command>,
}

/// Passes on the commands of an answer. Returns whether any command was new.
fn hand_on(answer: Value, commands: &Commands, news: &mpsc::UnboundedSender<News>) -> bool {
    let brought: Brought = match serde_json::from_value(answer) {
        Ok(brought) => brought,
        Err(error) => {
            log!("an answer with commands was not understood: {error}");
            return false;
        }
    };
    if matches!(brought.status.as_str(), "completed" | "failed") {
        let _ = news.send(News::Over(format!("heartbeat: the bot's status is {}", brought.status)));
    }
    let new = commands.new_ones(brought.commands);
    let some = !new.is_empty();
    for command in new {
        let _ = news.send(News::Command(command));
    }
    some
}

/// Sends heartbeats: at once, at every interval, and whenever the bot has received a command. A failed heartbeat is not
/// repeated, because the next one contains the same acknowledgements.
pub async fn beat(callbacks: CallbackClient, commands: Arc<Commands>, news: mpsc::UnboundedSender<News>) {
    let mut backoff = Backoff::default();
    loop {
        let acked = commands.standing().heard.clone();
        let body = json!({"connection_id": callbacks.connection_id(), "acked": acked});
        let pause = match callbacks.send(&Method::POST, "heartbeat", &body).await {
            Ok(answer) => {
                backoff.succeeded("heartbeat");
                commands.acknowledged(&acked);
                hand_on(answer, &commands, &news);
                callbacks.heartbeat_interval()
            }
            Err(refusal @ Refusal::Away { .. }) => backoff.after("heartbeat", &refusal),
            Err(refusal) if refusal.ends_assignment() => {
                let _ = news.send(News::Over(format!("heartbeat: {refusal}")));
                return;
            }
            Err(refusal) => {
                log!("heartbeat was refused: {refusal}");
                callbacks.heartbeat_interval()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = commands.heard.notified() => {}
            () = commands.last_beat.notified() => return,
        }
    }
}

/// Requests commands from the server in a loop.
pub async fn wait(callbacks: CallbackClient, commands: Arc<Commands>, news: mpsc::UnboundedSender<News>) {
    let mut backoff = Backoff::default();
    let mut early = Backoff::default();
    loop {
        let begun = Instant::now();
        match callbacks.await_commands(WAIT).await {
            Ok(answer) => {
                backoff.succeeded("commands");
                if hand_on(answer, &commands, &news) || begun.elapsed() > WAIT / 2 {
                    early = Backoff::default();
                } else {
                    // The answer came early and had nothing new. The pause prevents a tight loop of requests.
                    tokio::time::sleep(early.next(None)).await;
                }
                commands.settled().await;
            }
            Err(refusal @ Refusal::Away { .. }) => backoff.wait("commands", &refusal).await,
            Err(refusal) if refusal.ends_assignment() => {
                let _ = news.send(News::Over(format!("commands: {refusal}")));
                return;
            }
            Err(refusal) => {
                log!("commands: {refusal}; they come with heartbeats only");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(id: &str) -> Command {
        Command { id: id.to_owned(), ..Command::leave() }
    }

    #[test]
    fn a_command_that_comes_twice_is_handed_on_once() {
        let commands = Commands::default();
        assert_eq!(commands.new_ones(vec![command("a"), command("b")]).len(), 2);
        assert_eq!(commands.new_ones(vec![command("b"), command("c")]).len(), 1);
    }

    #[test]
    fn a_command_that_comes_again_after_its_acknowledgement_is_acknowledged_again() {
        let commands = Commands::default();
        commands.new_ones(vec![command("a")]);
        commands.heard("a".to_owned());
        commands.acknowledged(&["a".to_owned()]);
        assert!(commands.standing().heard.is_empty());
        assert!(commands.new_ones(vec![command("a")]).is_empty());
        assert_eq!(commands.standing().heard, ["a"]);
    }
}
