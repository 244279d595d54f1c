//! The deploy gates as rows, one gate for each host: who waits, who is behind it, and which replica holds it. What a
//! dead replica held is released in [`super::replicas`].

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
        /// Whose gate it passes.
        pub host: String = host "coalesce(host, '')",
        pub bot_id: Option<BotId>,
        pub active: bool = state via is_active,
        pub asked_at: Timestamp,
        pub timeout_at: Timestamp,
        pub last_error: Option<String>,
        /// How often it was tried, and gave its place to others meanwhile.
        pub tries: i64,
    }
}

fn is_active(row: &Row, column: &'static str) -> Result<bool, StoreError> {
    Ok(row.text(column)? == state_word(GateState::Active))
}

/// The word for where a deployment stands at its gate.
pub(super) const fn state_word(state: GateState) -> &'static str {
    match state {
        GateState::Waiting => "waiting",
        GateState::Active => "active",
        GateState::Retry => "again",
    }
}

/// Sends deployments that have passed back to the gate: they may pass again from `until` on.
macro_rules! return_to_gate {
    ($until:literal) => {
        concat!("UPDATE deployments SET state = 'again', holder = NULL, replica = NULL, lease_until = ", $until)
    };
}
pub(super) use return_to_gate;

/// A pool whose deployments a replica can take, and the image that its slots run.
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

/// While somebody pulls the image of a pool, nobody of that pool passes: who waits for an image needs no place behind
/// the gate. (A lock of a replica of the version before ends by time.)
macro_rules! no_pull {
    () => {
        "NOT EXISTS (SELECT 1 FROM image_locks
                      WHERE image_locks.image = r.image AND image_locks.host = r.image_host
                        AND (image_locks.replica IS NOT NULL OR image_locks.lease_until > $3))"
    };
}

/// The first few of a pool that may pass: with a bot, without one, and those whose next try is due.
macro_rules! first_of_pool {
    ($columns:literal) => {
        concat!(
            "SELECT * FROM (SELECT ", $columns, ", 0 AS is_for_nobody FROM deployments
              WHERE pool = r.pool AND state = 'waiting' AND bot_id IS NOT NULL ORDER BY arrival LIMIT $1) AS of_bots
             UNION ALL
             SELECT * FROM (SELECT ", $columns, ", 1 AS is_for_nobody FROM deployments
              WHERE pool = r.pool AND state = 'waiting' AND bot_id IS NULL ORDER BY arrival LIMIT $1) AS for_nobody
             UNION ALL
             SELECT * FROM (SELECT ", $columns, ", CASE WHEN bot_id IS NULL THEN 1 ELSE 0 END AS is_for_nobody FROM deployments
              WHERE pool = r.pool AND state = 'again' AND lease_until <= $3 ORDER BY lease_until LIMIT $1) AS due_retries"
        )
    };
}

