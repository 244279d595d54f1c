//! The benchmarks. Each figure is compared with a named reference in the same run, so that the result depends little on
//! the machine. The server and the load generator are separate processes of this program. They read their tasks from
//! standard input, so that no secret is on a command line.
//!
//! - [`place`]: the full path of a bot over HTTP, compared with pgbench and plain statements on the same PostgreSQL
//! - [`scale`]: the same on pools of up to a million slots, compared with the smallest
//! - [`burst`]: many more requests at once than slots, compared with the rate without a queue
//! - [`bloat`]: placement while a transaction stays open, compared with the time before
//! - [`prune`]: placement while a million old bots are deleted, compared with placement without that
//! - [`growth`]: the size of the database over many simulated days
//! - [`failover`]: two servers, of which one is killed again and again, compared with the time without kills
//! - [`start`]: from the answer to a running command, in a hot slot compared with a stopped one and `docker run`
//! - [`start_browser`]: from the request until a bot with a browser has joined, compared with a start by hand
//! - [`start_burst`]: many commands at once in hot slots, compared with `xargs -P`
//! - [`dashboard`]: the page of operators in a browser while slots change, with 10,000 slots compared with 1,000
//! - [`next`]: from a bot's end to the assignment of the next in the queue, compared with a poll every second
//! - [`matching`]: a slot that fits, where one in a hundred does, in the store compared with SQS and DynamoDB
//! - [`heartbeats`]: heartbeats over HTTP, compared with one update for each
//! - [`idle`]: the statements, memory and processor time of a server in whose hot slots agents wait
//! - [`reads`]: list and status calls with a million ended bots, compared with a thousandth
//! - [`hostile`]: the latencies of other users while a hostile user attacks, compared with those without an attack
//!
//! The modules that they share:
//!
//! - [`fixture`]: a database with a filled pool, its users, and servers on it
//! - [`server`]: the measured server
//! - [`load`]: the load generator
//! - [`database`]: a database for one measurement, used with plain SQL
//! - [`old_bots`]: bots that ended long ago
//! - [`pgbench`]: the plain statements that placement is compared with
//! - [`statements`]: the statements of a server, from its metrics
//! - [`usage`]: processor time and memory of processes
//! - [`client`]: a small HTTP client with low costs of its own
//! - [`live_readers`]: operators who watch while another benchmark runs
//! - [`container`]: an image of this program on a Docker Engine
//! - [`figures`]: medians and percentiles
//! - [`svg`]: line plots with labelled axes
//! - [`bars`]: bar charts

mod bars;
pub mod bloat;
pub mod burst;
mod client;
mod container;
pub mod dashboard;
mod database;
pub mod failover;
mod figures;
mod fixture;
pub mod growth;
pub mod heartbeats;
pub mod hostile;
pub mod idle;
mod live_readers;
pub mod load;
pub mod matching;
pub mod next;
mod old_bots;
mod pgbench;
pub mod place;
pub mod prune;
pub mod reads;
pub mod scale;
pub mod server;
pub mod start;
pub mod start_browser;
pub mod start_burst;
mod statements;
mod svg;
mod usage;

type Done<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
