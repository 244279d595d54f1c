//! The agent as users run it, with a strict stand-in for the server that records all calls and every mistake.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agent;
mod browser_bot;
mod commands;
mod leaving;
mod life;
mod misuse;
mod outage;
mod prewarm;
mod prewarm_runner;
mod probe;
mod refusals;
mod request;
mod runner;
mod screenshots;
mod server;
mod slot;
