//! Lists that come in pages.

use serde_json::{Value, json};

use crate::client::{Client, Path, Query};
use crate::error::CliError;

const PAGE: usize = 1_000;

/// Reads up to `limit` rows of the list `name`, over as many pages as it takes, in the shape of one answer.
pub async fn read(
    client: &Client,
    path: Path<'_>,
    name: &str,
    query: Query<'_>,
    limit: Option<usize>,
) -> Result<Value, CliError> {
    let (mut rows, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let wanted = limit.map_or(PAGE, |limit| (limit - rows.len()).min(PAGE));
        let mut query = query.to_vec();
        query.push(("limit", wanted.to_string()));
        if let Some(cursor) = cursor {
            query.retain(|(name, _)| *name != "cursor");
            query.push(("cursor", cursor));
        }
        let mut page = client.get(path, &query).await?;
        let Some(page) = page.as_object_mut() else {
            return Err(CliError::foreign(&client.server, "it is not an object"));
        };
        let more = page.get_mut(name).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
        rows.extend(more);
        let next = page.get("next_cursor").and_then(Value::as_str).map(str::to_owned);
        // A page of a search may be empty and still have a next one. A list that goes on where it is would never end.
        let repeats = query.iter().any(|(name, value)| *name == "cursor" && Some(value) == next.as_ref());
        cursor = next.filter(|_| !repeats);
        if cursor.is_none() || limit.is_some_and(|limit| rows.len() >= limit) {
            return Ok(json!({ name: rows, "next_cursor": cursor }));
        }
    }
}

/// The rows of an answer.
pub fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}
