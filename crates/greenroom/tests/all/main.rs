//! Everything that is tested from outside: the store through its interface, the server as a process over HTTP. A test
//! that needs PostgreSQL or Chromium has its name in its own; `./scripts/test` brings both.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod admission;
mod agent;
mod callbacks;
mod cli;
mod crash;
mod documents;
mod feed;
mod lifecycle;
mod limit;
mod reading;
mod store;
mod stream;
mod sweeper;
