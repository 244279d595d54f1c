//! The deployments at the gates. Each host has one gate. A deployment waits at the gate or has passed it, and a replica
//! holds it after that. [`super::replicas`] releases the deployments of a dead replica.

use std::collections::HashMap;

use domain::planner::changes::GateState;
use domain::{BotId, SlotName};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::record::record;
use super::sql::{Row, Sql, args, rows, sql, sql_over};
use super::{Image, Run, Store, StoreError, Tx};

record! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct DeploymentRow, columns deployment_columns, read deployment {
        pub slot: SlotName,
        /// The host whose gate it passes.
        pub host: String = host "coalesce(host, '')",
        pub bot_id: Option<BotId>,
        pub active: bool = state via is_active,
        pub asked_at: Timestamp,
        pub timeout_at: Timestamp,
        pub last_error: Option<String>,
        /// How often the deployment was tried and went back to the gate.
        pub tries: i64,
    }
}

fn is_active(row: &Row, column: &'static str) -> Result<bool, StoreError> {
    Ok(row.text(column)? == state_word(GateState::Active))
}

/// The stored text of a deployment's state at its gate.
pub(super) const fn state_word(state: GateState) -> &'static str {
    match state {
        GateState::Waiting => "waiting",
        GateState::Active => "active",
        GateState::Retry => "retry",
    }
}

/// Sends deployments that have passed back to the gate. They may pass again from `until` on.
macro_rules! return_to_gate {
    ($until:literal) => {
        concat!("UPDATE deployments SET state = 'retry', holder = NULL, replica = NULL, lease_until = ", $until)
    };
}
pub(super) use return_to_gate;

/// A pool whose deployments a replica can start, and the image of its slots.
#[derive(Clone, Debug)]
pub struct Served {
    pub pool: String,
    pub image: Option<Image>,
}

macro_rules! served {
    ($dialect:ident) => {
        rows!($dialect "$5" (pool "TEXT", image "TEXT", image_host "TEXT"))
    };
}

/// While a replica pulls the image of a pool, no deployment of that pool passes: it would only wait for the image. (A
/// lock of a replica of the previous version expires by time.)
macro_rules! no_pull {
    () => {
        "NOT EXISTS (SELECT 1 FROM image_locks
                      WHERE image_locks.image = input.image AND image_locks.host = input.image_host
                        AND (image_locks.replica IS NOT NULL OR image_locks.lease_until > $3))"
    };
}

/// The first few deployments of a pool that may pass: with a bot, without one, and those whose next try is due.
macro_rules! first_of_pool {
    ($columns:literal) => {
        concat!(
            "SELECT * FROM (SELECT ", $columns, ", 0 AS has_no_bot FROM deployments
              WHERE pool = input.pool AND state = 'waiting' AND bot_id IS NOT NULL ORDER BY arrival LIMIT $1) AS of_bots
             UNION ALL
             SELECT * FROM (SELECT ", $columns, ", 1 AS has_no_bot FROM deployments
              WHERE pool = input.pool AND state = 'waiting' AND bot_id IS NULL ORDER BY arrival LIMIT $1) AS without_bot
             UNION ALL
             SELECT * FROM (SELECT ", $columns, ", CASE WHEN bot_id IS NULL THEN 1 ELSE 0 END AS has_no_bot FROM deployments
              WHERE pool = input.pool AND state = 'retry' AND lease_until <= $3 ORDER BY lease_until LIMIT $1) AS due_retries"
        )
    };
}

