//! The agent as it is run, against a server that writes down what it hears and minds every mistake.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod agent;
mod commands;
mod leaving;
mod life;
mod misuse;
mod outage;
mod refusals;
mod request;
mod runner;
mod server;
mod slot;
