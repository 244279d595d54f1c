//! Runs the random histories of the planner's model on the real store. After every step, the database agrees with the
//! planner. `docs/planner.md` explains what a history is.

use std::fmt::Display;
use std::time::Duration;

use domain::planner::bot::{EndedBot, OpenBot};
use domain::planner::changes::GateState;
use domain::planner::model::{Database as HistoryDatabase, FEWER_BATCHES, History, OutsideChanges};
use domain::planner::snapshot::{Deployment, PoolState, User};
use domain::planner::{Changes, Job, Snapshot};
use domain::{BotId, EventId, Platform, Pool, Slot, SlotName, UserId};
use greenroom::store::{Applied, BotDetails, Changed, NewEvent, Position, Store};
use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::support::{Backend, Database, Reader};

/// As many as run in about ten seconds.
const HISTORIES: u64 = 60;

/// A store, and a connection for changes outside of placement.
struct Stored {
    store: Store,
    raw: Reader,
    /// A second connection, which kills the connection of a batch during its write. SQLite has no such connections.
    killer: Option<Reader>,
    lost: u64,
    /// The token after the last write.
    token: Uuid,
    /// The snapshot of another replica, which only follows the journal.
    follower: (Snapshot, Position),
    last_event: EventId,
    _database: Database,
}

/// A value as a literal of both databases.
fn value(value: Option<impl Display>) -> String {
    value.map_or("NULL".to_owned(), |value| format!("'{}'", value.to_string().replace('\'', "''")))
}

fn text(of: impl Display) -> String {
    value(Some(of))
}

fn time(at: Timestamp) -> String {
    text(format!("{at:.6}"))
}

impl Stored {
    async fn new(backend: Backend) -> Self {
        let database = Database::new(backend).await;
        let (store, raw) = (database.open().await, database.reader().await);
        let killer = if backend == Backend::Postgres { Some(database.reader().await) } else { None };
        let position = store.placement_position().await.unwrap();
        let follower = (Snapshot::default(), position);
        let (token, last_event) = (position.token, EventId(0));
        Self { store, raw, killer, lost: 0, token, follower, last_event, _database: database }
    }

    async fn apply(
        &mut self,
        jobs: &[Job],
        changes: &Changes,
        before: Uuid,
        now: Timestamp,
    ) -> Result<Applied, String> {
        let details = jobs.iter().enumerate().filter_map(|(number, job)| Some((number, details(job)?))).collect();
        let after = Uuid::new_v4();
        let journal = Changed::of(changes);
        let write = self.store.prepare(changes, &details, (before, after), Some(&journal), now);
        let applied = self.store.write(write.map_err(|error| error.to_string())?, None).await;
        if applied.as_ref().is_ok_and(|applied| *applied == Applied::Committed) {
            self.token = after;
        }
        applied.map_err(|error| error.to_string())
    }

    /// Kills the database connection of a batch during its write. Returns false if the database has no such
    /// connections.
    async fn kill(&mut self, jobs: &[Job], changes: &Changes, now: Timestamp) -> Result<bool, String> {
        let Some(killer) = &mut self.killer else { return Ok(false) };
        // The write waits for the token, so that it is still in progress when it is killed.
        self.raw.execute("BEGIN; SELECT token FROM placement FOR UPDATE;".to_owned()).await;
        let details = jobs.iter().enumerate().filter_map(|(number, job)| Some((number, details(job)?))).collect();
        let (tokens, journal) = ((self.token, Uuid::new_v4()), Changed::of(changes));
        let write = self.store.prepare(changes, &details, tokens, Some(&journal), now);
        let write = self.store.write(write.map_err(|error| error.to_string())?, None);
        let kill = async { while killer.pairs(KILL_WHO_WAITS).await.is_empty() {} };
        let (written, killed) = tokio::join!(write, tokio::time::timeout(KILLED_WITHIN, kill));
        killed.map_err(|_| "the write did not wait for the token")?;
        self.raw.execute("ROLLBACK;".to_owned()).await;
        match written {
            Err(_) => Ok(true),
            Ok(applied) => Err(format!("a write that was killed was {applied:?}")),
        }
    }

    /// The events since the last read.
    async fn new_events(&mut self) -> Result<Vec<NewEvent>, String> {
        let rows = self.store.events_after(self.last_event, 1_000).await.map_err(|error| error.to_string())?;
        self.last_event = rows.last().map_or(self.last_event, |row| row.id);
        let events = rows.into_iter().map(|row| NewEvent {
            bot_id: row.bot_id,
            user_id: row.user_id,
            kind: row.kind,
            from: row.from,
            to: row.to,
            reason: row.reason,
            actor: row.actor,
            start_kind: row.start_kind,
        });
        Ok(events.collect())
    }

