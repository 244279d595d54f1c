//! `pools`: the pools of a server. `pools remove`, which works on the database, is elsewhere.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::bot_wait::{Timeout, Until, wait};
use super::settings;
use crate::complete;
use crate::error::{CliError, Done};
use crate::ids;
use crate::options::{RemoteOptions, RemoteOptionsBefore};
use crate::pages::rows;
use crate::show::{Column, Output, Table, Tone, age, at, bytes, duration, text, text_or_dash};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List pools with their slots.
    List,
    /// Show one pool.
    Show(One),
    /// Change the size of a pool, for example max_slots=30 min_idle=2. It holds, also after a restart of the server,
    /// until the configuration has another size for the pool.
    Set(Set),
    /// Run the demo bot through a real slot of the pool.
    Probe(Probe),
}

#[derive(Debug, Args)]
pub struct One {
    /// The name of the pool, or the beginning of it.
    #[arg(value_name = "POOL", add = complete::pools())]
    pool: String,
}

#[derive(Debug, Args)]
pub struct Set {
    /// The whole name of the pool.
    #[arg(value_name = "POOL", add = complete::pools())]
    pool: String,
    /// max_slots or min_idle, and its new value.
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Probe {
    #[command(flatten)]
    one: One,
    /// Follow the probe to its end, and end with its fate as exit code.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

impl Command {
    pub fn main(self, options: RemoteOptions, before: RemoteOptionsBefore) -> ExitCode {
        super::main(async move { self.run(&options.over(before)).await })
    }

    async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        match self {
            Command::List => {
                let answer = client.get(&["admin", "pools"], &[]).await?;
                if out.json { out.answer(&answer) } else { table(&out, rows(&answer, "pools")) }
            }
            Command::Show(one) => {
                let name = ids::pool(&client, &one.pool).await?;
                shown(&out, &client.get(&["admin", "pools", &name], &[]).await?)
            }
            Command::Set(set) => {
                let change = settings(&set.settings)?;
                if let Some((key, _)) =
                    change.as_object().and_then(|all| all.iter().find(|(_, value)| !value.is_number()))
                {
                    return Err(CliError::usage(format!("`{key}` must be a number")));
                }
                let name = ids::whole_pool(&client, &set.pool).await?;
                shown(&out, &client.send(Method::PATCH, &["admin", "pools", &name], Some(&change)).await?)
            }
            Command::Probe(probe) => {
                let name = ids::pool(&client, &probe.one.pool).await?;
                let answer = client.send(Method::POST, &["admin", "pools", &name, "probe"], None).await?;
                let bot = text(&answer["bot"]["id"]);
                match (out.json, probe.wait) {
                    (true, false) => out.answer(&answer)?,
                    (true, true) => out.json_line(&answer)?,
                    (false, _) => {
                        out.line(&bot)?;
                        if !probe.wait {
                            out.note(&format!("Follow the probe with `greenroom bots watch {bot}`."));
                        }
                    }
                }
                match probe.wait {
                    true => wait(&client, &out, &bot, Until::Ended, probe.timeout).await.map(drop),
                    false => Ok(()),
                }
            }
        }
    }
}

/// How many slots of the pool have this status.
fn slots(pool: &Value, status: &str) -> String {
    pool["slots"][status].as_i64().unwrap_or(0).to_string()
}

fn table(out: &Output, pools: &[Value]) -> Done {
    let mut table = Table::new(&[
        Column::new("POOL"),
        Column::new("PLATFORM").rank(3),
        Column::new("PROVIDER").rank(2),
        Column::new("IDLE").right(),
        Column::new("BUSY").right(),
        Column::new("CREATING").right().rank(1),
        Column::new("DRAINING").right().rank(4),
        Column::new("ERROR").right(),
        Column::new("MAX").right(),
        Column::new("QUEUED").right(),
        Column::new("HELD").right().rank(5),
        Column::new("CLOSED").rank(6),
    ]);
    for pool in pools {
        let error = slots(pool, "error");
        let error_tone = if error == "0" { Tone::Plain } else { Tone::Bad };
        table.row(vec![
            (text(&pool["name"]), Tone::Plain),
            (text(&pool["platform"]), Tone::Plain),
            (text(&pool["provider"]), Tone::Plain),
            (slots(pool, "idle"), Tone::Good),
            (slots(pool, "busy"), Tone::Busy),
            (slots(pool, "creating"), Tone::Plain),
            (slots(pool, "draining"), Tone::Plain),
            (error, error_tone),
            (text(&pool["max_slots"]), Tone::Plain),
            (text(&pool["queued"]), if pool["queued"] == json!(0) { Tone::Plain } else { Tone::Warning }),
            (duration(&pool["mean_hold_ms"]), Tone::Quiet),
            (if pool["closed_until"].is_null() { "-".to_owned() } else { age(&pool["closed_until"]) }, Tone::Warning),
        ]);
    }
    out.table(&table)
}

fn shown(out: &Output, answer: &Value) -> Done {
    if out.json {
        return out.answer(answer);
    }
    let pool = &answer["pool"];
    out.field("pool", &text(&pool["name"]), Tone::Strong)?;
    let slots =
        ["idle", "busy", "creating", "draining", "error"].map(|status| format!("{} {status}", slots(pool, status)));
    out.field("slots", &slots.join(", "), Tone::Plain)?;
    for (name, value) in [
        ("max_slots", text(&pool["max_slots"])),
        ("min_idle", text(&pool["min_idle"])),
        ("queued", text(&pool["queued"])),
        ("platform", text(&pool["platform"])),
        ("provider", text(&pool["provider"])),
        ("standby", text(&pool["standby"])),
        ("image", text_or_dash(&pool["image"])),
        ("order", text_or_dash(&pool["order"])),
        ("mean hold", duration(&pool["mean_hold_ms"])),
        ("memory", bytes(&pool["memory_bytes"])),
    ] {
        out.field(name, &value, Tone::Plain)?;
    }
    if pool["closed_until"].is_string() {
        out.field("closed until", &at(&pool["closed_until"]), Tone::Warning)?;
    }
    Ok(())
}
