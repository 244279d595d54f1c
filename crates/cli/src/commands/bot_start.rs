//! `bots start`: requests a bot, once, however often the request has to be sent.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::bot_wait::{Timeout, Until, wait};
use super::settings;
use crate::client::Client;
use crate::complete;
use crate::error::{CliError, Done, Exit};
use crate::options::RemoteOptions;
use crate::show::{Output, at, duration, parse_duration, text};
use crate::{ids, pages};

/// How often the request is sent at most, and the pause between.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct Start {
    /// The link of the meeting, as copied from an invitation. With --platform, the id of the meeting.
    #[arg(value_name = "LINK")]
    link: String,
    /// For operators: the user who gets the bot, by id or e-mail address.
    #[arg(long, value_name = "USER", add = complete::users())]
    user: Option<String>,
    /// The name of the bot in the meeting.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Bots with a lower priority leave the queue first. Default: 100.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    priority: Option<i64>,
    /// google_meet, teams or zoom: then LINK is the id of the meeting there.
    #[arg(long, value_name = "PLATFORM", value_parser = ["google_meet", "teams", "zoom"])]
    platform: Option<String>,
    /// How long the bot may wait for a slot, at most 10m. Default: 5m.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    queue_timeout: Option<Duration>,
    /// The configuration of the bot, a JSON object.
    #[arg(long, value_name = "JSON")]
    config: Option<String>,
    /// Data of your own that comes back with the bot and its events. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// What the slot must have, a JSON object: resource_class, usage_class, allowed_instance_types, cpu, mem.
    #[arg(long, value_name = "JSON")]
    requirements: Option<String>,
    /// The same key again finds the same bot. Default: a new key for each command.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Follow the bot until it has ended (or is active), and end with its fate as exit code.
    #[arg(long, value_name = "UNTIL", num_args = 0..=1, require_equals = true, default_missing_value = "ended")]
    wait: Option<Until>,
    #[command(flatten)]
    timeout: Timeout,
}

impl Start {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.client()?, options.output());
        let body = self.body(&client, &out).await?;
        let key = self.idempotency_key.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
        let reserved = send(&client, &body, &key).await?;
        let id = text(&reserved["bot"]["id"]);
        match (out.json, self.wait.is_some()) {
            (true, false) => out.answer(&reserved)?,
            (true, true) => out.json_line(&reserved)?,
            (false, _) => {
                // The id alone is data: `bot=$(greenroom bots start …)`.
                out.line(&id)?;
                out.note(&arrived(&reserved["bot"]));
            }
        }
        if let Some(until) = self.wait {
            wait(&client, &out, &id, until, self.timeout).await?;
        }
        Ok(())
    }

    async fn body(&self, client: &Client, out: &Output) -> Result<Value, CliError> {
        let mut body = match &self.platform {
            None => json!({"meeting_url": self.link}),
            Some(platform) => json!({"platform": platform, "native_meeting_id": self.link}),
        };
        let mut set = |key: &str, value: Option<Value>| {
            if let (Some(value), Some(body)) = (value, body.as_object_mut()) {
                body.insert(key.to_owned(), value);
            }
        };
        set("bot_display_name", self.name.as_deref().map(Value::from));
        set("priority", self.priority.map(Value::from));
        set("queue_timeout_ms", self.queue_timeout.map(|timeout| json!(timeout.as_millis() as u64)));
        set("config", self.config.as_deref().map(|text| object("--config", text)).transpose()?);
        set("requirements", self.requirements.as_deref().map(|text| object("--requirements", text)).transpose()?);
        if !self.metadata.is_empty() {
            set("metadata", Some(settings(&self.metadata)?));
        }
        match (&self.user, client.is_operator()) {
            (Some(user), true) => set("user_id", Some(json!(ids::user(client, user).await?))),
            (None, true) => set("user_id", Some(json!(only_user(client, out).await?))),
            (Some(_), false) => {
                return Err(CliError::new(Exit::NotAllowed, "only operators can start bots for another user")
                    .next("Leave out --user, or use the admin token."));
            }
            (None, false) => {}
        }
        Ok(body)
    }
}

/// A JSON object on the command line.
pub fn object(what: &str, text: &str) -> Result<Value, CliError> {
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(CliError::usage(format!("{what} must be a JSON object"))),
        Err(error) => Err(CliError::usage(format!("{what} is not JSON: {error}"))),
    }
}

/// With a single user, an operator need not name it.
async fn only_user(client: &Client, out: &Output) -> Result<String, CliError> {
    let users = pages::read(client, &["admin", "users"], "users", &[], Some(2)).await?;
    match pages::rows(&users, "users") {
        [user] => {
            out.note(&format!("For the user {}.", text(&user["email"])));
            Ok(text(&user["id"]))
        }
        [] => Err(CliError::usage("there is no user yet to start a bot for")
            .next("Add one with `greenroom users add EMAIL`.")),
        _ => Err(CliError::usage("an operator starts bots for a user: name the user with --user")
            .next("List the users with `greenroom users list`.")),
    }
}

/// Sends the request until there is an answer. The key keeps it from being done twice.
async fn send(client: &Client, body: &Value, key: &str) -> Result<Value, CliError> {
    let path = client.bots(&[]);
    for _ in 1..TRIES {
        match client.post_once(&path, body, key).await {
            Err(error) if error.is_transient() => tokio::time::sleep(PAUSE).await,
            answered => return answered,
        }
    }
    client.post_once(&path, body, key).await
}

fn arrived(bot: &Value) -> String {
    match (bot["slot"].as_str(), &bot["queue_position"]) {
        (Some(slot), _) => format!("The bot is {} in {slot}.", text(&bot["status"])),
        (None, Value::Number(position)) => format!(
            "The bot is queued at position {position}, for about {}. It leaves the queue at {}.",
            duration(&bot["estimated_wait_ms"]),
            at(&bot["deadline_at"])
        ),
        _ => format!("The bot is {}.", text(&bot["status"])),
    }
}