    /// Follows the journal as another replica does, and compares the result with the stored data.
    async fn follow(&mut self, stored: &Snapshot, users: &[UserId]) -> Result<(), Box<dyn std::error::Error>> {
        let (copy, position) = &mut self.follower;
        let since = self.store.placement_since(*position).await?;
        let changed = since.changed.ok_or("the journal does not tell all of it")?;
        self.store.refresh_snapshot(copy, &changed).await?;
        *position = since.position;
        let unknown: Vec<UserId> = users.iter().copied().filter(|id| copy.user(*id).is_none()).collect();
        self.store.load_users(copy, &unknown).await?;
        let rows = |of: &Snapshot| {
            let mut rows: Vec<String> = of.slots().map(|slot| format!("{slot:?}")).collect();
            rows.extend(of.bots().map(|bot| format!("{bot:?}")));
            rows.extend(of.pools().map(|state| format!("{:?} {:?}", state.pool, (&state.numbers, state.unsettled))));
            rows.extend(users.iter().map(|id| format!("{id} {:?} {:?}", of.user(*id), of.counts(*id))));
            rows.sort();
            rows
        };
        let (copied, stored) = (rows(copy), rows(stored));
        match copied.iter().zip(&stored).find(|(copied, stored)| copied != stored) {
            Some((copied, stored)) => Err(format!("who follows the journal has {copied}, stored is {stored}").into()),
            None if copied.len() != stored.len() => {
                Err(format!("{} rows, stored are {}", copied.len(), stored.len()).into())
            }
            None if queue_of(copy) != queue_of(&self.store.load_snapshot().await?) => Err("the queues differ".into()),
            None => Ok(()),
        }
    }

    async fn read_all(&mut self) -> Result<Snapshot, Box<dyn std::error::Error>> {
        let mut snapshot = self.store.load_snapshot().await?;
        let (mut users, mut keys, mut ended, mut slots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut somebody_waits = false;
        for (what, name) in self.raw.pairs(NAMES).await {
            match what.as_str() {
                "user" => users.push(UserId(name.parse()?)),
                "ended" => ended.push(BotId(name.parse()?)),
                "deployment" => slots.push(SlotName::stored(name)),
                "queue" => somebody_waits = true,
                "pool" => {
                    let counted = |state: &PoolState| format!("{} {}", state.pool.name, state.pool.slots) == name;
                    if !snapshot.pools().any(counted) {
                        return Err(format!("`{name}` slots are written with a pool; there are others").into());
                    }
                }
                user => keys.push((UserId(user.parse()?), name)),
            }
        }
        self.store.load_users(&mut snapshot, &users).await?;
        self.follow(&snapshot, &users).await?;
        self.store.load_keys(&mut snapshot, &keys).await?;
        self.store.refresh_bots(&mut snapshot, &ended).await?;
        self.store.load_deployments(&mut snapshot, &slots).await?;
        let listed = if somebody_waits { self.store.queue().await? } else { Vec::new() };
        let queued = queue_of(&snapshot);
        if !listed.iter().map(|row| row.bot_id).eq(queued.iter().copied()) {
            return Err(format!("the queue is listed as {listed:?}; it is {queued:?}").into());
        }
        Ok(snapshot)
    }
}

/// The rows that are read by name, each with its kind and its name. An idempotency key has its user and the key. Also
/// the queue, and the slot count in each pool's row.
const NAMES: &str = "SELECT 'user', CAST(id AS TEXT) FROM users
    UNION ALL SELECT 'ended', CAST(id AS TEXT) FROM bots WHERE status IN ('completed', 'failed')
    UNION ALL SELECT 'deployment', slot FROM deployments
    UNION ALL SELECT 'queue', CAST(bot_id AS TEXT) FROM queue
    UNION ALL SELECT 'pool', name || ' ' || slots FROM pools
    UNION ALL SELECT CAST(user_id AS TEXT), key FROM idempotency_keys";

const KILLED_WITHIN: Duration = Duration::from_secs(30);
/// The statement finds the backends first, because PostgreSQL may evaluate the parts of a condition in any order.
const KILL_WHO_WAITS: &str = "WITH waiting AS MATERIALIZED (
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
    SELECT 'killed', CAST(pid AS TEXT) FROM waiting WHERE pg_terminate_backend(pid)";

/// The waiting bots by platform, in the order of the queue.
fn queue_of(snapshot: &Snapshot) -> Vec<BotId> {
    let mut platforms = Platform::ALL;
    platforms.sort_by_key(|platform| platform.as_str());
    let of_platform = |platform| {
        let groups = snapshot.queue().groups(platform);
        let mut waiting: Vec<_> = groups.flat_map(|(_, group)| &group.waiting).collect();
        waiting.sort();
        waiting.into_iter().map(|(_, bot)| *bot)
    };
    platforms.into_iter().flat_map(of_platform).collect()
}

/// The part of a request that placement does not use.
fn details(job: &Job) -> Option<BotDetails> {
    let Job::Reserve(request) = job else { return None };
    let requirements = request.requirements.as_ref().map(|required| json!(required).as_object().unwrap().clone());
    Some(BotDetails {
        meeting_url: format!("https://meet.example/{}", request.native_meeting_id),
        bot_display_name: None,
        requirements,
        config: Default::default(),
        metadata: Default::default(),
    })
}

impl HistoryDatabase for Stored {
    fn empty(&mut self) -> Result<(), String> {
        let tables = "users bots open_bots idempotency_keys pools slots queue deployments events";
        let emptied = tables.split(' ').map(|table| format!("DELETE FROM {table};"));
        let sql = ["DELETE FROM api_keys;".to_owned()].into_iter().chain(emptied).collect();
        wait(self.raw.execute(sql));
        let position = wait(self.store.placement_position()).map_err(|error| error.to_string())?;
        self.follower = (Snapshot::default(), position);
        Ok(())
    }

