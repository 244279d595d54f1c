//! Measuring: each figure is taken beside something named, in one run, so that the machine does not matter. The server
//! and the load generator are processes of their own, started from this program. They are told what to do over their
//! standard input, so that no secret is on a command line.
//!
//! - [`place`]: the full path of a bot over HTTP, beside pgbench with bare statements on the same PostgreSQL
//! - [`scale`]: the same on pools of up to a million slots, beside the smallest
//! - [`burst`]: many more requests at once than there are slots, beside the rate without a queue
//! - [`bloat`]: placement while a transaction is held open, beside the time before
//! - [`failover`]: two servers of which one is killed again and again, beside the time without kills
//! - [`start`]: from the answer to a running command, in a hot slot beside a stopped one and `docker run`
//! - [`start_burst`]: many commands at once in hot slots, beside `xargs -P`
//! - [`next`]: from a bot's end to the next in the queue assigned, beside a poll of one second
//! - [`matching`]: finding one in a hundred that fits, in the store beside the way over SQS and DynamoDB
//! - [`hostile`]: what others see while a hostile user attacks, beside what they see alone
//!
//! and what they share:
//!
//! - [`fixture`]: a database with a filled pool, its users, and servers on it
//! - [`server`]: the server under measurement
//! - [`load`]: the load generator
//! - [`database`]: a database for one measurement, read and written by plain SQL
//! - [`pgbench`]: the bare statements that placement is measured beside
//! - [`usage`]: processor time and memory of processes
//! - [`client`]: a lean HTTP client, so that what is measured is the server
//! - [`container`]: an image of this program on a Docker Engine
//! - [`figures`]: medians and percentiles
//! - [`svg`]: line plots with labelled axes
//! - [`bars`]: bar charts

mod bars;
pub mod bloat;
pub mod burst;
mod client;
mod container;
mod database;
pub mod failover;
mod figures;
mod fixture;
pub mod hostile;
pub mod load;
pub mod matching;
pub mod next;
mod pgbench;
pub mod place;
pub mod scale;
pub mod server;
pub mod start;
pub mod start_burst;
mod svg;
mod usage;

type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
