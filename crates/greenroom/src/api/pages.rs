//! A page of a list: as many rows as were asked for, or fewer once they have about 1 MiB of JSON. Rows are read in small
//! chunks and written as they come, so that a page costs its own size and no more, whatever is in the rows.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::problem::Problem;

/// A page ends with the row that passes this.
pub const PAGE_BYTES: usize = 1024 * 1024;
/// The first chunk; each one after it may be twice as large.
const FIRST_CHUNK: i64 = 16;
/// A row may have 140 KiB.
const LARGEST_CHUNK: i64 = 64;

/// A page while it is written.
#[derive(Debug)]
pub struct Pager {
    text: Vec<u8>,
    limit: i64,
    rows: i64,
    chunk: i64,
    last: Option<String>,
}

impl Pager {
    /// A page of `{name: rows, "next_cursor": …}`.
    pub fn new(name: &'static str, limit: i64) -> Self {
        Self::beginning(format!("{{\"{name}\":["), limit)
    }

    /// The same, behind the fields of `head`, which is written as an object that is not empty.
    pub fn behind(head: &impl Serialize, name: &'static str, limit: i64) -> Result<Self, Problem> {
        let mut text = serde_json::to_string(head).map_err(unwritable)?;
        text.pop();
        Ok(Self::beginning(format!("{text},\"{name}\":["), limit))
    }

    fn beginning(text: String, limit: i64) -> Self {
        Self { text: text.into_bytes(), limit, rows: 0, chunk: FIRST_CHUNK, last: None }
    }

    /// How many rows to read next. One more than the page takes tells whether there is another page.
    pub fn wanted(&mut self) -> i64 {
        if self.is_full() {
            return 1;
        }
        let wanted = self.chunk.min(self.limit - self.rows + 1);
        self.chunk = (self.chunk * 2).min(LARGEST_CHUNK);
        wanted
    }

    /// Whether it takes no more rows.
    pub fn is_full(&self) -> bool {
        self.rows >= self.limit || self.room() == 0
    }

    /// How many bytes it still takes.
    pub fn room(&self) -> usize {
        PAGE_BYTES.saturating_sub(self.text.len())
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Adds a row, after which the page can go on at `cursor`.
    pub fn push(&mut self, row: &impl Serialize, cursor: String) -> Result<(), Problem> {
        if self.rows > 0 {
            self.text.push(b',');
        }
        serde_json::to_writer(&mut self.text, row).map_err(unwritable)?;
        self.rows += 1;
        self.last = Some(cursor);
        Ok(())
    }

    /// The page of a short list that is known as a whole: the rows behind the one whose cursor is `after`.
    pub fn write_after<T: Serialize>(
        mut self,
        rows: Vec<T>,
        after: Option<&str>,
        cursor: impl Fn(&T) -> String,
    ) -> Result<Response, Problem> {
        let first = match after {
            Some(after) => rows.iter().position(|row| cursor(row) == after).map(|at| at + 1),
            None => Some(0),
        };
        let first = first.ok_or_else(|| Problem::invalid("cursor", "is not a cursor of an earlier response"))?;
        for row in &rows[first..] {
            if self.is_full() {
                return self.finish(true);
            }
            self.push(row, cursor(row))?;
        }
        self.finish(false)
    }

    /// The page, with the cursor of the next one if there is more.
    pub fn finish(mut self, more: bool) -> Result<Response, Problem> {
        let cursor = self.last.take().filter(|_| more);
        self.finish_with(cursor)
    }

    /// The page of a search that continues at `cursor`, which may be behind the last row.
    pub fn finish_at(self, cursor: String) -> Result<Response, Problem> {
        self.finish_with(Some(cursor))
    }

    fn finish_with(mut self, cursor: Option<String>) -> Result<Response, Problem> {
        self.text.extend_from_slice(b"],\"next_cursor\":");
        serde_json::to_writer(&mut self.text, &cursor).map_err(unwritable)?;
        self.text.push(b'}');
        self.text.shrink_to_fit();
        Ok(([(CONTENT_TYPE, "application/json")], self.text).into_response())
    }
}

fn unwritable(error: serde_json::Error) -> Problem {
    tracing::error!(%error, "response serialisation failed");
    Problem::internal()
}
