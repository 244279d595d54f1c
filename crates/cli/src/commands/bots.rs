//! `bots`: everything about bots that have been requested.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::bot_start::{Start, object};
use super::bot_wait::{Timeout, Until, wait};
use super::text_streams::{Logs, Transcript};
use super::{both, for_each, text_streams};
use crate::client::Client;
use crate::complete;
use crate::error::{CliError, Done};
use crate::options::RemoteOptions;
use crate::pages::{self, rows};
use crate::show::{Column, Output, Table, Tone, age, at, duration, text, text_or_dash};
use crate::{follow, ids};

const OPEN: [&str; 9] = [
    "scheduled",
    "reserved",
    "queued",
    "deploying",
    "starting",
    "awaiting_admission",
    "needs_help",
    "active",
    "stopping",
];

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Request a bot for a meeting.
    Start(Box<Start>),
    /// List bots, newest first.
    List(List),
    /// Show one bot with its sessions.
    Show(One),
    /// Ask bots to leave. Works in every state.
    Stop(Stop),
    /// Change the configuration of a bot while it runs.
    Config(Config),
    /// Follow a bot from its request to its end, and end with its fate as exit code.
    Watch(Watch),
    /// Print what was said in the meeting.
    Transcript(Transcript),
    /// Print the last lines that the bot printed.
    Logs(Logs),
    /// List everything that happened to a bot.
    Events(One),
    /// Explain why a bot is where it is.
    Explain(One),
}

#[derive(Debug, Args)]
pub struct One {
    /// The id of the bot, or the beginning of it.
    #[arg(value_name = "BOT", add = complete::bots())]
    bot: String,
}

#[derive(Debug, Args)]
pub struct List {
    /// Only bots with this status.
    #[arg(long, value_name = "STATUS", add = complete::words(&complete::BOT_STATUSES))]
    status: Option<String>,
    /// Only bots on this platform.
    #[arg(long, value_name = "PLATFORM", value_parser = ["google_meet", "teams", "zoom"])]
    platform: Option<String>,
    /// Only bots of this meeting: a meeting link, or the id that the platform gave the meeting.
    #[arg(long, value_name = "MEETING")]
    meeting: Option<String>,
    /// Only bots whose metadata has this value. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Only bots that have not ended.
    #[arg(long, conflicts_with_all = ["status", "meeting", "metadata"])]
    open: bool,
    /// How many bots to list at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "all")]
    limit: usize,
    /// List all of them.
    #[arg(long)]
    all: bool,
}

#[derive(Debug, Args)]
pub struct Stop {
    /// The ids of the bots, or the beginnings of them.
    #[arg(value_name = "BOT", required = true, add = complete::bots())]
    bots: Vec<String>,
    /// Wait until they have left.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    timeout: Timeout,
}

#[derive(Debug, Args)]
pub struct Config {
    #[command(flatten)]
    one: One,
    /// The new configuration, a JSON object; `-` reads it from standard input.
    #[arg(value_name = "JSON")]
    config: String,
}

#[derive(Debug, Args)]
pub struct Watch {
    #[command(flatten)]
    one: One,
    /// Stop following when the bot is active, instead of when it has ended.
    #[arg(long, value_name = "UNTIL", default_value = "ended")]
    until: Until,
    #[command(flatten)]
    timeout: Timeout,
}

impl Command {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        if let Command::Start(start) = self {
            return start.run(options).await;
        }
        let (client, out) = (options.client()?, options.output());
        match self {
            Command::Start(_) => Ok(()),
            Command::List(list) => list.run(&client, &out).await,
            Command::Show(one) => show(&client, &out, &one.bot).await,
            Command::Stop(stop) => stop.run(&client, &out).await,
            Command::Config(config) => config.run(&client, &out).await,
            Command::Watch(Watch { one, until, timeout }) => {
                let bot = ids::bot(&client, &one.bot).await?;
                wait(&client, &out, &bot, until, timeout).await.map(drop)
            }
            Command::Transcript(command) => text_streams::transcript(&client, &out, command).await,
            Command::Logs(command) => text_streams::logs(&client, &out, command).await,
            Command::Events(one) => events(&client, &out, &one.bot).await,
            Command::Explain(one) => {
                let bot = ids::bot(&client, &one.bot).await?;
                let answer = client.get(&client.bots(&[&bot, "explain"]), &[]).await?;
                explanation(&out, &answer)
            }
        }
    }
}

