//! Everything that is tested from outside: the store through its interface, the server as a process over HTTP. A test
//! that needs PostgreSQL or Chromium has its name in its own; `./scripts/test` brings both.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod admission;
mod afresh;
mod agent;
mod bench;
mod callbacks;
mod clearing;
mod cli;
mod crash;
mod documents;
mod feed;
mod gate;
mod hot;
mod images;
mod lifecycle;
mod limit;
mod mishaps;
mod net;
mod operators;
mod pool;
mod reading;
mod restart;
mod store;
mod storm;
mod stream;
mod sweeper;
