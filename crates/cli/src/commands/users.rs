//! `users`: who may request bots.

use std::time::Duration;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::settings;
use crate::complete;
use crate::error::Done;
use crate::ids;
use crate::options::RemoteOptions;
use crate::pages::{self, rows};
use crate::show::{Column, Output, Table, Tone, at, parse_duration, text};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Add a user, and print its API key.
    Add(Add),
    /// List users.
    List,
    /// Show one user.
    Show(One),
    /// Change a user, for example max_concurrent_bots=10 min_priority=50.
    Set(Set),
    /// Replace the API keys of a user, and print the new key.
    Key(Key),
}

#[derive(Debug, Args)]
pub struct Add {
    /// The e-mail address of the user.
    #[arg(value_name = "EMAIL")]
    email: String,
    /// The name of the user. Default: the part of the address before the @.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How many bots the user may run at once. Default: as configured.
    #[arg(long, value_name = "NUMBER", alias = "limit")]
    max_bots: Option<i64>,
    /// How low a priority the user may give its bots.
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    min_priority: Option<i64>,
}

#[derive(Debug, Args)]
pub struct One {
    /// The user: id, beginning of the id, or e-mail address.
    #[arg(value_name = "USER", add = complete::users())]
    user: String,
}

#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    one: One,
    /// max_concurrent_bots, min_priority, name, email, image_url or data, and its new value.
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Key {
    #[command(flatten)]
    one: One,
    /// Keep the old keys valid for so long, at most 30 days. Without it they end at once.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    keep_old: Option<Duration>,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let (client, out) = (options.operator()?, options.output());
        match self {
            Command::Add(add) => {
                let name =
                    add.name.clone().unwrap_or_else(|| add.email.split('@').next().unwrap_or_default().to_owned());
                let mut body = json!({"email": add.email, "name": name});
                if let Some(limit) = add.max_bots {
                    body["max_concurrent_bots"] = json!(limit);
                }
                if let Some(priority) = add.min_priority {
                    body["min_priority"] = json!(priority);
                }
                let answer = client.send(Method::POST, &["admin", "users"], Some(&body)).await?;
                key(&out, &answer, &format!("Added the user {}.", text(&answer["user"]["id"])))
            }
            Command::List => {
                let answer = pages::read(&client, &["admin", "users"], "users", &[], None).await?;
                if out.json { out.answer(&answer) } else { table(&out, rows(&answer, "users")) }
            }
            Command::Show(one) => {
                let id = ids::user(&client, &one.user).await?;
                shown(&out, &client.get(&["admin", "users", &id], &[]).await?)
            }
            Command::Set(set) => {
                let mut change = settings(&set.settings)?;
                // A name may look like a number.
                for field in ["name", "email", "image_url"] {
                    if change[field].is_number() || change[field].is_boolean() {
                        change[field] = json!(change[field].to_string());
                    }
                }
                let id = ids::user(&client, &set.one.user).await?;
                shown(&out, &client.send(Method::PATCH, &["admin", "users", &id], Some(&change)).await?)
            }
            Command::Key(command) => {
                let id = ids::user(&client, &command.one.user).await?;
                let body = match command.keep_old {
                    Some(keep) => json!({"old_keys_valid_for_ms": keep.as_millis() as u64}),
                    None => json!({}),
                };
                let answer = client.send(Method::POST, &["admin", "users", &id, "keys"], Some(&body)).await?;
                key(&out, &answer, &format!("The user {id} has a new API key."))
            }
        }
    }
}

/// Prints a key alone on standard output, so that a script can keep it.
fn key(out: &Output, answer: &Value, what: &str) -> Done {
    if out.json {
        return out.answer(answer);
    }
    out.note(&format!("{what} Save the key: the server shows it once."));
    out.line(&text(&answer["api_key"]))
}

fn table(out: &Output, users: &[Value]) -> Done {
    let length =
        if out.is_terminal { ids::shown_length(users.iter().filter_map(|user| user["id"].as_str())) } else { 36 };
    let mut table = Table::new(&[
        Column::new("USER"),
        Column::new("EMAIL").shrinks(),
        Column::new("NAME").shrinks().rank(1),
        Column::new("MAX BOTS").right(),
        Column::new("MIN PRIORITY").right().rank(2),
        Column::new("CREATED").rank(3),
    ]);
    for user in users {
        let id = text(&user["id"]);
        table.row(vec![
            (id.get(..length).unwrap_or(&id).to_owned(), Tone::Plain),
            (text(&user["email"]), Tone::Plain),
            (text(&user["name"]), Tone::Plain),
            (text(&user["max_concurrent_bots"]), Tone::Plain),
            (text(&user["min_priority"]), Tone::Plain),
            (at(&user["created_at"]), Tone::Quiet),
        ]);
    }
    out.table(&table)
}

fn shown(out: &Output, answer: &Value) -> Done {
    if out.json {
        return out.answer(answer);
    }
    let user = &answer["user"];
    out.field("user", &text(&user["id"]), Tone::Strong)?;
    for field in ["email", "name", "max_concurrent_bots", "min_priority", "data", "created_at"] {
        out.field(field, &text(&user[field]), Tone::Plain)?;
    }
    Ok(())
}