/// On each host, deployments with a bot pass before those without one; within each group, the first one passes first.
/// Those without a bot leave one permit free, so that the next bot need not wait for an idle slot to be ready.
macro_rules! sql_pass {
    ($candidates:expr, $begin:literal, $end:literal) => {
        concat!(
            "UPDATE deployments
                SET state = 'active', holder = $2, replica = $4, lease_until = '9999-01-01T00:00:00.000000Z'
              WHERE slot ",
            $begin,
            " SELECT slot FROM deployments WHERE slot IN (
                  SELECT slot FROM (
                      SELECT slot, bot_id, row_number() OVER (PARTITION BY host ORDER BY has_no_bot, arrival)
                           + (SELECT count(*) FROM deployments AS active
                               WHERE active.state = 'active' AND active.host = candidates.host) AS gate_position
                        FROM (",
            $candidates,
            "       ) AS candidates) AS ranked
                   WHERE gate_position <= CASE WHEN bot_id IS NULL AND $1 > 1 THEN $1 - 1 ELSE $1 END)",
            $end,
            " RETURNING ",
            deployment_columns!()
        )
    };
}

const PASS: &Sql = sql!(
    "deployments.pass",
    // SQLite cannot join each pool with the first of its rows, but can find these by their names.
    sqlite: sql_pass!(
        concat!(
            "SELECT pending.slot, pending.bot_id, pending.host, pending.arrival,
                    CASE WHEN pending.bot_id IS NULL THEN 1 ELSE 0 END AS has_no_bot
               FROM", served!(sqlite), "CROSS JOIN deployments AS pending
              WHERE pending.slot IN (SELECT slot FROM (", first_of_pool!("slot"), ")) AND ", no_pull!()
        ),
        "IN (", ")"
    ),
    // As an array, so that the rows are picked once, whatever the plan is. If they were picked twice, too many could
    // pass. A deployment that another transaction removes at this moment is skipped.
    postgres: sql_pass!(
        concat!(
            "SELECT pending.slot, pending.bot_id, pending.host, pending.arrival, pending.has_no_bot
               FROM", served!(postgres), "CROSS JOIN LATERAL (", first_of_pool!("slot, bot_id, host, arrival"), ") AS pending
              WHERE ", no_pull!()
        ),
        "= ANY (ARRAY(", " FOR UPDATE SKIP LOCKED))"
    ),
);

/// A deployment, and the others at the gate of its host.
#[derive(Clone, Debug, PartialEq)]
pub struct GatePlace {
    pub deployment: DeploymentRow,
    /// How many deployments have passed the gate and are in progress.
    pub active: i64,
    /// How many deployments wait at the gate and arrived earlier.
    pub before: i64,
}

impl Store {
    /// The place of a slot's deployment at its gate.
    pub async fn gate_place(&self, slot: &SlotName) -> Result<Option<GatePlace>, StoreError> {
        self.reader()
            .first(
                sql!(
                    "deployments.place",
                    "SELECT ",
                    deployment_columns!(),
                    ", (SELECT count(*) FROM deployments AS other
                         WHERE other.state = 'active' AND other.host = deployments.host) AS active_count,
                       (SELECT count(*) FROM deployments AS other
                         WHERE other.state <> 'active' AND other.host = deployments.host
                           AND other.arrival < deployments.arrival) AS before_count
                       FROM deployments WHERE slot = $1"
                ),
                args![slot],
            )
            .await?
            .map(|row| {
                let (active, before) = (row.int("active_count")?, row.int("before_count")?);
                Ok(GatePlace { deployment: deployment(&row)?, active, before })
            })
            .transpose()
    }

    /// How many deployments have passed the gate of each host, and how many wait.
    pub async fn deployments_by_host(&self) -> Result<Vec<(String, i64, i64)>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "deployments.count",
                    "SELECT host,
                            CAST(sum(CASE WHEN state = 'active' THEN 1 ELSE 0 END) AS BIGINT) AS active,
                            CAST(sum(CASE WHEN state = 'active' THEN 0 ELSE 1 END) AS BIGINT) AS waiting
                       FROM deployments GROUP BY host"
                ),
                vec![],
            )
            .await?
            .iter()
            .map(|row| Ok((row.text("host")?, row.int("active")?, row.int("waiting")?)))
            .collect()
    }

    /// All deployments at the gates and behind them, in the order of arrival.
    pub async fn deployments(&self) -> Result<Vec<DeploymentRow>, StoreError> {
        self.reader()
            .all(
                sql!("deployments.list", "SELECT ", deployment_columns!(), " FROM deployments ORDER BY arrival"),
                vec![],
            )
            .await?
            .iter()
            .map(deployment)
            .collect()
    }

    /// A page of deployments after an arrival, with the arrival of each.
    pub async fn deployments_after(
        &self,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<(i64, DeploymentRow)>, StoreError> {
        let page = sql!(
            "deployments.page",
            "SELECT arrival, ",
            deployment_columns!(),
            " FROM deployments WHERE arrival > $1 ORDER BY arrival LIMIT $2"
        );
        let rows = self.reader().all(page, args![after.unwrap_or(i64::MIN), limit]).await?;
        rows.iter().map(|row| Ok((row.int("arrival")?, deployment(row)?))).collect()
    }

    /// Deployments of bots that have waited too long at the gate, for their first try or for another.
    pub async fn overdue_deployments(&self, now: Timestamp) -> Result<Vec<DeploymentRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "deployments.overdue",
                    "SELECT ",
                    deployment_columns!(),
                    " FROM deployments
                      WHERE bot_id IS NOT NULL AND timeout_at <= $1
                        AND (state = 'waiting' OR state = 'retry' AND lease_until <= $1)"
                ),
                args![now],
            )
            .await?
            .iter()
            .map(deployment)
            .collect()
    }

    /// Until when these slots may wait at the deploy gate or be started. Slots without a deployment are left out.
    pub async fn deployment_timeouts(&self, slots: &[SlotName]) -> Result<HashMap<SlotName, Timestamp>, StoreError> {
        if slots.is_empty() {
            return Ok(HashMap::new());
        }
        let slots: Vec<Value> = slots.iter().map(|slot| json!({ "slot": slot.as_str() })).collect();
        self.reader()
            .all(
                sql_over!(
                    "deployments.timeouts",
                    "SELECT slot, timeout_at FROM deployments WHERE slot IN (SELECT slot FROM",
                    (slot "TEXT"),
                    ")"
                ),
                args![slots],
            )
            .await?
            .iter()
            .map(|row| Ok((SlotName::stored(row.text("slot")?), row.time("timeout_at")?)))
            .collect()
    }

    /// The errors of the last failed start of these bots.
    pub async fn start_errors(&self, bots: &[BotId]) -> Result<Vec<(BotId, String)>, StoreError> {
        let bots: Vec<Value> = bots.iter().map(|bot| json!({ "id": bot })).collect();
        self.reader()
            .all(
                sql_over!(
                    "deployments.start_errors",
                    "SELECT bot_id, last_error FROM deployments WHERE last_error IS NOT NULL AND bot_id IN (SELECT id FROM",
                    (id "UUID"),
                    ")"
                ),
                args![bots],
            )
            .await?
            .iter()
            .map(|row| Ok((BotId(row.id("bot_id")?), row.text("last_error")?)))
            .collect()
    }

    /// Whether the slot's deployment is at the gate or behind it.
    pub async fn is_at_gate(&self, slot: &SlotName) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(sql!("deployments.at_gate", "SELECT slot FROM deployments WHERE slot = $1"), args![slot])
            .await?;
        Ok(found.is_some())
    }

    /// Whether the holder still has a deployment.
    pub async fn is_held_by(&self, slot: &SlotName, holder: Uuid) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(
                sql!(
                    "deployments.held_by",
                    "SELECT slot FROM deployments WHERE slot = $1 AND state = 'active' AND holder = $2"
                ),
                args![slot, holder],
            )
            .await?;
        Ok(found.is_some())
    }

    /// Whether a replica is starting this slot.
    pub async fn is_deploying(&self, slot: &SlotName) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(
                sql!("deployments.of_slot", "SELECT slot FROM deployments WHERE slot = $1 AND state = 'active'"),
                args![slot],
            )
            .await?;
        Ok(found.is_some())
    }
}

