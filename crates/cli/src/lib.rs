//! The commands that talk to a server over HTTP. They need a server and a token, and neither a configuration file nor
//! a database.
//!
//! In reading order:
//! - `options`: which server and which token; `profiles`: what `login` keeps
//! - `client`: one call; `pages`: a list; `stream`: server-sent events; `error`: what a refusal means, and exit codes
//! - `ids`: shortened ids; `follow`: the events of one bot as they come; `state_lines`: these events for a person
//! - `show`: text, tables and times on the terminal, in a pipe and as JSON
//! - `commands`: one file for each noun
//! - `complete`, `manual`: completions, man pages and the reference, from the tree of commands
//! - `top`: the live view

pub mod client;
pub mod commands;
pub mod complete;
pub mod error;
mod follow;
mod ids;
pub mod manual;
pub mod options;
mod pages;
pub mod profiles;
mod show;
mod state_lines;
mod stream;
pub mod top;

pub use commands::{Remote, pools};
pub use options::{RemoteOptions, RemoteOptionsBefore};
