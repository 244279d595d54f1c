//! The token that placement's copy in memory is compared with, and the journal of what each change of it was about. Whoever
//! changes slots, pools, the queue, users, keys or which bots run, replaces the token in the same transaction and first of
//! all, so that nobody waits for it while holding anything else.

use domain::{BotId, SlotName, UserId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::sql::{Sql, args, sql};
use super::{Run, Store, StoreError, Tx, TxInner};

/// What placement decides on: who writes one of these replaces the token in the same transaction.
const DECIDED_ON: [&str; 7] = ["slots", "pools", "queue", "users", "api_keys", "idempotency_keys", "open_bots"];
/// Except where nobody can have decided on it: a user that is not there yet, and its first key.
const MADE_ANEW: [&str; 2] = ["users.insert", "keys.insert"];

/// Whether a statement may only be run in a transaction that replaces the token.
pub(super) fn needs_token(sql: &Sql) -> bool {
    let writes = |table: &&str| {
        ["INSERT INTO ", "UPDATE ", "DELETE FROM "].iter().any(|verb| {
            let mut rest = sql.postgres;
            while let Some(at) = rest.find(verb) {
                rest = &rest[at + verb.len()..];
                if rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next() == Some(*table) {
                    return true;
                }
            }
            false
        })
    };
    !MADE_ANEW.contains(&sql.name) && DECIDED_ON.iter().any(|table| writes(&table))
}

/// What a change of the token was about: what is to be read again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bots: Vec<BotId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pools: bool,
    /// More than can be named.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub everything: bool,
}

impl Changed {
    pub fn bot(id: BotId, slot: Option<&SlotName>) -> Self {
        Self { bots: vec![id], slots: slot.map(ToString::to_string).into_iter().collect(), ..Self::default() }
    }

    pub fn user(id: UserId) -> Self {
        Self { users: vec![id], ..Self::default() }
    }

    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// With what another change was about.
    pub fn merge(&mut self, other: Changed) {
        self.slots.extend(other.slots);
        self.bots.extend(other.bots);
        self.users.extend(other.users);
        self.pools |= other.pools;
        self.everything |= other.everything;
    }
}

/// Where a copy in memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub token: Uuid,
    pub journal: i64,
}

/// What has happened since a copy was current.
#[derive(Clone, Debug)]
pub struct Since {
    pub position: Position,
    /// `None` when the journal does not tell all of it.
    pub changed: Option<Changed>,
}

impl Store {
    /// Begins a transaction that changes what placement decides on. It replaces the token before anything else.
    pub async fn begin_changing(&self, changed: &Changed, now: Timestamp) -> Result<Tx, StoreError> {
        let mut tx = self.begin().await?;
        tx.replace_token(changed, now).await?;
        tx.changes_placement = Some(self.placement_changed.clone());
        Ok(tx)
    }

    /// Whether this process has committed a change of what placement decides on since this was asked last.
    pub fn take_placement_changed(&self) -> bool {
        self.placement_changed.swap(false, std::sync::atomic::Ordering::SeqCst)
    }

    /// The token as it is now, and the end of the journal.
    pub async fn placement_position(&self) -> Result<Position, StoreError> {
        let row = self
            .placing()
            .first(
                sql!(
                    "placement.position",
                    "SELECT token, coalesce((SELECT max(id) FROM placement_journal), 0) AS journal FROM placement"
                ),
                vec![],
            )
            .await?
            .ok_or_else(no_row)?;
        Ok(Position { token: row.id("token")?, journal: row.int("journal")? })
    }

    /// What has happened since a copy was current.
    pub async fn placement_since(&self, known: Position) -> Result<Since, StoreError> {
        let rows = self
            .placing()
            .all(
                sql!(
                    "placement.since",
                    "SELECT placement.token AS now, journal.id AS journal, journal.before, journal.token, journal.changed
                       FROM placement
                       LEFT JOIN (SELECT * FROM placement_journal WHERE id > $1 ORDER BY id LIMIT 5000) AS journal ON true
                      ORDER BY journal.id"
                ),
                args![known.journal],
            )
            .await?;
        let (mut position, mut now) = (known, known.token);
        let mut changed = Changed::default();
        for row in &rows {
            now = row.id("now")?;
            let Some(journal) = row.maybe_int("journal")? else { continue };
            position.journal = journal;
            // Rows before the one that goes on from here were followed, or written, before.
            if row.id("before")? == position.token {
                let told = serde_json::from_str(&row.text("changed")?);
                changed.merge(told.unwrap_or_else(|_| Changed::everything()));
                position.token = row.id("token")?;
            }
        }
        // A batch of a replica that knew nobody to tell is not in the journal.
        let is_complete = position.token == now && !changed.everything;
        position.token = now;
        Ok(Since { position, changed: is_complete.then_some(changed) })
    }

    /// Forgets what everybody has followed long ago; who has not reads everything again.
    pub async fn prune_placement_journal(&self, before: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("placement.prune", "DELETE FROM placement_journal WHERE at < $1"), args![before]).await?;
        tx.commit().await
    }

    /// How many replicas live, by the clock of the database.
    pub async fn live_replicas(&self) -> Result<i64, StoreError> {
        if !self.is_shared() {
            return Ok(1);
        }
        let found =
            sql!("placement.replicas", "SELECT count(*) AS n FROM replicas WHERE lease_until > clock_timestamp()");
        self.placing().first(found, vec![]).await?.map_or(Ok(0), |row| row.int("n"))
    }
}

fn no_row() -> StoreError {
    StoreError::failed("placement.position", &std::io::Error::other("the table placement has no row"))
}

impl Tx {
    async fn replace_token(&mut self, changed: &Changed, now: Timestamp) -> Result<(), StoreError> {
        let token = Uuid::new_v4();
        let before = match self.inner {
            TxInner::Postgres(_) => {
                let replaced = sql!(
                    "placement.replace",
                    "WITH old AS (SELECT token FROM placement WHERE id = 1 FOR UPDATE)
                     UPDATE placement SET token = $1 FROM old WHERE placement.id = 1 RETURNING old.token AS token"
                );
                self.first(replaced, args![token]).await?
            }
            TxInner::Sqlite(..) => {
                let row =
                    self.first(sql!("placement.token", "SELECT token FROM placement WHERE id = 1"), vec![]).await?;
                self.run(sql!("placement.set", "UPDATE placement SET token = $1 WHERE id = 1"), args![token]).await?;
                row
            }
        };
        let before = before.ok_or_else(no_row)?.id("token")?;
        self.journal(before, token, changed, now).await
    }

    async fn journal(
        &mut self,
        before: Uuid,
        token: Uuid,
        changed: &Changed,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(changed).unwrap_or_else(|_| "{\"everything\":true}".to_owned());
        self.run(
            sql!(
                "placement.journal",
                "INSERT INTO placement_journal (before, token, at, changed) VALUES ($1, $2, $3, $4)"
            ),
            args![before, token, now, text],
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_writes_what_placement_decides_on_needs_the_token() {
        for text in
            ["UPDATE slots SET a = 1", "WITH x AS (DELETE FROM queue) SELECT 1", "INSERT INTO pools (a) VALUES (1)"]
        {
            assert!(needs_token(&Sql { name: "some", sqlite: text, postgres: text }), "{text}");
        }
        for text in
            ["SELECT * FROM slots", "UPDATE slot_locks SET a = 1", "UPDATE bots SET slots = 1", "INSERT INTO events"]
        {
            assert!(!needs_token(&Sql { name: "some", sqlite: text, postgres: text }), "{text}");
        }
    }
}
