//! `events`: what happens to bots, as it happens. A user sees each event of its bots. An operator sees each status of
//! every bot, from the live state of the server.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::complete;
use crate::error::{CliError, Done};
use crate::options::RemoteOptions;
use crate::show::{Output, Tone, text};
use crate::stream::{EventStream, Reconnect};
use crate::{follow, ids};

#[derive(Debug, Args)]
pub struct Command {
    /// Only this bot, from its first event to its last.
    #[arg(long, value_name = "BOT", add = complete::bots())]
    bot: Option<String>,
    /// For users: also what happened after the event with this id.
    #[arg(long, value_name = "ID", conflicts_with = "bot")]
    after: Option<u64>,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.client()?, options.output());
        if let Some(given) = &self.bot {
            let bot = ids::bot(&client, given).await?;
            return of_one(&client, &out, &bot).await;
        }
        match client.is_operator() {
            true if self.after.is_some() => Err(CliError::usage("--after works with the API key of a user only")),
            true => of_everyone(&client, &out).await,
            false => of_user(&client, &out, self.after.map(|id| id.to_string())).await,
        }
    }
}

fn print(out: &Output, event: &Value) -> Done {
    if out.json {
        return out.json_line(event);
    }
    let to = text(&event["to"]);
    let mut change = match event["from"].as_str() {
        Some(from) if from != to && !to.is_empty() => {
            format!("{} -> {}", out.paint(from, Tone::Plain), out.paint(&to, Tone::of_status(&to)))
        }
        _ => out.paint(&to, Tone::of_status(&to)),
    };
    for field in ["reason", "slot", "error"] {
        if let Some(word) = event[field].as_str() {
            change = format!("{change}  {}", out.paint(word, Tone::Quiet));
        }
    }
    let (at, bot, kind) = (text(&event["at"]), text(&event["bot_id"]), text(&event["kind"]));
    out.painted(
        format!(
            "{}  {}  {:<15} {change}",
            out.paint(&at, Tone::Quiet),
            out.paint(&bot, Tone::Plain),
            out.paint(&kind, Tone::Plain)
        )
        .trim_end(),
    )
}

async fn of_one(client: &Client, out: &Output, bot: &str) -> Done {
    let mut events = follow::bot(client, bot);
    while let Some(followed) = events.recv().await {
        match followed {
            follow::Followed::Event(event) => print(out, &event)?,
            follow::Followed::Lost(message) => out.note(&format!("{message}; trying again")),
            follow::Followed::Failed(error) => return Err(error),
        }
    }
    Ok(())
}

async fn of_user(client: &Client, out: &Output, mut last: Option<String>) -> Done {
    let mut reconnect = Reconnect::default();
    loop {
        let mut stream = match EventStream::open(client, &["events"], &[], last.as_deref()).await {
            Ok(stream) => stream,
            Err(error) if error.code.as_deref() == Some("gone") => {
                out.note("Some events were deleted meanwhile. The next ones follow.");
                last = None;
                continue;
            }
            Err(error) => {
                lost(out, &reconnect, &error);
                reconnect.wait(Some(error)).await?;
                continue;
            }
        };
        reconnect.connected();
        while let Some(message) = stream.next().await {
            last = message.id.or(last);
            if let Ok(event) = serde_json::from_str(&message.data) {
                print(out, &event)?;
            }
        }
        reconnect.wait(None).await?;
    }
}

fn lost(out: &Output, reconnect: &Reconnect, error: &CliError) {
    if reconnect.is_first() && error.is_transient() {
        out.note(&format!("{}; trying again", error.message));
    }
}

/// The bots that have not ended, by id, with the name of their status.
#[derive(Debug, Default)]
struct Fleet {
    statuses: Vec<String>,
    bots: BTreeMap<String, String>,
    has_snapshot: bool,
}

