//! `deployments`: slots on their way, the gates that they pass, and pulls with their progress.

use std::time::Duration;

use clap::Args;
use indicatif::{MultiProgress, ProgressBar};
use serde_json::Value;

use crate::client::Client;
use crate::error::Done;
use crate::options::RemoteOptions;
use crate::pages::rows;
use crate::show::{Column, Output, Table, Tone, age, bytes, clean, text, text_or_dash};
use crate::state_lines::pull_style;
use crate::stream::Reconnect;

const POLL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub struct Command {
    /// Show progress until nothing is on its way: bars in a terminal, one JSON object per change with --json.
    #[arg(long, short)]
    follow: bool,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        if self.follow {
            return follow(&client, &out).await;
        }
        let answer = client.get(&["admin", "deployments"], &[]).await?;
        if out.json {
            return out.answer(&answer);
        }
        gates(&out, &answer)?;
        entries(&out, rows(&answer, "entries"))?;
        pulls(&out, rows(&answer, "pulls"))
    }
}

fn gates(out: &Output, answer: &Value) -> Done {
    let mut table = Table::new(&[
        Column::new("GATE"),
        Column::new("ACTIVE").right(),
        Column::new("MAX").right(),
        Column::new("QUEUED").right(),
    ]);
    for gate in rows(answer, "gates") {
        let numbers = ["active", "max_concurrent", "queued"].map(|field| (text(&gate[field]), Tone::Plain));
        table.row([(text(&gate["host"]), Tone::Plain)].into_iter().chain(numbers).collect());
    }
    out.table(&table)
}

fn entries(out: &Output, entries: &[Value]) -> Done {
    if entries.is_empty() {
        out.note("No slot is being started.");
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::new("SLOT"),
        Column::new("STATE"),
        Column::new("FOR").right(),
        Column::new("BOT").rank(2),
        Column::new("LAST ERROR").shrinks().rank(1),
    ]);
    for entry in entries {
        table.row(vec![
            (text(&entry["slot"]), Tone::Plain),
            (text(&entry["state"]), Tone::Busy),
            (age(&entry["asked_at"]), Tone::Plain),
            (text_or_dash(&entry["bot_id"]), Tone::Plain),
            (text_or_dash(&entry["last_error"]), Tone::Bad),
        ]);
    }
    out.line("")?;
    out.table(&table)
}

fn pulls(out: &Output, pulls: &[Value]) -> Done {
    if pulls.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::new("PULL").shrinks(),
        Column::new("HOST").rank(1),
        Column::new("LAYERS").right(),
        Column::new("DONE").right(),
        Column::new("OF").right(),
        Column::new("FOR").right().rank(2),
    ]);
    for pull in pulls {
        table.row(vec![
            (text(&pull["image"]), Tone::Plain),
            (text(&pull["host"]), Tone::Plain),
            (format!("{}/{}", text(&pull["layers_done"]), text(&pull["layers"])), Tone::Plain),
            (bytes(&pull["bytes_done"]), Tone::Plain),
            (bytes(&pull["bytes"]), Tone::Plain),
            (age(&pull["since"]), Tone::Quiet),
        ]);
    }
    out.line("")?;
    out.table(&table)
}

/// Draws, or prints what changed, until nothing is on its way.
async fn follow(client: &Client, out: &Output) -> Done {
    let lines = (out.is_terminal && !out.json).then(MultiProgress::new);
    let mut bars: Vec<(String, ProgressBar)> = Vec::new();
    let (mut last, mut reconnect) = (Value::Null, Reconnect::default());
    loop {
        let answer = match client.get(&["admin", "deployments"], &[]).await {
            Ok(answer) => answer,
            Err(error) => {
                reconnect.wait(Some(error)).await?;
                continue;
            }
        };
        reconnect.connected();
        match &lines {
            Some(lines) => draw(lines, &mut bars, &answer),
            None if answer == last => {}
            None if out.json => out.json_line(&answer)?,
            None => shown_changes(out, &last, &answer)?,
        }
        if rows(&answer, "entries").is_empty() && rows(&answer, "pulls").is_empty() {
            if let Some(lines) = &lines {
                let _ = lines.clear();
            }
            out.note("No slot is being started.");
            return Ok(());
        }
        last = answer;
        tokio::time::sleep(POLL).await;
    }
}

/// One line for each slot whose state changed.
fn shown_changes(out: &Output, last: &Value, answer: &Value) -> Done {
    for entry in rows(answer, "entries") {
        let before = rows(last, "entries").iter().find(|before| before["slot"] == entry["slot"]);
        if before.is_none_or(|before| before["state"] != entry["state"]) {
            out.line(&format!("{}  {}", text(&entry["slot"]), text(&entry["state"])))?;
        }
    }
    for entry in rows(last, "entries") {
        if !rows(answer, "entries").iter().any(|now| now["slot"] == entry["slot"]) {
            out.line(&format!("{}  started", text(&entry["slot"])))?;
        }
    }
    Ok(())
}

fn draw(lines: &MultiProgress, bars: &mut Vec<(String, ProgressBar)>, answer: &Value) {
    let mut shown = Vec::new();
    for pull in rows(answer, "pulls") {
        let name = format!("pulling {} on {}", text(&pull["image"]), text(&pull["host"]));
        shown.push((name, pull["bytes_done"].as_u64(), pull["bytes"].as_u64()));
    }
    for entry in rows(answer, "entries") {
        shown.push((
            format!("{}  {}  {}", text(&entry["slot"]), text(&entry["state"]), age(&entry["asked_at"])),
            None,
            None,
        ));
    }
    // The slots of entries change with every drawing, so lines are told apart by their place.
    bars.truncate(shown.len());
    for (place, (name, done, of)) in shown.into_iter().enumerate() {
        if bars.len() == place {
            let bar = ProgressBar::new_spinner();
            bars.push((String::new(), lines.add(bar)));
        }
        let (kind, bar) = &mut bars[place];
        let wanted = if of.is_some() { "pull" } else { "slot" };
        if kind != wanted {
            wanted.clone_into(kind);
            bar.set_style(if of.is_some() { pull_style() } else { indicatif::ProgressStyle::default_spinner() });
        }
        if let Some(of) = of {
            bar.set_length(of);
            bar.set_position(done.unwrap_or(0));
        }
        bar.set_message(clean(&name));
        bar.tick();
    }
}
