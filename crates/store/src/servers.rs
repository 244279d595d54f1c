//! The servers that run on this database: their addresses, versions and pools. Commands read it to find a server to
//! call, and to see whether one runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::sql::{args, sql};
use super::{Run, Store, StoreError};

/// A row that is older than this belongs to a server that was killed.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);

/// If a server's row is older than this, the server was killed, or its database does not answer.
pub const SERVER_ALIVE_WITHIN: Duration = Duration::from_secs(20);

/// A server's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerFacts {
    /// Its address, as it can be reached on its own machine.
    pub url: String,
    /// The address that its bots use.
    pub public_url: String,
    /// Whether `public_url` is configured. If not, it is derived from `listen`.
    pub has_public_url: bool,
    pub version: String,
    pub host: String,
    pub pid: u32,
    /// The folder in which it was started.
    pub folder: String,
    /// Its `PATH`.
    pub path: String,
    /// The pools of its configuration.
    pub pools: Vec<String>,
}

/// A server, and how long ago it wrote its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    pub id: Uuid,
    pub seen: Duration,
    pub facts: ServerFacts,
}

impl Store {
    /// Records that a server runs, and deletes the rows of servers that were killed long ago.
    pub async fn record_server(&self, id: Uuid, facts: &ServerFacts) -> Result<(), StoreError> {
        let facts = serde_json::to_string(facts).map_err(|error| StoreError::internal("servers.record", error))?;
        let mut values = args![id, facts];
        // The start on SQLite has deleted the rows of all other servers.
        if self.is_shared() {
            values.push(i64::try_from(FORGOTTEN_AFTER.as_millis()).unwrap_or(i64::MAX).into());
        }
        self.write_in_time(
            sql!(
                "servers.record",
                sqlite: "INSERT INTO servers (id, seen_at, facts) VALUES ($1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), $2)
                         ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, facts = excluded.facts",
                postgres: "WITH pruned_servers AS (
                               DELETE FROM servers
                                WHERE id <> $1 AND seen_at < clock_timestamp() - $3 * interval '1 millisecond')
                           INSERT INTO servers (id, seen_at, facts) VALUES ($1, clock_timestamp(), $2)
                           ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, facts = excluded.facts",
            ),
            values,
        )
        .await
        .map(drop)
    }

    /// Deletes one server's row, or all rows without an id. The second is for a database that no other process has
    /// open.
    pub async fn forget_servers(&self, id: Option<Uuid>) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.run(sql!("servers.forget", "DELETE FROM servers WHERE $1 IS NULL OR id = $1"), args![id]).await?;
        tx.commit().await
    }

    /// The servers that did not end properly and have written nothing for a while, the latest first.
    pub async fn silent_servers(&self) -> Result<Vec<ServerRow>, StoreError> {
        let mut servers = self.servers_seen_within(FORGOTTEN_AFTER).await?;
        servers.retain(|server| server.seen > SERVER_ALIVE_WITHIN);
        Ok(servers)
    }

    /// The servers that wrote their row within this time, the latest first.
    pub async fn servers_seen_within(&self, time: Duration) -> Result<Vec<ServerRow>, StoreError> {
        let rows = self
            .reader()
            .all(
                sql!(
                    "servers.list",
                    sqlite: "SELECT id, facts,
                                    CAST((julianday('now') - julianday(seen_at)) * 86400000 AS INTEGER) AS seen_ms
                               FROM servers ORDER BY seen_at DESC, id",
                    postgres: "SELECT id, facts,
                                      CAST(extract(epoch FROM clock_timestamp() - seen_at) * 1000 AS BIGINT) AS seen_ms
                                 FROM servers ORDER BY seen_at DESC, id",
                ),
                vec![],
            )
            .await?;
        let mut servers = Vec::new();
        for row in &rows {
            let seen = Duration::from_millis(u64::try_from(row.int("seen_ms")?).unwrap_or(0));
            let facts = row.text("facts")?;
            let facts = serde_json::from_str(&facts).map_err(|_| row.inconsistent("facts", &facts))?;
            servers.push(ServerRow { id: row.id("id")?, seen, facts });
        }
        servers.retain(|server| server.seen <= time);
        Ok(servers)
    }
}