impl Tx {
    /// Passes as many deployments of the served pools as their hosts have permits for, first in first out. It gives
    /// them to `holder`, which is work of `replica`.
    pub async fn pass_gate(
        &mut self,
        max: i64,
        served: &[Served],
        holder: Uuid,
        replica: Uuid,
        now: Timestamp,
    ) -> Result<Vec<DeploymentRow>, StoreError> {
        // Only one process at a time reads the gates.
        self.run(
            sql!(
                "deployments.gate",
                sqlite: "SELECT 1",
                postgres: "SELECT pg_advisory_xact_lock(7701)",
            ),
            vec![],
        )
        .await?;
        let served: Vec<Value> = served
            .iter()
            .map(|served| {
                let image = served.image.as_ref();
                json!({"pool": served.pool, "image": image.map(|image| &image.name),
                       "image_host": image.map(|image| &image.host)})
            })
            .collect();
        self.all(PASS, args![max, holder, now, replica, served]).await?.iter().map(deployment).collect()
    }

    /// Stores the last error of a deployment. False if the holder does not have it any more.
    pub async fn note_error(&mut self, slot: &SlotName, holder: Uuid, last_error: &str) -> Result<bool, StoreError> {
        let noted = self
            .first(
                sql!(
                    "deployments.note_error",
                    "UPDATE deployments SET last_error = $3
                      WHERE slot = $1 AND holder = $2 AND state = 'active' RETURNING slot"
                ),
                args![slot, holder, last_error],
            )
            .await?;
        Ok(noted.is_some())
    }

