//! Records when the server could receive callbacks of bots, by the database's clock. So the time that one process has
//! listened also counts for the next. Each process has a row for every period without a break, and extends it.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::record::record;
use super::sql::{args, sql};
use super::{Run, Store, StoreError};

record! {
    /// A period in which a process could receive callbacks of bots.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ListeningSpan, columns span_columns, read listening_span {
        pub started_at: Timestamp,
        pub heard_until: Timestamp,
    }
}

/// More spans are useless: a process that lives for less than a second receives nothing.
const MOST_SPANS: i64 = 5_000;

impl Store {
    /// The stored spans of all processes, latest first.
    pub async fn listening_spans(&self) -> Result<Vec<ListeningSpan>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "listening.spans",
                    "SELECT ",
                    span_columns!(),
                    " FROM listening_spans ORDER BY heard_until DESC LIMIT $1"
                ),
                args![MOST_SPANS],
            )
            .await?
            .iter()
            .map(listening_span)
            .collect()
    }

    /// Extends a span to the database's current time, or begins it. `None` if the last extension is longer ago than
    /// `pause`: the process may have missed callbacks since, and must begin another span.
    pub async fn extend_listening(&self, span: Uuid, pause: Duration) -> Result<Option<ListeningSpan>, StoreError> {
        let pause = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        self.write_in_time(
            // A database clock that was set back is a break as well.
            sql!(
                "listening.extend",
                sqlite: concat!("INSERT INTO listening_spans (id, started_at, heard_until)
                             VALUES ($1, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
                             ON CONFLICT (id) DO UPDATE SET heard_until = excluded.heard_until
                              WHERE listening_spans.heard_until <= excluded.heard_until
                                AND listening_spans.heard_until
                                    >= strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-$2 / 1000.0) || ' seconds')
                             RETURNING ", span_columns!()),
                postgres: concat!("INSERT INTO listening_spans (id, started_at, heard_until)
                               VALUES ($1, statement_timestamp(), statement_timestamp())
                               ON CONFLICT (id) DO UPDATE SET heard_until = excluded.heard_until
                                WHERE listening_spans.heard_until <= excluded.heard_until
                                  AND listening_spans.heard_until
                                      >= statement_timestamp() - $2 * interval '1 millisecond'
                               RETURNING ", span_columns!()),
            ),
            args![span, pause],
        )
        .await?
        .first()
        .map(listening_span)
        .transpose()
    }

    /// Deletes spans that ended longer ago than this.
    pub async fn prune_listening(&self, older_than: Duration) -> Result<(), StoreError> {
        let older_than = i64::try_from(older_than.as_millis()).unwrap_or(i64::MAX);
        let mut tx = self.begin_in_time().await?;
        tx.run(
            sql!(
                "listening.prune",
                sqlite: "DELETE FROM listening_spans
                          WHERE heard_until < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (-$1 / 1000.0) || ' seconds')",
                postgres: "DELETE FROM listening_spans
                            WHERE heard_until < statement_timestamp() - $1 * interval '1 millisecond'",
            ),
            args![older_than],
        )
        .await?;
        tx.commit().await
    }
}
