//! `keepers`: the background jobs of the server.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::Value;

use crate::complete;
use crate::error::{CliError, Done, Exit};
use crate::options::RemoteOptions;
use crate::pages::rows;
use crate::show::{Column, Table, Tone, age, duration, text, text_or_dash};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List keepers with their last and next runs.
    List,
    /// Run a keeper now.
    Run(Run),
}

#[derive(Debug, Args)]
pub struct Run {
    /// The name of the keeper.
    #[arg(value_name = "KEEPER", add = complete::keepers())]
    keeper: String,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        match self {
            Command::List => {
                let answer = client.get(&["admin", "keepers"], &[]).await?;
                if out.json {
                    return out.answer(&answer);
                }
                let mut table = Table::new(&[
                    Column::new("KEEPER"),
                    Column::new("RAN").right(),
                    Column::new("NEXT").right(),
                    Column::new("TOOK").right().rank(2),
                    Column::new("DID").shrinks().rank(1),
                    Column::new("ERROR").shrinks(),
                    Column::new("LEADER").rank(3),
                ]);
                for keeper in rows(&answer, "keepers") {
                    table.row(vec![
                        (text(&keeper["name"]), Tone::Plain),
                        (age(&keeper["last_run"]), Tone::Plain),
                        (age(&keeper["next_run"]), Tone::Plain),
                        (duration(&keeper["took_ms"]), Tone::Plain),
                        (did(&keeper["did"]), Tone::Quiet),
                        (text_or_dash(&keeper["error"]), Tone::Bad),
                        (text_or_dash(&keeper["leader"]), Tone::Quiet),
                    ]);
                }
                out.table(&table)
            }
            Command::Run(run) => {
                let answer = client.send(Method::POST, &["admin", &run.keeper, "run"], None).await.map_err(
                    |error| match error.exit {
                        Exit::NotFound => CliError::not_found(format!("there is no keeper {}", run.keeper))
                            .next("List the keepers with `greenroom keepers list`."),
                        _ => error,
                    },
                )?;
                if out.json {
                    return out.answer(&answer);
                }
                out.line(&format!("{} has run: {}.", run.keeper, did(&answer)))
            }
        }
    }
}

/// What a run did.
fn did(value: &Value) -> String {
    let counts = value.as_object().into_iter().flatten().filter(|(_, count)| count.as_i64() != Some(0));
    let words: Vec<String> = counts.map(|(name, count)| format!("{name} {}", text(count))).collect();
    if words.is_empty() { "nothing to do".to_owned() } else { words.join(", ") }
}
