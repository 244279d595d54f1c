//! Short lists for operators: `queue`, `attention`, `audit`.

use clap::Args;
use serde_json::Value;

use crate::complete;
use crate::error::Done;
use crate::ids;
use crate::options::RemoteOptions;
use crate::pages::{self, rows};
use crate::show::{Column, Table, Tone, age, at, duration, text, text_or_dash};

#[derive(Debug, Args)]
#[group(skip)]
pub struct Queue {
    /// Only bots that wait for this pool.
    #[arg(long, value_name = "POOL", add = complete::pools())]
    pool: Option<String>,
}

#[derive(Debug, Args)]
#[group(skip)]
pub struct Audit {
    /// How many entries to list at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "all")]
    limit: usize,
    /// List all of them.
    #[arg(long)]
    all: bool,
}

impl Queue {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        let mut answer = pages::read(&client, &["admin", "queue"], "entries", &[], None).await?;
        if let Some(pool) = &self.pool {
            let pool = ids::pool(&client, pool).await?;
            if let Some(entries) = answer["entries"].as_array_mut() {
                entries.retain(|entry| entry["pool"].as_str() == Some(&pool));
            }
        }
        if out.json {
            return out.answer(&answer);
        }
        let entries = rows(&answer, "entries");
        if entries.is_empty() {
            out.note("No bot waits for a slot.");
            return Ok(());
        }
        let bots = entries.iter().filter_map(|entry| entry["bot_id"].as_str());
        let length = if out.is_terminal { ids::shown_length(bots) } else { 36 };
        let mut table = Table::new(&[
            Column::new("POOL"),
            Column::new("PLACE").right(),
            Column::new("BOT"),
            Column::new("PRIORITY").right().rank(2),
            Column::new("WAITED").right(),
            Column::new("ESTIMATE").right().rank(1),
            Column::new("UNTIL").rank(3),
        ]);
        for entry in entries {
            let bot = text(&entry["bot_id"]);
            table.row(vec![
                (text(&entry["pool"]), Tone::Plain),
                (text(&entry["position"]), Tone::Plain),
                (bot.get(..length).unwrap_or(&bot).to_owned(), Tone::Plain),
                (text(&entry["priority"]), Tone::Plain),
                (age(&entry["queued_at"]), Tone::Plain),
                (duration(&entry["estimated_wait_ms"]), Tone::Plain),
                (at(&entry["timeout_at"]), Tone::Quiet),
            ]);
        }
        out.table(&table)
    }
}

pub async fn attention(options: &RemoteOptions) -> Done {
    let (client, out) = (options.operator()?, options.output());
    let answer = client.get(&["admin", "attention"], &[]).await?;
    if out.json {
        return out.answer(&answer);
    }
    let items = rows(&answer, "items");
    if items.is_empty() {
        out.note("Nothing needs a person.");
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::new("SEVERITY"),
        Column::new("FOR").right().rank(3),
        Column::new("SUBJECT"),
        Column::new("MESSAGE").shrinks(),
        Column::new("NEXT").rank(1),
    ]);
    for item in items {
        let severity = text(&item["severity"]);
        table.row(vec![
            (severity.clone(), Tone::of_status(&severity)),
            (age(&item["since"]), Tone::Plain),
            (text(&item["subject"]), Tone::Plain),
            (text(&item["message"]), Tone::Plain),
            (next_step(item), Tone::Quiet),
        ]);
    }
    out.table(&table)?;
    if let Some(more) = answer["more"].as_i64().filter(|more| *more > 0) {
        out.note(&format!("There are {more} more."));
    }
    Ok(())
}

/// The action of an item, as a command.
fn next_step(item: &Value) -> String {
    let action = &item["action"];
    let path: Vec<&str> = action["path"].as_str().unwrap_or_default().split('/').skip(1).collect();
    match (action["method"].as_str().unwrap_or_default(), path.as_slice()) {
        ("POST", ["admin", "slots", slot, "recover"]) => format!("greenroom slots recover {slot}"),
        ("PATCH", ["admin", "pools", pool]) => {
            let body = action["body"].as_object().into_iter().flatten();
            let settings: Vec<String> = body.map(|(key, value)| format!("{key}={}", text(value))).collect();
            format!("greenroom pools set {pool} {}", settings.join(" "))
        }
        ("POST", ["admin", keeper, "run"]) => format!("greenroom keepers run {keeper}"),
        (_, ["admin", "bots", bot, ..]) => format!("greenroom bots explain {bot}"),
        (_, ["admin", "slots", slot, ..]) => format!("greenroom slots explain {slot}"),
        (_, ["admin", "pools", pool, ..]) => format!("greenroom pools show {pool}"),
        _ => text_or_dash(&action["label"]),
    }
}

impl Audit {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        let limit = (!self.all).then_some(self.limit);
        let answer = pages::read(&client, &["admin", "audit"], "entries", &[], limit).await?;
        if out.json {
            return out.answer(&answer);
        }
        let mut table = Table::new(&[
            Column::new("AT"),
            Column::new("ACTION"),
            Column::new("SUBJECT"),
            Column::new("FROM").rank(2),
            Column::new("DETAIL").shrinks().rank(1),
        ]);
        for entry in rows(&answer, "entries") {
            table.row(vec![
                (at(&entry["at"]), Tone::Plain),
                (text(&entry["action"]), Tone::Plain),
                (text_or_dash(&entry["subject"]), Tone::Plain),
                (text(&entry["address"]), Tone::Quiet),
                (text(&entry["detail"]), Tone::Quiet),
            ]);
        }
        out.table(&table)
    }
}
