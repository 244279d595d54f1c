//! The agent's own log: one line on standard error for each event. Standard output belongs to the bot, and losing a
//! line because nobody reads is better than failing over it.

use std::fmt::Arguments;
use std::io::Write;

macro_rules! log {
    ($($argument:tt)*) => { $crate::log::line(format_args!($($argument)*)) };
}
pub(crate) use log;

pub fn line(arguments: Arguments<'_>) {
    let mut text = format!("greenroom-agent: {arguments}");
    // What a server or a bot says may hold line breaks; an event stays one line.
    if text.contains(char::is_control) {
        text = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    }
    text.push('\n');
    // Not eprintln!, which panics when standard error is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
