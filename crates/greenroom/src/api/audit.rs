//! For operators: what operators did, when and from which address. A handler whose change is no single transaction
//! records it here, right after the change.

use std::panic::resume_unwind;

use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::Instrument;
use utoipa::ToSchema;

use super::App;
use super::extract::{Asked, Operator};
use super::pages::Pager;
use super::problem::Problem;
use super::reading::{Paging, is_last};
use crate::store::{AuditRow, NewAuditEntry};

/// What an operator did. A name in the plural is one call for several bots or slots.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AuditAction)]
pub enum AuditActionWord {
    UserCreated,
    UserChanged,
    UserDeleted,
    KeyRotated,
    BotCreated,
    BotStopped,
    BotReconfigured,
    BotAssigned,
    BotsStopped,
    PoolChanged,
    PoolProbed,
    SlotRecovered,
    SlotDrained,
    SlotDeleted,
    SlotsRecovered,
    SlotsDrained,
    SlotsDeleted,
    KeeperRun,
}

/// An entry of the audit log: one call of an operator that changed something.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct AuditEntryDto {
    pub id: i64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[schema(value_type = AuditActionWord)]
    pub action: &'static str,
    /// The id of the user or bot, or the name of the pool, slot or keeper; `null` for a call about several.
    #[schema(required)]
    pub subject: Option<String>,
    /// More about the call, for example the new size of a pool. It contains no key, no token and no configuration.
    #[schema(example = json!({"max_slots": 20}))]
    pub detail: Map<String, Value>,
    /// The address at the other end of the connection. Behind a proxy, it is the address of the proxy.
    #[schema(example = "192.0.2.7")]
    pub address: String,
}

impl From<AuditRow> for AuditEntryDto {
    fn from(row: AuditRow) -> Self {
        let AuditRow { id, at, action, subject, detail, address } = row;
        Self { id, at, action: action.as_str(), subject, detail, address }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AuditEntries)]
pub struct AuditEntriesDto {
    pub entries: Vec<AuditEntryDto>,
    /// Send it as `cursor` to get the next page; `null` on the last page.
    #[schema(required)]
    pub next_cursor: Option<String>,
}

/// List what operators did
///
/// Returns one page of the audit log, newest first. Each call of an operator that changed something has one entry.
#[utoipa::path(
    get, path = "/admin/audit", tag = "For operators", operation_id = "admin_audit", params(Paging),
    responses((status = 200, description = "A page of entries, newest first", body = AuditEntriesDto)),
    security(("admin_token" = [])),
)]
pub async fn entries(State(app): State<App>, _: Operator, Asked(page): Asked<Paging>) -> Result<Response, Problem> {
    let (mut before, mut pager) = (page.cursor::<i64>()?, Pager::new("entries", page.limit()?));
    loop {
        let wanted = pager.wanted();
        let chunk = app.store.audit_entries(before, wanted).await?;
        let read = chunk.len();
        for entry in chunk {
            if pager.is_full() {
                return pager.finish(true);
            }
            let id = entry.id;
            before = Some(id);
            pager.push(&AuditEntryDto::from(entry), id.to_string())?;
        }
        if is_last(read, wanted) {
            return pager.finish(false);
        }
    }
}

/// Records an action after its change. The change cannot be taken back, so a failure of this write goes only to the
/// log, with everything that the entry has.
pub async fn record(app: &App, entry: NewAuditEntry) {
    if let Err(error) = app.store.record_audit(&entry, app.clock.now()).await {
        let NewAuditEntry { action, subject, detail, address } = entry;
        let detail = Value::Object(detail);
        tracing::error!(%error, %action, subject, %detail, %address, "audit entry not written");
    }
}

/// Carries out a call to its end, also when the operator closes the connection: a change without its entry would be one
/// that nobody made.
pub async fn to_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::spawn(work.in_current_span()).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => Err(Problem::unavailable("the server is stopping")),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_call_is_carried_out_to_its_end_when_the_operator_no_longer_waits() {
        let (go_on, goes_on) = oneshot::channel::<()>();
        let (report, reported) = oneshot::channel();
        let call = to_end(async move {
            goes_on.await.unwrap();
            report.send("recorded").unwrap();
            Ok(())
        });
        tokio::select! {
            biased;
            _ = call => unreachable!("it waits"),
            () = std::future::ready(()) => {}
        }
        go_on.send(()).unwrap();
        assert_eq!(reported.await, Ok("recorded"));
    }
}
