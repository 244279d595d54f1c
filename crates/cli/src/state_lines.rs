//! A bot's way through its states, for a person: in a terminal, lines that update; in a pipe, one line for each state;
//! as JSON, each event.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde_json::Value;

use crate::error::Done;
use crate::follow::is_ended;
use crate::show::{Output, Tone, clean, span, text, timestamp};

#[derive(Debug)]
pub struct StateLines<'a> {
    out: &'a Output,
    live: Option<Live>,
    status: Option<String>,
    since: Option<Timestamp>,
    /// The slot, or what the bot waits for.
    detail: String,
}

/// Lines at the bottom of a terminal that are drawn again and again.
#[derive(Debug)]
struct Live {
    lines: MultiProgress,
    current: ProgressBar,
    pulls: BTreeMap<String, ProgressBar>,
}

impl Live {
    fn new() -> Self {
        let lines = MultiProgress::new();
        let style =
            ProgressStyle::with_template("{spinner} {msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let current = lines.add(ProgressBar::new_spinner().with_style(style));
        current.enable_steady_tick(Duration::from_millis(120));
        Self { lines, current, pulls: BTreeMap::new() }
    }
}

impl<'a> StateLines<'a> {
    pub fn new(out: &'a Output) -> Self {
        let is_live = !out.json && out.is_terminal && std::io::stderr().is_terminal();
        Self { out, live: is_live.then(Live::new), status: None, since: None, detail: String::new() }
    }

    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Takes an event.
    pub fn event(&mut self, event: &Value) -> Done {
        if self.out.json {
            return self.out.json_line(event);
        }
        let (at, kind) = (timestamp(&event["at"]), text(&event["kind"]));
        let reason = text(&event["reason"]);
        match event["to"].as_str() {
            Some(to) if Some(to) != self.status.as_deref() => self.enter(to, at, &kind, &reason),
            _ => self.extra(event, &kind, &reason),
        }
    }

    fn enter(&mut self, to: &str, at: Option<Timestamp>, kind: &str, reason: &str) -> Done {
        let took = self.leave(at);
        let is_slot = matches!(kind, "created" | "assigned") && !reason.is_empty();
        let detail = if is_slot { format!("in {reason}") } else { reason.to_owned() };
        if let Some(live) = &self.live {
            if let (Some(status), Some(took)) = (&self.status, &took) {
                let status = self.out.paint(&format!("{status:<20}"), Tone::of_status(status));
                let _ = live.lines.println(format!("  {status} {took:>7}  {}", clean(&self.detail)).trim_end());
            }
        } else {
            let time = at.and_then(|at| at.round(jiff::Unit::Second).ok()).map(|at| at.to_string()).unwrap_or_default();
            let before = match (&self.status, took) {
                (Some(status), Some(took)) => format!("{status} took {took}"),
                _ => String::new(),
            };
            let parts = [before, detail.clone()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
            self.out.line(format!("{time}  {to:<20} {}", parts.join("; ")).trim_end())?;
        }
        (self.status, self.since, self.detail) = (Some(to.to_owned()), at, detail);
        self.draw();
        Ok(())
    }

    /// How long the present state took.
    fn leave(&self, at: Option<Timestamp>) -> Option<String> {
        Some(span(at?.as_millisecond() - self.since?.as_millisecond()))
    }

    /// An event that is no change of status.
    fn extra(&mut self, event: &Value, kind: &str, reason: &str) -> Done {
        let words = match kind {
            "command_sent" => format!("command {reason} sent by the {}", text(&event["actor"])),
            "command_acknowledged" => format!("command {reason} acknowledged"),
            "warning" => format!("warning: {reason}"),
            _ => return Ok(()),
        };
        match &self.live {
            Some(live) => {
                let _ = live.lines.println(format!("  {}", self.out.paint(&words, Tone::Quiet)));
                Ok(())
            }
            None => self.out.line(&format!("{:20}  {words}", "")),
        }
    }

    /// What the bot waits for, while it waits.
    pub fn detail(&mut self, detail: &str) {
        detail.clone_into(&mut self.detail);
        self.draw();
    }

    /// Draws the present state with the time since it began.
    pub fn draw(&self) {
        if let (Some(live), Some(line)) = (&self.live, self.present()) {
            live.current.set_message(line);
        }
    }

    /// The present state with the time since it began, in steps that a person can read.
    fn present(&self) -> Option<String> {
        let (status, since) = (self.status.as_ref()?, self.since?);
        let took = (Timestamp::now().as_millisecond() - since.as_millisecond()).max(0) / 100 * 100;
        let status = self.out.paint(&format!("{status:<20}"), Tone::of_status(status));
        Some(format!("{status} {:>7}  {}", span(took), clean(&self.detail)).trim_end().to_owned())
    }

    /// Draws a bar for each image that is being pulled.
    pub fn pulls(&mut self, pulls: &[Value]) {
        let Some(live) = &mut self.live else { return };
        let key = |pull: &Value| format!("{} on {}", text(&pull["image"]), text(&pull["host"]));
        live.pulls.retain(|name, bar| {
            let stays = pulls.iter().any(|pull| key(pull) == *name);
            if !stays {
                bar.finish_and_clear();
            }
            stays
        });
        for pull in pulls {
            let name = key(pull);
            let bar = live.pulls.entry(name.clone()).or_insert_with(|| {
                let bar = live.lines.add(ProgressBar::new(0).with_style(pull_style()));
                bar.set_message(format!("pulling {}", clean(&name)));
                bar
            });
            bar.set_length(pull["bytes"].as_u64().unwrap_or(0));
            bar.set_position(pull["bytes_done"].as_u64().unwrap_or(0));
        }
    }

    /// Says something between the lines, on standard error.
    pub fn note(&self, text: &str) {
        match &self.live {
            Some(live) => {
                let _ = live.lines.println(clean(text));
            }
            None => self.out.note(text),
        }
    }

    /// Removes the lines that update. The state in which a bot was left stays on the screen.
    pub fn finish(&mut self) {
        let left = self.present().filter(|_| !self.status.as_deref().is_some_and(is_ended));
        if let Some(live) = self.live.take() {
            if let Some(left) = left {
                let _ = live.lines.println(format!("  {left}"));
            }
            for bar in live.pulls.values() {
                bar.finish_and_clear();
            }
            live.current.finish_and_clear();
            let _ = live.lines.clear();
        }
    }
}

impl Drop for StateLines<'_> {
    fn drop(&mut self) {
        self.finish();
    }
}

pub fn pull_style() -> ProgressStyle {
    let template = "  {msg} [{bar:24}] {bytes}/{total_bytes}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ")
}
