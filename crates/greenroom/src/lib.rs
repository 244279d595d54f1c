//! Greenroom, the control plane that keeps meeting bots warm: server and CLI.
//!
//! The folders follow the way of a bot, and a module uses only modules that are after it in this list:
//! - [`cli`]: the commands of the binary
//! - [`mod@bench`]: measuring the rest
//! - [`doctor`]: what is wrong, for a person to read
//! - [`teardown`]: ending slots for good
//! - [`server`]: from a configuration to a running server and back
//! - [`api`]: HTTP, and nothing but the api knows HTTP
//! - [`keepers`]: background jobs that keep the records true
//! - [`runners`]: machines that register and wait for bots
//! - [`deployment`]: the gate, starting slots, clearing them
//! - [`placement`]: who gets which slot
//! - [`admission`]: who may ask, and whether there is room
//! - [`providers`]: what makes, starts, stops and deletes slots
//! - [`lifecycle`]: what a bot says, and what its state is then
//! - [`signals`]: what other parts are woken for once a change is committed
//! - [`bus`]: what another process should hear at once
//! - [`readiness`]: whether the store takes writes
//! - [`context`]: the store, the time and random values, as a part gets them
//! - [`store`]: what is true; nothing but the store knows SQL
//! - [`config`]: file, environment and flags, checked as a whole
//! - [`telemetry`], [`clock`], [`random`]: logs and metrics, time and chance

pub mod admission;
pub mod api;
pub mod bench;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod context;
pub mod deployment;
pub mod doctor;
pub mod keepers;
pub mod lifecycle;
pub mod placement;
pub mod providers;
pub mod random;
pub mod readiness;
pub mod runners;
pub mod server;
pub mod signals;
pub mod store;
pub mod teardown;
pub mod telemetry;