async fn of_everyone(client: &Client, out: &Output) -> Done {
    let (mut reconnect, mut fleet) = (Reconnect::default(), Fleet::default());
    loop {
        let mut stream = match EventStream::open(client, &["admin", "live"], &[], None).await {
            Ok(stream) => stream,
            Err(error) => {
                lost(out, &reconnect, &error);
                reconnect.wait(Some(error)).await?;
                continue;
            }
        };
        reconnect.connected();
        while let Some(message) = stream.next().await {
            let Ok(state) = serde_json::from_str::<Value>(&message.data) else { continue };
            for event in fleet.take(&message.event, &state) {
                print(out, &ended(client, event).await)?;
            }
        }
        reconnect.wait(None).await?;
    }
}

/// A bot that is gone from the live state has ended: how, only the bot itself says.
async fn ended(client: &Client, mut event: Value) -> Value {
    if !event["to"].is_null() {
        return event;
    }
    if let Ok(answer) = client.get(&["admin", "bots", &text(&event["bot_id"])], &[]).await {
        let bot = &answer["bot"];
        event["at"] = bot["status_since"].clone();
        event["to"] = bot["status"].clone();
        event["reason"] = bot["reason"].clone();
        event["error"] = bot["error"].clone();
    }
    event
}

impl Fleet {
    /// Takes a message, and returns the changes of statuses. After a lost connection, a new snapshot is compared with
    /// what is known.
    fn take(&mut self, kind: &str, state: &Value) -> Vec<Value> {
        let list = |name: &str| state[name].as_array().cloned().unwrap_or_default();
        if kind == "snapshot" {
            self.statuses = list("bot_statuses").iter().map(text).collect();
        }
        let mut events = Vec::new();
        let entries = list("bots");
        let mut gone: Vec<String> = list("bots_gone").iter().map(text).collect();
        if kind == "snapshot" {
            let present: Vec<String> = entries.iter().map(|entry| text(&entry[0])).collect();
            gone = self.bots.keys().filter(|id| !present.contains(id)).cloned().collect();
        }
        for entry in entries {
            let id = text(&entry[0]);
            let status = entry[1].as_u64().and_then(|index| self.statuses.get(usize::try_from(index).ok()?));
            let status = status.cloned().unwrap_or_default();
            let from = self.bots.insert(id.clone(), status.clone());
            let is_change = from.as_deref() != Some(&status);
            // What was so before the command began is not news.
            if is_change && (self.has_snapshot || kind != "snapshot") {
                let at = entry[2].as_i64().and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
                events.push(json!({
                    "at": at.map(|at| at.to_string()), "bot_id": id, "kind": "status_changed", "from": from, "to": status,
                }));
            }
        }
        for id in gone {
            if let Some(from) = self.bots.remove(&id) {
                events.push(json!({"at": null, "bot_id": id, "kind": "status_changed", "from": from, "to": null}));
            }
        }
        self.has_snapshot = true;
        events
    }
}

#[cfg(test)]
mod tests {
    use super::Fleet;
    use serde_json::json;

    #[test]
    fn the_live_state_becomes_changes_also_over_a_lost_connection() {
        let mut fleet = Fleet::default();
        let names = json!(["queued", "active"]);
        let first = fleet.take("snapshot", &json!({"bot_statuses": names, "bots": [["a", 0, 1], ["b", 1, 1]]}));
        assert!(first.is_empty(), "{first:?}");
        let change = fleet.take("change", &json!({"bots": [["a", 1, 2, 0, 1], ["c", 0, 2]]}));
        let moved: Vec<_> = change.iter().map(|event| (&event["bot_id"], &event["from"], &event["to"])).collect();
        assert_eq!(
            moved,
            [(&json!("a"), &json!("queued"), &json!("active")), (&json!("c"), &json!(null), &json!("queued"))]
        );
        let again = fleet.take("snapshot", &json!({"bot_statuses": names, "bots": [["a", 1, 2, 0, 1], ["d", 0, 3]]}));
        let ids: Vec<_> = again.iter().map(|event| event["bot_id"].as_str().unwrap_or_default()).collect();
        assert_eq!(ids, ["d", "b", "c"]);
    }
}