impl List {
    async fn run(self, client: &Client, out: &Output) -> Done {
        let limit = (!self.all).then_some(self.limit);
        let mut query = Vec::new();
        query.extend(self.status.map(|status| ("status", status)));
        query.extend(self.platform.clone().map(|platform| ("platform", platform)));
        query.extend(self.meeting.clone().map(|meeting| ("meeting", meeting)));
        let pair = |pair: &String| {
            let split = pair.split_once('=').ok_or_else(|| CliError::usage(format!("`{pair}` is not KEY=VALUE")));
            split.map(|(key, value)| (format!("metadata.{key}"), value.to_owned()))
        };
        let metadata = self.metadata.iter().map(pair).collect::<Result<Vec<_>, _>>()?;
        query.extend(metadata.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let answer = match self.open {
            false => pages::read(client, &client.bots(&[]), "bots", &query, limit).await?,
            true => open_bots(client, &query, limit).await?,
        };
        if out.json {
            return out.answer(&answer);
        }
        let bots = rows(&answer, "bots");
        if bots.is_empty() {
            out.note("There are no such bots. Start one with `greenroom bots start LINK`.");
            return Ok(());
        }
        table(client, out, bots)?;
        if !answer["next_cursor"].is_null() {
            out.note(&format!("These are the newest {}. List more with --limit or --all.", bots.len()));
        }
        Ok(())
    }
}

/// Bots that have not ended. Operators have a list for each status only.
async fn open_bots(client: &Client, query: &[(&str, String)], limit: Option<usize>) -> Result<Value, CliError> {
    if !client.is_operator() {
        // The list has no filters, so the limit counts the rest of it.
        let read_limit = limit.filter(|_| query.is_empty());
        let answer = pages::read(client, &["bots", "active"], "bots", &[], read_limit).await?;
        let mut bots = rows(&answer, "bots").to_vec();
        bots.retain(|bot| query.iter().all(|(name, value)| bot[*name] == json!(value)));
        let is_cut = !answer["next_cursor"].is_null();
        return Ok(newest(bots, limit, is_cut));
    }
    let mut bots = Vec::new();
    let mut is_cut = false;
    for status in OPEN {
        let mut query = query.to_vec();
        query.push(("status", status.to_owned()));
        let answer = pages::read(client, &client.bots(&[]), "bots", &query, limit).await?;
        is_cut |= !answer["next_cursor"].is_null();
        bots.extend(rows(&answer, "bots").iter().cloned());
    }
    bots.sort_by_key(|bot| std::cmp::Reverse(text(&bot["id"])));
    // A bot that changed its status meanwhile is in two lists.
    bots.dedup_by_key(|bot| text(&bot["id"]));
    Ok(newest(bots, limit, is_cut))
}

/// The first of these bots, in the shape of one answer. `is_cut` says that there are more than these.
fn newest(mut bots: Vec<Value>, limit: Option<usize>, is_cut: bool) -> Value {
    let most = limit.unwrap_or(bots.len());
    let is_cut = is_cut || bots.len() > most;
    bots.truncate(most);
    let cursor = is_cut.then(|| bots.last().map(|bot| text(&bot["id"]))).flatten();
    json!({"bots": bots, "next_cursor": cursor})
}

fn table(client: &Client, out: &Output, bots: &[Value]) -> Done {
    let length = if out.is_terminal { ids::shown_length(bots.iter().filter_map(|bot| bot["id"].as_str())) } else { 36 };
    let mut columns = vec![
        Column::new("BOT"),
        Column::new("STATUS"),
        Column::new("FOR").right(),
        Column::new("NAME").shrinks().rank(3),
        Column::new("MEETING").shrinks(),
        Column::new("SLOT").rank(2),
        Column::new("WHY").shrinks().rank(1),
    ];
    if client.is_operator() {
        columns.push(Column::new("USER").rank(4));
    }
    let mut table = Table::new(&columns);
    for bot in bots {
        let status = text(&bot["status"]);
        let why = match (bot["queue_position"].as_i64(), bot["error"].as_str()) {
            (Some(position), _) => format!("position {position}"),
            (None, Some(error)) => format!("{}: {error}", text(&bot["reason"])),
            (None, None) => text_or_dash(&bot["reason"]),
        };
        let id = text(&bot["id"]);
        table.row(vec![
            (id.get(..length).unwrap_or(&id).to_owned(), Tone::Plain),
            (status.clone(), Tone::of_status(&status)),
            (age(&bot["status_since"]), Tone::Plain),
            (text_or_dash(&bot["bot_display_name"]), Tone::Plain),
            (text(&bot["native_meeting_id"]), Tone::Plain),
            (text_or_dash(&bot["slot"]), Tone::Plain),
            (why, if status == "failed" { Tone::Bad } else { Tone::Quiet }),
            (text(&bot["user_id"]), Tone::Quiet),
        ]);
    }
    out.table(&table)
}

async fn show(client: &Client, out: &Output, given: &str) -> Done {
    let id = ids::bot(client, given).await?;
    let answer = client.get(&client.bots(&[&id]), &[]).await?;
    if out.json {
        return out.answer(&answer);
    }
    one(out, &answer["bot"])
}

/// One bot, as fields.
pub fn one(out: &Output, bot: &Value) -> Done {
    let status = text(&bot["status"]);
    out.field("bot", &text(&bot["id"]), Tone::Strong)?;
    out.field("status", &format!("{status} for {}", age(&bot["status_since"])), Tone::of_status(&status))?;
    let fields = [
        (
            "queue",
            bot["queue_position"]
                .as_i64()
                .map(|position| format!("position {position}, about {} to wait", duration(&bot["estimated_wait_ms"]))),
        ),
        (
            "until",
            bot["deadline_at"].as_str().map(|_| format!("{} ({})", at(&bot["deadline_at"]), age(&bot["deadline_at"]))),
        ),
        ("reason", bot["reason"].as_str().map(str::to_owned)),
        ("fault", bot["fault"].as_str().map(str::to_owned)),
        ("error", bot["error"].as_str().map(str::to_owned)),
        ("name", bot["bot_display_name"].as_str().map(str::to_owned)),
        ("meeting", Some(text(&bot["meeting_url"]))),
        ("platform", Some(text(&bot["platform"]))),
        ("pool", bot["pool"].as_str().map(str::to_owned)),
        ("slot", bot["slot"].as_str().map(str::to_owned)),
        ("priority", Some(text(&bot["priority"]))),
        ("user", Some(text(&bot["user_id"]))),
        ("created", Some(at(&bot["created_at"]))),
        ("joined", bot["start_time"].as_str().map(|_| at(&bot["start_time"]))),
        ("ended", bot["end_time"].as_str().map(|_| at(&bot["end_time"]))),
        ("config", Some(text(&bot["config"])).filter(|text| !matches!(text.as_str(), "" | "{}"))),
        ("metadata", Some(text(&bot["metadata"])).filter(|text| !matches!(text.as_str(), "" | "{}"))),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            out.field(name, &value, if name == "error" { Tone::Bad } else { Tone::Plain })?;
        }
    }
    for session in rows(bot, "sessions") {
        let words = format!(
            "started {}, joined {}, ended {}",
            at(&session["started_at"]),
            at(&session["joined_at"]),
            at(&session["ended_at"])
        );
        out.field("session", &words, Tone::Plain)?;
    }
    Ok(())
}

