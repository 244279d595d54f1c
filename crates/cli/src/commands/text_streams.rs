//! `bots transcript` and `bots logs`: text of a bot, once or as it comes.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::complete;
use crate::error::{CliError, Done};
use crate::follow::is_ended;
use crate::ids;
use crate::pages::{self, rows};
use crate::show::{Output, Tone, text};
use crate::stream::Reconnect;

/// There is no stream of segments and lines, so the command asks again.
const POLL: Duration = Duration::from_secs(1);
/// The most lines that the server returns. Who follows asks for all of them, so that a bot that prints much between two
/// questions loses none.
const MOST_LINES: u16 = 5_000;

#[derive(Debug, Args)]
pub struct Transcript {
    /// The id of the bot, or the beginning of it.
    #[arg(value_name = "BOT", add = complete::bots())]
    bot: String,
    /// Print what is said as it comes, until the bot has ended.
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// The id of the bot, or the beginning of it.
    #[arg(value_name = "BOT", add = complete::bots())]
    bot: String,
    /// How many of the last lines to print.
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=5_000))]
    lines: u16,
    /// Print lines as they come, until the bot has ended.
    #[arg(long, short)]
    follow: bool,
}

pub async fn transcript(client: &Client, out: &Output, command: Transcript) -> Done {
    let id = ids::bot(client, &command.bot).await?;
    let path = client.bots(&[&id, "transcript"]);
    if !command.follow {
        let answer = pages::read(client, &path, "segments", &[], None).await?;
        if out.json {
            return out.answer(&answer);
        }
        let segments = rows(&answer, "segments");
        if segments.is_empty() {
            out.note("Nothing was said yet.");
        }
        return segments.iter().try_for_each(|segment| said(out, segment));
    }
    follow(
        client,
        &id,
        async || {
            let answer = pages::read(client, &path, "segments", &[], None).await?;
            Ok(rows(&answer, "segments").to_vec())
        },
        |segment| if out.json { out.json_line(segment) } else { said(out, segment) },
    )
    .await
}

fn said(out: &Output, segment: &Value) -> Done {
    let seconds = segment["start_time"].as_f64().unwrap_or(0.0).max(0.0) as u64;
    let time = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let speaker = segment["speaker"].as_str().map(|speaker| format!("{speaker}: ")).unwrap_or_default();
    out.painted(&format!(
        "{}  {}{}",
        out.paint(&time, Tone::Quiet),
        out.paint(&speaker, Tone::Strong),
        out.paint(&text(&segment["text"]), Tone::Plain)
    ))
}

pub async fn logs(client: &Client, out: &Output, command: Logs) -> Done {
    let id = ids::bot(client, &command.bot).await?;
    let path = client.bots(&[&id, "logs"]);
    let query = [("lines", command.lines.to_string())];
    let print = |line: &Value| match out.json {
        true => out.json_line(line),
        false => out.line(&text(&line["text"])),
    };
    if !command.follow {
        let answer = client.get(&path, &query).await?;
        if out.json {
            return out.answer(&answer);
        }
        let lines = rows(&answer, "lines");
        if lines.is_empty() {
            out.note("The bot has printed nothing.");
        } else if answer["truncated"] == json!(true) {
            out.note("There were earlier lines.");
        }
        return lines.iter().try_for_each(print);
    }
    // The server keeps the last lines only: what came is what follows the longest known beginning.
    let query = [("lines", MOST_LINES.to_string())];
    let (mut known, mut is_first) = (Vec::<Value>::new(), true);
    let mut reconnect = Reconnect::default();
    loop {
        let status = status(client, &id).await;
        let read = match status {
            Ok(status) => client.get(&path, &query).await.map(|answer| (status, answer)),
            Err(error) => Err(error),
        };
        let (status, answer) = match read {
            Ok(read) => read,
            Err(error) => {
                reconnect.wait(Some(error)).await?;
                continue;
            }
        };
        reconnect.connected();
        let lines = rows(&answer, "lines");
        let new = match (new_lines(&known, lines), known.is_empty()) {
            (Some(new), _) => new,
            (None, true) if is_first => &lines[lines.len().saturating_sub(command.lines.into())..],
            (None, true) => lines,
            (None, false) => {
                out.note("The lines that follow do not continue those before; some may be missing.");
                lines
            }
        };
        new.iter().try_for_each(print)?;
        is_first = false;
        if !lines.is_empty() {
            known = lines.to_vec();
        }
        if is_ended(&status) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The lines after those that are known; `None` if there are none of those. Times are compared where both readings have
/// them.
fn new_lines<'a>(known: &[Value], lines: &'a [Value]) -> Option<&'a [Value]> {
    let is_same = |left: &Value, right: &Value| {
        let has_times = left["at"].is_string() && right["at"].is_string();
        left["text"] == right["text"] && (!has_times || left["at"] == right["at"])
    };
    let same = |left: &[Value], right: &[Value]| left.iter().zip(right).all(|(left, right)| is_same(left, right));
    if lines.is_empty() {
        return Some(lines);
    }
    for gone in 0..known.len() {
        let left = &known[gone..];
        if left.len() <= lines.len() && same(left, lines) {
            return Some(&lines[left.len()..]);
        }
    }
    None
}

