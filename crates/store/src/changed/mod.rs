//! Turns the changes of a plan into statements over rows. Each table has one statement, or two if it changes in two
//! ways. No two statements write the same row.
//!
//! - [`bots`], [`slots`], [`queue`]: the rows
//! - [`mod@write`]: the text of a statement, for each database

mod bots;
mod queue;
mod slots;
mod write;

use std::collections::HashMap;

use domain::planner::changes::Changes;
use jiff::Timestamp;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::columns::Rows;
use super::fence::Changed;
use super::row_locations::RowLocation;
pub use slots::used_slots;
use write::new_rows;
pub use write::{NEXT_EPOCH, Write};

/// The parts of a request that placement does not read.
#[derive(Clone, Debug)]
pub struct BotDetails {
    pub meeting_url: String,
    pub bot_display_name: Option<String>,
    pub requirements: Option<Map<String, Value>>,
    pub config: Map<String, Value>,
    pub metadata: Map<String, Value>,
}

/// One statement over rows, as a part of the write.
pub struct Part<'a> {
    pub name: &'static str,
    pub write: Write,
    pub rows: Rows<'a>,
    /// Whether each row must be found, or inserted.
    pub counted: bool,
}

#[derive(Default)]
pub struct Parts<'a>(Vec<Part<'a>>);

impl<'a> Parts<'a> {
    fn add(&mut self, name: &'static str, counted: bool, rows: Rows<'a>, write: Write) {
        if !rows.is_empty() {
            self.0.push(Part { name, write, rows, counted });
        }
    }
}

/// All changes of a plan. `journal` describes them for other replicas, if there are any. `locations` are those of
/// [`used_slots`], on PostgreSQL.
pub fn parts<'a>(
    changes: &'a Changes,
    details: &'a HashMap<usize, BotDetails>,
    (before, after): (Uuid, Uuid),
    journal: Option<&'a Changed>,
    locations: Option<Vec<Option<RowLocation>>>,
    now: Timestamp,
) -> Vec<Part<'a>> {
    let mut parts = Parts::default();
    bots::bots(&mut parts, changes, details, now);
    slots::slots(&mut parts, changes, locations, now);
    queue::queue_and_gate(&mut parts, changes, now);
    if let Some(changed) = journal {
        let rows = Rows::default()
            .id("before", &[before], |id| id)
            .id("token", &[after], |id| id)
            .text("changed", &[changed], |changed| serde_json::to_string(changed).unwrap_or_default())
            .now(now);
        let journal = new_rows("placement_journal").with(&[("at", "now")]);
        parts.add("written_journal", false, rows, Write::Insert(journal));
    }
    parts.0
}

fn document(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).unwrap_or_else(|_| "{}".to_owned())
}
