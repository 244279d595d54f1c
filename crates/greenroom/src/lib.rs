//! Greenroom is a control plane that keeps meeting bots warm. This crate holds the server, and composes the binary.
//!
//! The modules follow the path of a bot. A module uses only modules that are after it in this list:
//! - [`cli`]: the commands of the binary
//! - [`mod@bench`]: runs the benchmarks
//! - [`doctor`]: diagnosis, for a person to read
//! - [`teardown`]: removing slots for ever
//! - [`server`]: starting and stopping a server
//! - [`api`]: HTTP; no other module handles requests
//! - [`live`]: what operators see live
//! - [`explain`]: why a bot or a slot is where it is, and what needs a person
//! - [`keepers`]: background jobs that reconcile the store with the real state
//! - [`runners`]: machines that register and wait for bots
//! - [`deployment`]: the gate, starting slots, clearing them
//! - [`placement`]: which bot gets which slot
//! - [`admission`]: users, and which user sends a request
//! - [`providers`]: creating, starting, stopping and deleting slots
//! - [`lifecycle`]: the status of bots, and their callbacks
//! - [`signals`]: wake-ups between the parts of a process, after a commit
//! - [`bus`]: messages to bots and to other replicas
//! - [`readiness`]: whether the store takes writes
//! - [`context`]: the store, the time and random values, as a part gets them
//! - [`store`]: the database; no other module contains SQL
//! - [`config`]: file, environment and flags, checked together
//! - [`traces`]: traces of bots, for a collector
//! - [`telemetry`], [`clock`], [`random`]: logs and metrics, time, random values

pub mod admission;
pub mod api;
pub mod bench;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod context;
pub mod deployment;
pub mod doctor;
pub mod explain;
pub mod keepers;
pub mod lifecycle;
pub mod live;
pub mod placement;
pub mod random;
pub mod readiness;
pub mod runners;
pub mod server;
pub mod signals;
pub mod teardown;
pub mod telemetry;
pub mod traces;

// Crates of their own, so that they build beside each other. The other modules use them as modules.
pub use config;
pub use providers;
pub use store;
