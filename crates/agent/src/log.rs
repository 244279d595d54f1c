//! The agent's own log: one line on standard error for each event. Standard output is for the bot's output. If a line
//! cannot be written, it is lost, and the agent continues.

use std::fmt::Arguments;
use std::io::Write;

macro_rules! log {
    ($($argument:tt)*) => { $crate::log::line(format_args!($($argument)*)) };
}
pub(crate) use log;

pub fn line(arguments: Arguments<'_>) {
    let mut text = format!("greenroom-agent: {arguments}");
    // Text from a server or a bot may contain line breaks; a log event stays one line.
    if text.contains(char::is_control) {
        text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    }
    text.push('\n');
    // `eprintln!` would panic when standard error is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