async fn status(client: &Client, id: &str) -> Result<String, CliError> {
    Ok(text(&client.get(&client.bots(&[id]), &[]).await?["bot"]["status"]))
}

/// Reads a list again and again, and prints what was not in it before. Segments have no ids, and one may come late and
/// stand before others, so they are told apart by what they say.
async fn follow(
    client: &Client,
    id: &str,
    read: impl AsyncFn() -> Result<Vec<Value>, CliError>,
    print: impl Fn(&Value) -> Done,
) -> Done {
    let mut printed: HashMap<String, usize> = HashMap::new();
    let mut reconnect = Reconnect::default();
    loop {
        // The status first: what is said before the end is then in the list.
        let both = match status(client, id).await {
            Ok(status) => read().await.map(|rows| (status, rows)),
            Err(error) => Err(error),
        };
        let (status, rows) = match both {
            Ok(both) => both,
            Err(error) => {
                reconnect.wait(Some(error)).await?;
                continue;
            }
        };
        reconnect.connected();
        let mut seen: HashMap<String, usize> = HashMap::new();
        for row in &rows {
            let key = row.to_string();
            let count = seen.entry(key.clone()).or_default();
            *count += 1;
            let before = printed.entry(key).or_default();
            if *count > *before {
                *before += 1;
                print(row)?;
            }
        }
        if is_ended(&status) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::new_lines;
    use serde_json::{Value, json};

    fn lines(texts: &[&str]) -> Vec<Value> {
        texts.iter().map(|text| json!({"at": null, "text": text})).collect()
    }

    #[test]
    fn only_new_lines_are_printed_when_the_window_moves() {
        let window = lines(&["b", "c", "d", "e"]);
        let new = |known: &[Value], lines: &[Value]| new_lines(known, lines).map(<[Value]>::to_vec);
        assert_eq!(new(&lines(&["a", "b", "c"]), &window), Some(lines(&["d", "e"])));
        assert_eq!(new(&window, &window), Some(lines(&[])));
        assert_eq!(new(&window, &[]), Some(lines(&[])));
        assert_eq!(new(&[], &window), None);
        assert_eq!(new(&lines(&["x"]), &window), None, "everything moved on");
    }

    #[test]
    fn equal_lines_are_told_apart_by_their_times_where_there_are_any() {
        let tick = |second: u32| json!({"at": format!("2026-01-01T00:00:0{second}Z"), "text": "tick"});
        let (known, moved) = ([tick(1), tick(2)], [tick(2), tick(3)]);
        assert_eq!(new_lines(&known, &moved), Some(&moved[1..]));
        assert_eq!(new_lines(&known, &lines(&["tick", "tick"])), Some(&[][..]));
    }
}