impl Stop {
    async fn run(self, client: &Client, out: &Output) -> Done {
        // All of them leave at once; only then is there time to wait.
        let mut leaving = Vec::new();
        let stopped = for_each(&self.bots, async |given| {
            let id = ids::bot(client, given).await?;
            let answer = client.send(Method::DELETE, &client.bots(&[&id]), None).await?;
            let status = text(&answer["bot"]["status"]);
            let is_ended = follow::is_ended(&status);
            if self.wait && !is_ended {
                leaving.push(id.clone());
            }
            match (out.json, is_ended) {
                (true, _) => out.json_line(&answer),
                (false, true) => out.line(&format!("{id} has already ended: {status}.")),
                (false, false) => out.line(&format!("{id} is leaving.")),
            }
        })
        .await;
        let waited =
            for_each(&leaving, async |id| wait(client, out, id, Until::Ended, self.timeout).await.map(drop)).await;
        both(stopped, waited)
    }
}

impl Config {
    async fn run(self, client: &Client, out: &Output) -> Done {
        let given = match self.config.as_str() {
            "-" => std::io::read_to_string(std::io::stdin())
                .map_err(|error| CliError::failed(format!("cannot read standard input: {error}")))?,
            _ => self.config,
        };
        let config = object("the configuration", given.trim())?;
        let id = ids::bot(client, &self.one.bot).await?;
        let body = json!({"config": config});
        let answer = client.send(Method::PUT, &client.bots(&[&id, "config"]), Some(&body)).await?;
        if out.json { out.answer(&answer) } else { out.line(&format!("{id} gets the new configuration.")) }
    }
}