/// On each host bots before slots that are only made ready; within each, first in first out. Those without a bot leave
/// one permit free, so that a bot that comes next need not wait until a slot for nobody is ready.
macro_rules! sql_pass {
    ($candidates:expr, $begin:literal, $end:literal) => {
        concat!(
            "UPDATE deployments
                SET state = 'active', holder = $2, replica = $4, lease_until = '9999-01-01T00:00:00.000000Z'
              WHERE slot ",
            $begin,
            " SELECT slot FROM deployments WHERE slot IN (
                  SELECT slot FROM (
                      SELECT slot, bot_id, row_number() OVER (PARTITION BY host ORDER BY is_for_nobody, arrival)
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
    // SQLite cannot join each pool with the first of its rows, but can look these up by their names.
    sqlite: sql_pass!(
        concat!(
            "SELECT pending.slot, pending.bot_id, pending.host, pending.arrival,
                    CASE WHEN pending.bot_id IS NULL THEN 1 ELSE 0 END AS is_for_nobody
               FROM", served!(sqlite), "CROSS JOIN deployments AS pending
              WHERE pending.slot IN (SELECT slot FROM (", first_of_pool!("slot"), ")) AND ", no_pull!()
        ),
        "IN (", ")"
    ),
    // As an array, so that it is picked once, however the rest is planned: picked twice it would let more through than
    // there is room for. One that is leaving at this moment is passed over.
    postgres: sql_pass!(
        concat!(
            "SELECT pending.slot, pending.bot_id, pending.host, pending.arrival, pending.is_for_nobody
               FROM", served!(postgres), "CROSS JOIN LATERAL (", first_of_pool!("slot, bot_id, host, arrival"), ") AS pending
              WHERE ", no_pull!()
        ),
        "= ANY (ARRAY(", " FOR UPDATE SKIP LOCKED))"
    ),
);

impl Store {
    /// Everyone at the gate and behind it, in the order of arrival.
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

    /// Bots that have waited before the gate longer than they may: for the first time, or to be tried again.
    pub async fn overdue_deployments(&self, now: Timestamp) -> Result<Vec<DeploymentRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "deployments.overdue",
                    "SELECT ",
                    deployment_columns!(),
                    " FROM deployments
                      WHERE bot_id IS NOT NULL AND timeout_at <= $1
                        AND (state = 'waiting' OR state = 'again' AND lease_until <= $1)"
                ),
                args![now],
            )
            .await?
            .iter()
            .map(deployment)
            .collect()
    }

    /// What went wrong with the last try to start some bots, where one has failed.
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

    /// Whether the slot is at the gate or behind it.
    pub async fn is_at_gate(&self, slot: &SlotName) -> Result<bool, StoreError> {
        let found = self
            .reader()
            .first(sql!("deployments.at_gate", "SELECT slot FROM deployments WHERE slot = $1"), args![slot])
            .await?;
        Ok(found.is_some())
    }

    /// Whether a deployment is still its holder's.
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

    /// Whether someone is starting this slot.
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
    /// Lets through as many of the served pools as there is room for on their hosts, first in first out, and gives them
    /// to `holder`, who is part of `replica`.
    pub async fn pass_gate(
        &mut self,
        max: i64,
        served: &[Served],
        holder: Uuid,
        replica: Uuid,
        now: Timestamp,
    ) -> Result<Vec<DeploymentRow>, StoreError> {
        // One look at the gates at a time, in whatever process.
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

    /// Keeps what was said of a deployment last. False when it is no longer the holder's.
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

    /// Gives a place behind the gate to others until then, because the start failed and is tried again. False when the
    /// deployment is no longer the holder's.
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

    /// Gives a place behind the gate to others while somebody else pulls the image: no failure, and not counted as a
    /// try. The gate leaves the pool out until the pull is over.
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

    /// Has what waits of a pool pass the gate of another host from now on: that of its configuration.
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

    /// Replicas of the version before do not say of which pool a deployment is.
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

    /// Has the first of a pool that step back tried again now, no more than `most`: something may have come free for them.
    pub async fn hurry_gate(&mut self, pool: &str, now: Timestamp, most: i64) -> Result<(), StoreError> {
        self.run(
            sql!(
                "deployments.hurry",
                "UPDATE deployments SET lease_until = $2 WHERE state = 'again' AND slot IN
                     (SELECT slot FROM deployments
                       WHERE state = 'again' AND lease_until > $2 AND pool = $1 ORDER BY arrival LIMIT $3)"
            ),
            args![pool, now, most],
        )
        .await
    }

    /// Cancels the deployments of bots that wait before the gate, and returns these bots: for them nothing was begun.
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

    /// Forgets the deployment of a slot that nobody is to start any more.
    pub async fn forget_deployment(&mut self, slot: &SlotName) -> Result<(), StoreError> {
        self.run(sql!("deployments.forget", "DELETE FROM deployments WHERE slot = $1"), args![slot]).await
    }
}