    /// Sends a deployment back to the gate until then, because its start failed and is tried again. False if the holder
    /// does not have it any more.
    pub async fn step_back(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        until: Timestamp,
        last_error: &str,
    ) -> Result<bool, StoreError> {
        let stepped = self
            .first(
                sql!(
                    "deployments.step_back",
                    return_to_gate!("$3"),
                    ", last_error = $4, tries = tries + 1
                      WHERE slot = $1 AND holder = $2 AND state = 'active' RETURNING slot"
                ),
                args![slot, holder, until, last_error],
            )
            .await?;
        Ok(stepped.is_some())
    }

    /// Sends a deployment back to the gate while another process pulls the image. This is no failure and does not count
    /// as a try. The gate skips the pool until the pull ends.
    pub async fn step_back_for_image(
        &mut self,
        slot: &SlotName,
        holder: Uuid,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let stepped = self
            .first(
                sql!(
                    "deployments.step_back_for_image",
                    return_to_gate!("$3"),
                    " WHERE slot = $1 AND holder = $2 AND state = 'active' RETURNING slot"
                ),
                args![slot, holder, now],
            )
            .await?;
        Ok(stepped.is_some())
    }

    /// Moves the waiting deployments of a pool to the gate of the host in its configuration.
    pub async fn move_deployments(&mut self, pool: &str, host: &str) -> Result<(), StoreError> {
        self.fill_in_pools().await?;
        for state in [GateState::Waiting, GateState::Retry].map(state_word) {
            self.run(
                sql!(
                    "deployments.move",
                    "UPDATE deployments SET host = $2 WHERE pool = $1 AND state = $3 AND host <> $2"
                ),
                args![pool, host, state],
            )
            .await?;
        }
        Ok(())
    }

    /// Replicas of the previous version do not store a deployment's pool.
    pub(super) async fn fill_in_pools(&mut self) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.fill_in",
                "UPDATE deployments SET pool = found.pool, host = found.host
                   FROM (SELECT slots.name AS slot, slots.pool AS pool, pools.host AS host
                           FROM slots JOIN pools ON pools.name = slots.pool
                          WHERE slots.name IN (SELECT slot FROM deployments WHERE pool IS NULL)) AS found
                  WHERE deployments.slot = found.slot AND deployments.pool IS NULL"
            ),
            vec![],
        )
        .await
    }

    /// Makes the first deployments of a pool that wait for their next try due now, at most `most` of them, because
    /// capacity may be free again.
    pub async fn make_retries_due(&mut self, pool: &str, now: Timestamp, most: i64) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.make_retries_due",
                "UPDATE deployments SET lease_until = $2 WHERE state = 'retry' AND slot IN
                     (SELECT slot FROM deployments
                       WHERE state = 'retry' AND lease_until > $2 AND pool = $1 ORDER BY arrival LIMIT $3)"
            ),
            args![pool, now, most],
        )
        .await
    }

    /// Cancels the deployments of these bots that wait at the gate, and returns their bots: nothing was started for
    /// them.
    pub async fn cancel_pending_deployments(&mut self, bots: &[BotId]) -> Result<Vec<BotId>, StoreError> {
        if bots.is_empty() {
            return Ok(Vec::new());
        }
        let bots: Vec<Value> = bots.iter().map(|bot| json!({ "id": bot })).collect();
        self.all(
            sql_over!(
                "deployments.cancel_pending",
                "DELETE FROM deployments WHERE state = 'waiting' AND bot_id IN (SELECT id FROM",
                (id "UUID"),
                ") RETURNING bot_id"
            ),
            args![bots],
        )
        .await?
        .iter()
        .map(|row| row.id("bot_id").map(BotId))
        .collect()
    }

    /// Deletes the deployment of a slot that must not be started any more.
    pub async fn forget_deployment(&mut self, slot: &SlotName) -> Result<(), StoreError> {
        self.run(sql!("deployments.forget", "DELETE FROM deployments WHERE slot = $1"), args![slot]).await
    }
}
