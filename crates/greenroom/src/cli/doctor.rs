//! `greenroom doctor`: everything that the server stands on, one slot, or one bot, for a person to read.

use clap::{Args, Subcommand};
use domain::{BotId, SlotName};

use super::{Done, Settings, counted};
use crate::doctor::report::Report;
use crate::doctor::{self, Doctor};
use crate::providers::check::Verdict;

#[derive(Debug, Args)]
pub struct Command {
    #[command(subcommand)]
    of: Option<Of>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Of {
    /// Explain a slot: its state, since when, what it waits for, until when, and what the provider reported.
    Slot {
        /// The name of the slot.
        name: String,
        #[command(flatten)]
        settings: Settings,
    },
    /// Explain a bot: its state, since when, what it waits for, until when, and what the provider reported.
    Bot {
        /// The id of the bot.
        id: uuid::Uuid,
        #[command(flatten)]
        settings: Settings,
    },
}

pub async fn run(command: Command, before: &Settings) -> Done {
    let before = command.settings.over(before);
    match command.of {
        None => examine(before).await,
        Some(Of::Slot { name, settings }) => {
            let doctor = Doctor::open(&settings.over(&before).load()?).await?;
            let report = doctor.slot(&SlotName::stored(name.clone())).await?;
            show(&report.ok_or_else(|| format!("there is no slot {name}"))?);
            Ok(())
        }
        Some(Of::Bot { id, settings }) => {
            let doctor = Doctor::open(&settings.over(&before).load()?).await?;
            show(&doctor.bot(BotId(id)).await?.ok_or_else(|| format!("there is no bot {id}"))?);
            Ok(())
        }
    }
}

async fn examine(settings: Settings) -> Done {
    let (mut bad, mut doubtful) = (0, 0);
    for examined in doctor::examine(&settings.load()?).await {
        println!("{}", examined.of);
        for check in examined.checks {
            let mark = match check.verdict {
                Verdict::Good => "ok",
                Verdict::Note => "note",
                Verdict::Doubtful => {
                    doubtful += 1;
                    "warn"
                }
                Verdict::Bad => {
                    bad += 1;
                    "BAD"
                }
            };
            println!("  {mark:<4}  {:<11} {}", check.what, check.found);
        }
    }
    match (bad, doubtful) {
        (0, 0) => println!("All checks passed."),
        (0, count) => return Err(format!("{} passed with a warning", counted(count, "check")).into()),
        (count, _) => return Err(format!("{} failed", counted(count, "check")).into()),
    }
    Ok(())
}

fn show(report: &Report) {
    println!("{}", report.title);
    for (about, text) in &report.lines {
        let mut lines = text.lines();
        println!("  {about:<12} {}", lines.next().unwrap_or_default());
        for line in lines {
            println!("  {:<12} {line}", "");
        }
    }
}
