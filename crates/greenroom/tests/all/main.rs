//! Everything that is tested from outside: the store through its interface, the server as a process over HTTP. A test
//! that needs PostgreSQL, Redis, Chromium or Docker has its name in its own; `./scripts/test` brings them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

mod admission;
mod afresh;
mod agent;
mod bench;
mod budget;
mod bus;
mod callbacks;
mod chaos;
mod clearing;
mod cli;
mod contract;
mod coolify;
mod coolify_fake;
mod coolify_load;
mod coolify_server;
mod crash;
mod docker;
mod docker_engine;
mod docker_swarm;
mod doctor;
mod documents;
mod ec2;
mod faults;
mod feed;
mod gate;
mod hot;
mod images;
mod keepers;
mod killed;
mod lifecycle;
mod limit;
mod making;
mod mishaps;
mod net;
mod nomad;
mod nomad_fake;
mod operators;
mod pool;
mod reading;
mod recovery;
mod replicas;
mod requirements;
mod restart;
mod stops;
mod store;
mod storm;
mod strays;
mod stream;
mod swarm;
mod sweeper;
mod sync;