    fn take_over(&mut self, changed: &OutsideChanges, now: Timestamp) -> Result<(), String> {
        let before = std::mem::replace(&mut self.token, Uuid::new_v4());
        let journal = journal_row(changed, (before, self.token), now);
        let mut sql = vec![format!("BEGIN; UPDATE placement SET token = '{}'; {journal}", self.token)];
        sql.extend(changed.users.iter().map(|(id, user)| user_rows(*id, user, now)));
        sql.extend(changed.pools.iter().map(pool_row));
        sql.extend(changed.slots.iter().map(slot_row));
        sql.extend(changed.bots.iter().map(|bot| bot_rows(bot, now)));
        sql.extend(changed.ended.iter().map(|(id, ended)| ended_rows(*id, ended, now)));
        sql.extend(changed.deployments.iter().map(|(slot, found)| deployment_row(slot, found)));
        sql.push("COMMIT;".to_owned());
        wait(self.raw.execute(sql.concat()));
        Ok(())
    }

    fn write(&mut self, jobs: &[Job], changes: &Changes, now: Timestamp) -> Result<(), String> {
        // The server does the same.
        if changes.is_empty() {
            return Ok(());
        }
        let applied = wait(self.apply(jobs, changes, self.token, now))?;
        if applied != Applied::Committed {
            return Err(format!("the write was {applied:?}"));
        }
        let events = wait(self.new_events())?;
        if events != changes.events {
            return Err(format!(
                "events in the database differ\n  planner: {:?}\n  stored: {events:?}",
                changes.events
            ));
        }
        Ok(())
    }

    /// Kills every third batch during its write. For the other batches, another replica was first: the token is no
    /// longer the one of the plan.
    fn lose(&mut self, jobs: &[Job], changes: &Changes, now: Timestamp) -> Result<(), String> {
        self.lost += 1;
        if !changes.is_empty() && self.lost.is_multiple_of(3) && wait(self.kill(jobs, changes, now))? {
            let told = wait(self.new_events())?;
            return if told.is_empty() { Ok(()) } else { Err(format!("events of a batch that was killed: {told:?}")) };
        }
        let applied = wait(self.apply(jobs, changes, Uuid::new_v4(), now))?;
        if applied != Applied::Stale {
            return Err(format!("a write under another token was {applied:?}"));
        }
        let events = wait(self.new_events())?;
        if events.is_empty() { Ok(()) } else { Err(format!("events of a plan that was lost: {events:?}")) }
    }

    fn read(&mut self) -> Result<Snapshot, String> {
        wait(self.read_all()).map_err(|error| error.to_string())
    }
}

/// Histories are not async, so they wait for the store here.
fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::task::block_in_place(|| Handle::current().block_on(future))
}

/// The journal row of a writer outside of placement, for the other replicas.
fn journal_row(changed: &OutsideChanges, (before, token): (Uuid, Uuid), now: Timestamp) -> String {
    let journal = Changed {
        slots: changed.slots.iter().map(|slot| slot.name.to_string()).collect(),
        bots: changed.bots.iter().map(|bot| bot.id).chain(changed.ended.iter().map(|(id, _)| *id)).collect(),
        users: changed.users.iter().map(|(id, _)| *id).collect(),
        pools: !changed.pools.is_empty(),
        ..Changed::default()
    };
    format!(
        "INSERT INTO placement_journal (before, token, at, changed) VALUES ('{before}', '{token}', {}, {});",
        time(now),
        text(json!(journal)),
    )
}

