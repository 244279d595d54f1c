//! `slots`: the slots of all pools.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::bots::explanation;
use super::for_each;
use crate::client::Client;
use crate::complete;
use crate::error::Done;
use crate::ids;
use crate::options::RemoteOptions;
use crate::pages::{self, rows};
use crate::show::{Column, Output, Table, Tone, age, at, bytes, text, text_or_dash};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List slots.
    List(List),
    /// Show one slot with its failures and the bots that ran in it.
    Show(One),
    /// Recover slots that are in error, without waiting for the next attempt.
    Recover(Many),
    /// Delete slots once their bots have ended. They take no more bots.
    Drain(Many),
    /// Delete slots now. A bot that runs in one ends.
    Delete(Many),
    /// Explain why a slot is where it is.
    Explain(One),
}

#[derive(Debug, Args)]
pub struct List {
    /// Only slots of this pool.
    #[arg(long, value_name = "POOL", add = complete::pools())]
    pool: Option<String>,
    /// Only slots with this status.
    #[arg(long, value_name = "STATUS", add = complete::words(&complete::SLOT_STATUSES))]
    status: Option<String>,
}

#[derive(Debug, Args)]
pub struct One {
    /// The name of the slot, or its beginning, or its last words.
    #[arg(value_name = "SLOT", add = complete::slots())]
    slot: String,
}

#[derive(Debug, Args)]
pub struct Many {
    /// The names of the slots, or their beginnings, or their last words.
    #[arg(value_name = "SLOT", required = true, add = complete::slots())]
    slots: Vec<String>,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        match self {
            Command::List(list) => list.run(&client, &out).await,
            Command::Show(one) => {
                let name = ids::slot(&client, &one.slot).await?;
                show(&out, &client.get(&["admin", "slots", &name], &[]).await?)
            }
            Command::Explain(one) => {
                let name = ids::slot(&client, &one.slot).await?;
                explanation(&out, &client.get(&["admin", "slots", &name, "explain"], &[]).await?)
            }
            Command::Recover(many) => act(&client, &out, &many, Method::POST, Some("recover"), "is recovered").await,
            Command::Drain(many) => act(&client, &out, &many, Method::POST, Some("drain"), "takes no more bots").await,
            Command::Delete(many) => act(&client, &out, &many, Method::DELETE, None, "is being deleted").await,
        }
    }
}

async fn act(client: &Client, out: &Output, many: &Many, method: Method, verb: Option<&str>, done: &str) -> Done {
    for_each(&many.slots, async |given| {
        let name = ids::slot(client, given).await?;
        let mut path = vec!["admin", "slots", name.as_str()];
        path.extend(verb);
        let answer = client.send(method.clone(), &path, None).await?;
        if out.json {
            return out.json_line(&answer);
        }
        out.line(&format!("{name} {done}: {}.", text(&answer["slot"]["status"])))
    })
    .await
}

impl List {
    async fn run(self, client: &Client, out: &Output) -> Done {
        let mut query = Vec::new();
        if let Some(pool) = &self.pool {
            query.push(("pool", ids::pool(client, pool).await?));
        }
        query.extend(self.status.map(|status| ("status", status)));
        let answer = pages::read(client, &["admin", "slots"], "slots", &query, None).await?;
        if out.json {
            return out.answer(&answer);
        }
        let slots = rows(&answer, "slots");
        if slots.is_empty() {
            out.note("There are no such slots. A pool creates a slot when a bot needs it, or to keep min_idle.");
            return Ok(());
        }
        let length = if out.is_terminal {
            ids::shown_length(slots.iter().filter_map(|slot| slot["bot_id"].as_str()))
        } else {
            36
        };
        let mut table = Table::new(&[
            Column::new("SLOT"),
            Column::new("STATUS"),
            Column::new("FOR").right(),
            Column::new("HOT").rank(2),
            Column::new("BOT"),
            Column::new("MEMORY").right().rank(3),
            Column::new("ERROR").shrinks().rank(1),
        ]);
        for slot in slots {
            let (status, bot) = (text(&slot["status"]), text_or_dash(&slot["bot_id"]));
            table.row(vec![
                (text(&slot["name"]), Tone::Plain),
                (status.clone(), Tone::of_status(&status)),
                (age(&slot["status_since"]), Tone::Plain),
                (if slot["hot"] == json!(true) { "hot" } else { "-" }.to_owned(), Tone::Plain),
                (bot.get(..length).unwrap_or(&bot).to_owned(), Tone::Plain),
                (bytes(&slot["memory_bytes"]), Tone::Quiet),
                (text_or_dash(&slot["error_message"]), Tone::Bad),
            ]);
        }
        out.table(&table)
    }
}

fn show(out: &Output, answer: &Value) -> Done {
    if out.json {
        return out.answer(answer);
    }
    let slot = &answer["slot"];
    let status = text(&slot["status"]);
    out.field("slot", &text(&slot["name"]), Tone::Strong)?;
    out.field("status", &format!("{status} for {}", age(&slot["status_since"])), Tone::of_status(&status))?;
    for (name, field) in [
        ("error", "error_message"),
        ("pool", "pool"),
        ("bot", "bot_id"),
        ("hot", "hot"),
        ("at provider", "provider_ref"),
        ("description", "description"),
        ("attributes", "attributes"),
        ("release", "release"),
        ("attempts", "recovery_attempts"),
    ] {
        if !slot[field].is_null() {
            out.field(name, &text(&slot[field]), if name == "error" { Tone::Bad } else { Tone::Plain })?;
        }
    }
    for (name, field) in [("until", "deadline_at"), ("last used", "last_used_at"), ("created", "created_at")] {
        if !slot[field].is_null() {
            out.field(name, &format!("{} ({})", at(&slot[field]), age(&slot[field])), Tone::Plain)?;
        }
    }
    for failure in rows(answer, "failures") {
        out.field("failure", &format!("{}  {}", at(&failure["at"]), text(&failure["words"])), Tone::Bad)?;
    }
    let bots = rows(answer, "bots");
    if !bots.is_empty() {
        let mut table = Table::new(&[
            Column::new("BOT"),
            Column::new("STATUS"),
            Column::new("REASON").rank(2),
            Column::new("MEETING").shrinks().rank(1),
            Column::new("CREATED").rank(3),
        ]);
        for bot in bots {
            let status = text(&bot["status"]);
            table.row(vec![
                (text(&bot["id"]), Tone::Plain),
                (status.clone(), Tone::of_status(&status)),
                (text_or_dash(&bot["reason"]), Tone::Plain),
                (text(&bot["native_meeting_id"]), Tone::Plain),
                (at(&bot["created_at"]), Tone::Quiet),
            ]);
        }
        out.line("")?;
        out.table(&table)?;
    }
    Ok(())
}
