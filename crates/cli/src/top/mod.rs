//! `greenroom top`: the live view of slots, queue, bots and keepers in a terminal.
//!
//! - this file: the options, the errors, and the two ways to run it
//! - [`stream`]: follows `GET /admin/live`, and connects again
//! - [`message`], [`state`]: reads its messages, and keeps the fleet up to date
//! - [`api`], [`explanation`]: the other calls, and what they return
//! - [`screen`], [`rows`]: what is shown and chosen
//! - [`input`]: what keys do
//! - [`view`]: draws it
//! - [`session`], [`terminal`]: runs it in a terminal, and leaves the terminal as it was
//! - [`once`]: prints one picture as text
//! - [`text`]: texts and durations for the terminal

mod api;
mod explanation;
mod input;
mod message;
mod once;
mod rows;
mod screen;
mod session;
mod state;
mod stream;
mod terminal;
mod text;
mod view;

use std::io::IsTerminal;

use api::Api;
use screen::Screen;
use stream::Connection;

/// What `greenroom top` shows.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Begin with this pool.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Print one picture as text, and exit. This is the default when the output is not a terminal.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error("{server} does not accept the token: {detail}. `greenroom top` needs the admin token of the server")]
    NotAllowed { server: String, detail: String },
    #[error("cannot reach the server at {server}: {reason}")]
    Unreachable { server: String, reason: String },
    #[error("there is no pool `{name}`; the pools are {known}")]
    NoSuchPool { name: String, known: String },
    #[error("{0}")]
    Other(String),
}

/// Shows the fleet until a person quits, or once.
pub async fn run(server: &str, token: &str, options: Options) -> Result<(), TopError> {
    let api = Api::new(server, token)?;
    let (connection, first) = Connection::open_with_snapshot(&api).await?;
    let mut screen = Screen::new(api.shown(), options.pool);
    if !screen.fleet.apply(&first) {
        return Err(TopError::Other(format!("{} sends no live view", api.shown())));
    }
    check_pool(&screen)?;
    // A terminal that cannot move the cursor is like a pipe.
    let is_screen = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if options.once || !is_screen {
        once::print(&api, screen, connection.clock_difference).await
    } else {
        session::run(api, connection, screen).await
    }
}

fn check_pool(screen: &Screen) -> Result<(), TopError> {
    let Some(name) = screen.scope.as_ref().filter(|_| screen.scope_index().is_none()) else { return Ok(()) };
    let known: Vec<&str> = screen.fleet.pools.iter().map(|pool| pool.name.as_str()).collect();
    Err(TopError::NoSuchPool { name: text::clean(name), known: known.join(", ") })
}
