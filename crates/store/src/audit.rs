//! The audit log: what operators did, when and from which address. Rows are only added. Nothing deletes them yet.

use std::net::IpAddr;

use domain::AuditAction;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct AuditRow, columns audit_columns, read audit_entry {
        pub id: i64,
        pub at: Timestamp,
        pub action: AuditAction,
        pub subject: Option<String>,
        pub detail: Map<String, Value>,
        pub address: String,
    }
}

/// An action of an operator that is to be recorded. It never contains a secret or a value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAuditEntry {
    pub action: AuditAction,
    /// The id of the user or bot, or the name of the pool, slot or keeper.
    pub subject: Option<String>,
    pub detail: Map<String, Value>,
    /// The address at the other end of the operator's connection.
    pub address: IpAddr,
}

impl NewAuditEntry {
    pub fn new(action: AuditAction, address: IpAddr) -> Self {
        Self { action, subject: None, detail: Map::new(), address: address.to_canonical() }
    }

    /// Names the subject of the action.
    pub fn about(mut self, subject: impl ToString) -> Self {
        self.subject = Some(subject.to_string());
        self
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }
}

impl Store {
    /// Entries with an id below `before`, newest first.
    pub async fn audit_entries(&self, before: Option<i64>, limit: i64) -> Result<Vec<AuditRow>, StoreError> {
        self.reader()
            .all(
                sql!("audit.list", "SELECT ", audit_columns!(), " FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2"),
                args![before.unwrap_or(i64::MAX), limit],
            )
            .await?
            .iter()
            .map(audit_entry)
            .collect()
    }

    /// Records an action in a transaction of its own.
    pub async fn record_audit(&self, entry: &NewAuditEntry, now: Timestamp) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        tx.record_audit(entry, now).await?;
        tx.commit().await
    }
}

impl Tx {
    /// Records an action together with its change.
    pub async fn record_audit(&mut self, entry: &NewAuditEntry, now: Timestamp) -> Result<(), StoreError> {
        self.run(
            sql!(
                "audit.insert",
                "INSERT INTO audit (at, action, subject, detail, address) VALUES ($1, $2, $3, $4, $5)"
            ),
            args![now, entry.action.as_str(), entry.subject.as_deref(), &entry.detail, entry.address.to_string()],
        )
        .await
    }
}
