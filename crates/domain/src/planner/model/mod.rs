//! The planner against a reference: random histories, run on both, that have to agree after every step. With a [`Database`]
//! beside them, it has to agree too.
//!
//! - [`history`]: what happens, from a seed; running it, and making it smaller
//! - [`world`], [`jobs`], [`outside`]: pools and users, what is asked, what else changes
//! - [`reference`] and its parts: the rules in their plainest form
//! - [`compare`]: whether both agree, and what must always hold
//! - [`database`]: the same history through a real store
//!
//! `MODEL_SEED=17 cargo test -p greenroom-domain one_history -- --ignored --nocapture` runs one history again and prints it
//! as small as it gets.

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

/// Batches of a history. A longer one begins as a shorter one of the same seed does.
pub const BATCHES: usize = 20;
/// Of those that run with every test.
pub const FEWER_BATCHES: usize = 12;
