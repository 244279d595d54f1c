//! What a command prints. Data goes to standard output, everything else to standard error. Text of a server is cleaned
//! on its way out, so that a bot's name cannot move the cursor of a terminal or change its title.
//!
//! - `table`: rows in columns, as wide as the terminal
//! - `time`: durations and ages

mod table;
mod time;

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Color, Style};
use serde_json::Value;

use crate::error::{CliError, Done};

pub use table::{Column, Table};
pub use time::{age, at, duration, parse_duration, span, timestamp};

/// How commands write.
#[derive(Debug)]
pub struct Output {
    pub json: bool,
    /// Whether a person reads standard output.
    pub is_terminal: bool,
    has_color: bool,
    width: Option<u16>,
}

/// What a text means, which decides its colour.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Busy,
    Warning,
    Bad,
    Quiet,
    Strong,
}

impl Tone {
    fn color(self) -> Option<AnsiColor> {
        match self {
            Tone::Plain | Tone::Strong | Tone::Quiet => None,
            Tone::Good => Some(AnsiColor::Green),
            Tone::Busy => Some(AnsiColor::Cyan),
            Tone::Warning => Some(AnsiColor::Yellow),
            Tone::Bad => Some(AnsiColor::Red),
        }
    }

    fn style(self) -> Style {
        let style = Style::new().fg_color(self.color().map(Color::Ansi));
        match self {
            Tone::Strong => style.bold(),
            Tone::Quiet => style.dimmed(),
            _ => style,
        }
    }

    /// The tone of the status of a bot or a slot.
    pub fn of_status(status: &str) -> Self {
        match status {
            "active" | "completed" | "idle" | "ok" | "running" => Tone::Good,
            "failed" | "error" | "critical" | "missing" | "unhealthy" => Tone::Bad,
            "needs_help" | "awaiting_admission" | "draining" | "warning" => Tone::Warning,
            "busy" | "starting" | "deploying" | "creating" | "queued" | "reserved" => Tone::Busy,
            "stopping" | "scheduled" | "stopped" => Tone::Quiet,
            _ => Tone::Plain,
        }
    }
}

impl Output {
    pub fn new(json: bool) -> Self {
        let is_terminal = io::stdout().is_terminal();
        // This looks at NO_COLOR, CLICOLOR, CLICOLOR_FORCE and TERM.
        let has_color = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let width = if is_terminal { ratatui::crossterm::terminal::size().ok().map(|(width, _)| width) } else { None };
        Self { json, is_terminal, has_color, width: width.filter(|width| *width > 0) }
    }

    /// A line of text of ours and of the server's.
    pub fn line(&self, text: &str) -> Done {
        writeln!(io::stdout().lock(), "{}", clean(text)).map_err(Into::into)
    }

    pub fn paint(&self, text: &str, tone: Tone) -> String {
        let text = clean(text);
        if !self.has_color || tone == Tone::Plain {
            return text;
        }
        let style = tone.style();
        format!("{style}{text}{style:#}")
    }

    /// A line of texts that `paint` made.
    pub fn painted(&self, text: &str) -> Done {
        writeln!(io::stdout().lock(), "{text}").map_err(Into::into)
    }

    /// A name and its value, below others. Values of several lines stay aligned.
    pub fn field(&self, name: &str, value: &str, tone: Tone) -> Done {
        let name = format!("{name:<14}");
        let mut lines = value.lines();
        let first = self.paint(lines.next().unwrap_or("-"), tone);
        self.painted(format!("{} {first}", self.paint(&name, Tone::Quiet)).trim_end())?;
        for line in lines {
            self.painted(&format!("{:14} {}", "", self.paint(line, tone)))?;
        }
        Ok(())
    }

    /// An answer of the server, over several lines for a person.
    pub fn answer(&self, value: &Value) -> Done {
        let text = if self.is_terminal { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        self.json_text(text)
    }

    /// One of several objects, each on its line.
    pub fn json_line(&self, value: &Value) -> Done {
        self.json_text(serde_json::to_string(value))
    }

    fn json_text(&self, text: Result<String, serde_json::Error>) -> Done {
        let text = text.map_err(|error| CliError::failed(format!("cannot write JSON: {error}")))?;
        let mut out = io::stdout().lock();
        writeln!(out, "{}", escaped(&text))?;
        out.flush().map_err(Into::into)
    }

    pub fn table(&self, table: &Table) -> Done {
        let text = table.render(self.width, self.has_color);
        write!(io::stdout().lock(), "{text}").map_err(Into::into)
    }

    /// What is not data: on standard error.
    pub fn note(&self, text: &str) {
        let _ = writeln!(io::stderr().lock(), "{}", clean(text));
    }
}

/// Characters that a terminal may act on: control characters, and those that change the direction of text.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The text with its dangerous characters written out. A tab becomes a space.
pub fn clean(text: &str) -> String {
    if !text.contains(is_unsafe) {
        return text.to_owned();
    }
    let mut cleaned = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' => cleaned.push(' '),
            c if is_unsafe(c) => cleaned.extend(c.escape_unicode()),
            c => cleaned.push(c),
        }
    }
    cleaned
}

/// JSON in which no dangerous character stands for itself. The encoder leaves DEL and the C1 controls as they are.
fn escaped(json: &str) -> String {
    let is_kept = |c: char| c == '\n' || !is_unsafe(c);
    if json.chars().all(is_kept) {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if is_kept(c) { text.push(c) } else { text.push_str(&format!("\\u{:04x}", u32::from(c))) }
    }
    text
}

/// A value of the server's answer as text: nothing for `null`.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The same, with a dash for nothing.
pub fn text_or_dash(value: &Value) -> String {
    let text = text(value);
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Bytes for people.
pub fn bytes(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(bytes) if bytes < 1024.0 * 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        Some(bytes) if bytes < 1024.0 * 1024.0 * 1024.0 => format!("{:.0} MiB", bytes / 1024.0 / 1024.0),
        Some(bytes) => format!("{:.1} GiB", bytes / 1024.0 / 1024.0 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{clean, escaped};

    #[test]
    fn text_of_a_server_cannot_act_on_a_terminal() {
        assert_eq!(clean("Ada \u{1b}]0;owned\u{7}\u{9b}2J\u{7f}"), "Ada \\u{1b}]0;owned\\u{7}\\u{9b}2J\\u{7f}");
        assert_eq!(clean("one\ntwo\tthree\r"), "one two three\\u{d}");
        assert_eq!(clean("Zoë 日本 🎉"), "Zoë 日本 🎉");
        assert_eq!(clean("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
    }

    #[test]
    fn json_stays_the_same_value_without_characters_that_act() {
        let value = serde_json::json!({"name": "a\u{1b}[2J\u{9b}2J\u{7f}\u{202e}"});
        let text = escaped(&serde_json::to_string_pretty(&value).unwrap_or_default());
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).ok(), Some(value));
    }
}
