//! Remembers where placement last wrote its rows. Placement updates the same slots again and again, and each write
//! returns the location of the row in PostgreSQL (its `ctid`). The next write uses that location without an index. This
//! is cheaper, and stays cheap while an open transaction keeps every older version of the row: an index also finds
//! those.
//!
//! A location is only a hint. If the row has moved, it counts as not found. Then the batch is aborted, all locations
//! are forgotten, and the next attempt finds its rows by the index.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use domain::SlotName;
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo};
use sqlx::{Encode, Postgres, Row, Type, ValueRef};
use uuid::Uuid;

const TID: Oid = Oid(27);
const TID_ARRAY: Oid = Oid(1010);

/// A `ctid` as PostgreSQL sends it: a page number and the number of a row on that page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLocation([u8; 6]);

impl Type<Postgres> for RowLocation {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TID)
    }
}

impl PgHasArrayType for RowLocation {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TID_ARRAY)
    }
}

impl Encode<'_, Postgres> for RowLocation {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }
}

/// Reads an array of locations: its dimensions, then each element after its length. An empty or missing array gives an
/// empty list.
fn parse(bytes: &[u8]) -> Option<Vec<RowLocation>> {
    const HEADER: usize = 20;
    let Some(elements) = bytes.get(HEADER..) else { return Some(Vec::new()) };
    let one = |element: &[u8]| match element {
        [0, 0, 0, 6, location @ ..] => Some(RowLocation(location.try_into().ok()?)),
        _ => None,
    };
    elements.chunks(10).map(one).collect()
}

pub(super) fn read(row: &PgRow, column: &str) -> Result<Vec<RowLocation>, sqlx::Error> {
    let value = row.try_get_raw(column)?;
    if value.is_null() {
        return Ok(Vec::new());
    }
    let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
    parse(bytes).ok_or_else(|| sqlx::Error::Decode(format!("{column} is not an array of row locations").into()))
}

#[derive(Debug, Default)]
pub(super) struct RowLocations(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    slots: HashMap<SlotName, RowLocation>,
    /// The token that was written last, and where.
    token: Option<(Uuid, RowLocation)>,
}

impl RowLocations {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn of_slots<'a>(&self, names: impl Iterator<Item = &'a SlotName>) -> Vec<Option<RowLocation>> {
        let known = self.known();
        names.map(|name| known.slots.get(name).copied()).collect()
    }

    /// Where the row with this token is.
    pub fn of_token(&self, token: Uuid) -> Option<RowLocation> {
        self.known().token.filter(|(known, _)| *known == token).map(|(_, location)| location)
    }

    /// Records the locations to which these slots and the token were written.
    pub fn note(&self, slots: impl Iterator<Item = (SlotName, RowLocation)>, token: (Uuid, Option<RowLocation>)) {
        let mut known = self.known();
        known.slots.extend(slots);
        known.token = token.1.map(|location| (token.0, location));
    }

    /// Forgets the locations of these slots, because another write changes them.
    pub fn forget_slots<'a>(&self, names: impl Iterator<Item = &'a SlotName>) {
        let mut known = self.known();
        for name in names {
            known.slots.remove(name);
        }
    }

    /// Forgets the locations of the token and these slots, because another writer has changed them.
    pub fn forget_changed(&self, slots: &[String]) {
        let mut known = self.known();
        known.token = None;
        for name in slots {
            known.slots.remove(&SlotName::stored(name.clone()));
        }
    }

    pub fn forget_all(&self) {
        *self.known() = Known::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_locations_is_read_as_postgres_sends_it() {
        let header = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 27, 0, 0, 0, 2, 0, 0, 0, 1];
        let elements = [0, 0, 0, 6, 0, 0, 0, 7, 0, 3, 0, 0, 0, 6, 0, 1, 0, 0, 0, 9];
        let read = parse(&[&header[..], &elements[..]].concat());
        assert_eq!(read, Some(vec![RowLocation([0, 0, 0, 7, 0, 3]), RowLocation([0, 1, 0, 0, 0, 9])]));
        assert_eq!(parse(&[0; 12]), Some(vec![]), "without elements it has no dimensions");
        assert_eq!(parse(&[&header[..], &[0, 0, 0, 6, 0]].concat()), None, "cut off");
        assert_eq!(parse(&[&header[..], &[255, 255, 255, 255]].concat()), None, "an element that is NULL");
    }

    #[test]
    fn locations_of_rows_that_others_changed_are_forgotten() {
        let (locations, name) = (RowLocations::default(), |name: &str| SlotName::stored(name.to_owned()));
        let (at, token) = (RowLocation([0, 0, 0, 0, 0, 1]), Uuid::new_v4());
        locations.note([(name("a"), at), (name("b"), at)].into_iter(), (token, Some(at)));
        locations.forget_slots([name("b"), name("c")].iter());
        assert_eq!(locations.of_slots([name("a"), name("b")].iter()), [Some(at), None]);
        assert_eq!(locations.of_token(token), Some(at));
        assert_eq!(locations.of_token(Uuid::new_v4()), None, "another writer has replaced the token");
        locations.forget_changed(&["a".to_owned()]);
        assert_eq!((locations.of_slots([name("a")].iter()), locations.of_token(token)), (vec![None], None));
        locations.note([(name("a"), at)].into_iter(), (token, Some(at)));
        locations.forget_all();
        assert_eq!((locations.of_slots([name("a")].iter()), locations.of_token(token)), (vec![None], None));
    }
}