fn user_rows(id: UserId, user: &User, now: Timestamp) -> String {
    let (id, now) = (text(id), time(now));
    let User { max_concurrent_bots, min_priority, api_keys } = user;
    let keys = api_keys.iter().map(|(key, until)| {
        let (key, until) = (text(key), until.map_or("NULL".to_owned(), time));
        format!(
            "INSERT INTO api_keys (id, user_id, hash, created_at, expires_at) VALUES ({key}, {id}, '', {now}, {until});"
        )
    });
    format!(
        "DELETE FROM api_keys WHERE user_id = {id}; DELETE FROM users WHERE id = {id};
         INSERT INTO users (id, email, name, max_concurrent_bots, min_priority, data, created_at, updated_at)
         VALUES ({id}, '', '', {max_concurrent_bots}, {min_priority}, '{{}}', {now}, {now}); {}",
        keys.collect::<String>()
    )
}

fn pool_row(pool: &Pool) -> String {
    let Pool { max_slots, min_idle, recycle_after, slots, .. } = pool;
    let sets: Vec<String> = pool.attribute_sets.iter().map(ToString::to_string).collect();
    let (name, number) = (text(&pool.name), |number: Option<i64>| number.map_or("NULL".to_owned(), |n| n.to_string()));
    format!(
        "DELETE FROM pools WHERE name = {name};
         INSERT INTO pools (name, platform, provider, host, standby, recycle_after, max_slots, min_idle, configured_max_slots,
                            configured_min_idle, fill_order, slots, mean_hold_ms, attribute_sets, expire_after_ms,
                            idle_timeout_ms, recipe, ready_timeout_ms, max_warm_age_ms)
         VALUES ({name}, {}, {}, {}, {}, {recycle_after}, {max_slots}, {min_idle}, {max_slots}, {min_idle}, {}, {slots}, {},
                 {}, {}, {}, {}, {}, {});",
        text(pool.platform.as_str()),
        text(&pool.provider),
        text(&pool.host),
        text(if pool.hot { "running" } else { "stopped" }),
        number(pool.fill_order),
        number(pool.mean_hold_ms),
        text(json!(sets)),
        number(pool.expire_after_ms),
        number(pool.idle_timeout_ms),
        pool.recipe.as_ref().map_or("NULL".to_owned(), text),
        number(pool.ready_timeout_ms),
        number(pool.max_warm_age_ms),
    )
}

/// The changes of an assignment by hand.
fn slot_row(slot: &Slot) -> String {
    format!(
        "UPDATE slots SET status = {}, status_since = {}, bot_id = {}, stopped = 0 WHERE name = {};",
        text(slot.status.as_str()),
        time(slot.status_since),
        value(slot.bot_id),
        text(&slot.name),
    )
}

/// The changes of a stop, a callback or an assignment by hand. None of them puts a bot into the queue.
fn bot_rows(bot: &OpenBot, now: Timestamp) -> String {
    let id = text(bot.id);
    let leaves = if bot.queued.is_none() { format!("DELETE FROM queue WHERE bot_id = {id};") } else { String::new() };
    format!(
        "UPDATE bots SET status = {}, stop_asked_at = {}, connection_id = {}, pool = {}, slot = {}, queue_until = {},
                joined_at = {}
          WHERE id = {id}; {leaves}",
        text(bot.status.as_str()),
        value(bot.stop_asked.then(|| format!("{now:.6}"))),
        value(bot.connection),
        value(bot.pool.as_ref()),
        value(bot.slot.as_ref()),
        value(bot.wait_until.map(|until| format!("{until:.6}"))),
        value(bot.has_joined.then(|| format!("{now:.6}"))),
    )
}

fn ended_rows(id: BotId, ended: &EndedBot, now: Timestamp) -> String {
    let id = text(id);
    format!(
        "UPDATE bots SET status = {}, reason = {}, stop_asked_at = {} WHERE id = {id};
         DELETE FROM queue WHERE bot_id = {id}; DELETE FROM open_bots WHERE bot_id = {id};",
        text(ended.status.as_str()),
        value(ended.reason.as_ref()),
        value(ended.stop_asked.then(|| format!("{now:.6}"))),
    )
}

fn deployment_row(slot: &SlotName, found: &Deployment) -> String {
    let state = match found.state {
        GateState::Waiting => "waiting",
        GateState::Active => "active",
        GateState::Retry => "retry",
    };
    let (state, holder) = (text(state), value(found.holder));
    format!("UPDATE deployments SET state = {state}, holder = {holder} WHERE slot = {};", text(slot))
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn random_histories_leave_in_the_database_what_the_planner_has(#[case] backend: Backend) {
    let mut stored = Stored::new(backend).await;
    let from = number("MODEL_FROM", 0);
    for seed in from..from + number("MODEL_HISTORIES", HISTORIES) {
        let history = History::new(seed, FEWER_BATCHES);
        if history.run_on(&mut stored).is_err() {
            let (small, failure) = history.shrink_on(&mut stored);
            panic!("{}", failure.describe(&small));
        }
    }
}