async fn events(client: &Client, out: &Output, given: &str) -> Done {
    let id = ids::bot(client, given).await?;
    let answer = pages::read(client, &client.bots(&[&id, "events"]), "events", &[], None).await?;
    if out.json {
        return out.answer(&answer);
    }
    let mut table = Table::new(&[
        Column::new("AT"),
        Column::new("EVENT"),
        Column::new("STATUS"),
        Column::new("BY").rank(1),
        Column::new("REASON").shrinks(),
    ]);
    for event in rows(&answer, "events") {
        let to = text(&event["to"]);
        table.row(vec![
            (at(&event["at"]), Tone::Plain),
            (text(&event["kind"]), Tone::Plain),
            (text_or_dash(&event["to"]), Tone::of_status(&to)),
            (text(&event["actor"]), Tone::Plain),
            (text_or_dash(&event["reason"]), Tone::Plain),
        ]);
    }
    out.table(&table)
}

/// Why a bot or a slot is where it is.
pub fn explanation(out: &Output, answer: &Value) -> Done {
    if out.json {
        return out.answer(answer);
    }
    out.painted(&out.paint(&text(&answer["summary"]), Tone::Strong))?;
    if let Some(what) = answer["waiting_for"].as_str() {
        out.field("waits for", what, Tone::Plain)?;
    }
    if answer["until"].is_string() {
        out.field("until", &format!("{} ({})", at(&answer["until"]), age(&answer["until"])), Tone::Plain)?;
    }
    let provider = &answer["provider"];
    if provider["status"].is_string() || provider["message"].is_string() {
        let words = [text(&provider["status"]), text(&provider["message"])];
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        out.field("provider", &words.join(": "), Tone::of_status(&text(&provider["status"])))?;
    }
    if let Some(advice) = answer["advice"].as_str() {
        out.field("advice", advice, Tone::Warning)?;
    }
    let steps = rows(answer, "steps");
    if !steps.is_empty() {
        let mut table = Table::new(&[
            Column::new("AT"),
            Column::new("TOOK").right(),
            Column::new("USUALLY").right(),
            Column::new("STEP").shrinks(),
        ]);
        for step in steps {
            let took = if step["took_ms"].is_null() { "now".to_owned() } else { duration(&step["took_ms"]) };
            table.row(vec![
                (at(&step["at"]), Tone::Plain),
                (took, Tone::Plain),
                (duration(&step["median_ms"]), Tone::Quiet),
                (text(&step["what"]), Tone::Plain),
            ]);
        }
        out.line("")?;
        out.table(&table)?;
    }
    let lines = rows(provider, "last_lines");
    if !lines.is_empty() {
        out.line("")?;
        out.painted(&out.paint("last lines", Tone::Quiet))?;
        for line in lines {
            out.line(&format!("  {}", text(line)))?;
        }
    }
    Ok(())
}
