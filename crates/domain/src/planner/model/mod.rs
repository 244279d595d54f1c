//! Tests the planner against a reference. Random histories run on both, and both must agree after every step. With a
//! [`Database`], the database must agree too.
//!
//! - [`history`]: makes a history from a seed, runs it, and makes it smaller
//! - [`world`], [`jobs`], [`outside`]: pools and users, jobs, and changes outside placement
//! - [`reference`] and its parts: the rules in their simplest form
//! - [`compare`]: compares both, and checks the invariants
//! - [`database`]: the same history through a real store
//!
//! `MODEL_SEED=17 cargo test -p greenroom-domain one_history -- --ignored --nocapture` runs one history again and, if
//! it fails, prints the smallest failing form.

pub(super) mod compare;
mod database;
mod history;
mod jobs;
mod outside;
mod random;
mod reference;
mod reference_bots;
mod reference_queue;
mod reference_slots;
#[cfg(test)]
mod tests;
mod world;

pub use super::bugs::{Bug, plant};
pub use database::{Database, OutsideChanges};
pub use history::{Failure, Fate, History, Step};

/// The number of batches in a history. Histories of one seed begin the same, whatever their length.
pub const BATCHES: usize = 20;
/// The number of batches in the histories that run with every test.
pub const FEWER_BATCHES: usize = 12;
