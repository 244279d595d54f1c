//! The keeper `retention` deletes what is old, and nothing else. Every table has an owner that prunes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use domain::BotId;
use greenroom::admission::BotRequest;
use greenroom::context::Context;
use greenroom::keepers::Keeper;
use greenroom::keepers::retention::{Retention, RetentionKeeper};
use greenroom::keepers::stats::StatsKeeper;
use greenroom::random::Random;
use rstest::rstest;

use crate::support::{Backend, CoreFixture, Database, Plan, Reader, bot_request, in_repository, pool};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);
const KEPT: Retention = Retention {
    bots: Some(Duration::from_hours(72)),
    transcripts: Some(Duration::from_hours(72)),
    idempotency_keys: Some(DAY),
    failures: Some(DAY),
};

/// The tables with rows of a bot, each with its column.
const OF_BOT: [(&str, &str); 8] = [
    ("bots", "id"),
    ("sessions", "bot_id"),
    ("events", "bot_id"),
    ("transcript_segments", "bot_id"),
    ("bot_logs", "bot_id"),
    ("screenshots", "bot_id"),
    ("commands", "bot_id"),
    ("idempotency_keys", "bot_id"),
];

fn keeper(core: &CoreFixture, kept: Retention) -> RetentionKeeper {
    let context = Context::new(core.store.clone(), core.clock.clone(), Random::System);
    let stats = Arc::new(StatsKeeper::new(&context, None));
    RetentionKeeper::new(&context, kept, stats).without_rests()
}

/// Runs a keeper once as if an operator asked for it, and returns how many bots it deleted.
async fn pruned(keeper: &RetentionKeeper) -> u64 {
    keeper.request_full_run();
    keeper.run().await.unwrap().counts.get("bots").copied().unwrap_or(0)
}

async fn number(reader: &mut Reader, sql: String) -> i64 {
    let sql = sqlx::AssertSqlSafe(sql);
    match reader {
        Reader::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
        Reader::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap(),
    }
}

async fn rows_of(reader: &mut Reader, bot: BotId) -> Vec<i64> {
    let mut rows = Vec::new();
    for (table, column) in OF_BOT {
        rows.push(number(reader, format!("SELECT count(*) FROM {table} WHERE {column} = '{bot}'")).await);
    }
    rows
}

/// A request for a meeting, under an idempotency key.
fn keyed(number: usize, key: &str) -> BotRequest {
    BotRequest { idempotency: Some((key.to_owned(), format!("hash of {key}"))), ..bot_request(number) }
}

/// A bot that has started under a key, with a row in every table that has rows of bots.
async fn full_bot(core: &CoreFixture, reader: &mut Reader, number: usize) -> BotId {
    let bot = core.ask(keyed(number, &format!("key {number}"))).await.bot.id;
    let caller = core.assigned(bot).await.unwrap();
    core.lifecycle.started(caller, None).await.unwrap();
    core.lifecycle.configure(core.user, bot, serde_json::Map::new()).await.unwrap();
    let (connection, now) = (caller.connection_id, core.clock.now());
    reader
        .execute(format!(
            "INSERT INTO transcript_segments (bot_id, connection_id, digest, start_time, end_time, text, created_at)
             VALUES ('{bot}', '{connection}', 'd', 0, 1, 'hello', '{now:.6}');
             INSERT INTO bot_logs (bot_id, connection_id, lines, truncated, updated_at)
             VALUES ('{bot}', '{connection}', '[]', 0, '{now:.6}');
             INSERT INTO screenshots (bot_id, connection_id, content_type, image, at)
             VALUES ('{bot}', '{connection}', 'image/png', {image}, '{now:.6}');
             INSERT INTO heartbeats (connection_id, at) VALUES ('{connection}', '{now:.6}');",
            image = if matches!(reader, Reader::Postgres(_)) { "'\\x00'" } else { "x'00'" },
        ))
        .await;
    bot
}

async fn end(core: &CoreFixture, bot: BotId) {
    let caller = core.assigned(bot).await.unwrap();
    assert!(core.exited(caller, 0).await.unwrap().is_ended());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_old_bot_is_deleted_with_everything_and_neither_an_open_bot_nor_one_that_ended_just_now(
    #[case] backend: Backend,
) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let keeper = keeper(&core, KEPT);
    let old = full_bot(&core, &mut reader, 1).await;
    let open = full_bot(&core, &mut reader, 2).await;
    let late = full_bot(&core, &mut reader, 3).await;
    assert!(rows_of(&mut reader, old).await.iter().all(|rows| *rows > 0));
    end(&core, old).await;
    core.clock.advance(3 * DAY - HOUR);
    assert_eq!(pruned(&keeper).await, 0, "it is not old enough");

    core.clock.advance(2 * HOUR);
    // It was created long ago too, but ended only now.
    end(&core, late).await;
    assert_eq!(pruned(&keeper).await, 1);
    assert_eq!(rows_of(&mut reader, old).await, [0; 8]);
    for kept in [open, late] {
        let rows = rows_of(&mut reader, kept).await;
        // Its commands and its idempotency key have a shorter life.
        assert!(rows[..6].iter().all(|rows| *rows > 0), "{rows:?}");
    }
    assert_eq!(number(&mut reader, "SELECT count(*) FROM heartbeats".to_owned()).await, 1, "of the open bot");
    assert_eq!(number(&mut reader, "SELECT count(*) FROM open_bots".to_owned()).await, 1);
    assert_eq!(pruned(&keeper).await, 0);

    core.clock.advance(4 * DAY);
    assert_eq!(pruned(&keeper).await, 1);
    assert_eq!(rows_of(&mut reader, late).await, [0; 8]);
    assert!(rows_of(&mut reader, open).await[0] > 0, "a bot that has not ended is never deleted");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_stays_until_its_slot_is_cleared(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let keeper = keeper(&core, KEPT);
    let bot = full_bot(&core, &mut reader, 1).await;
    end(&core, bot).await;
    core.clock.advance(9 * DAY);
    let (now, token) = (core.clock.now(), uuid::Uuid::new_v4());
    reader
        .execute(format!(
            "INSERT INTO slots (name, pool, number, status, status_since, bot_id, generation, description, created_at)
             VALUES ('pool-meet-777', 'meet', 777, 'error', '{now:.6}', '{bot}', 1, 'x', '{now:.6}');
             UPDATE bots SET slot = 'pool-meet-777' WHERE id = '{bot}';
             UPDATE placement SET token = '{token}';"
        ))
        .await;
    assert_eq!(pruned(&keeper).await, 0);
    reader.execute("UPDATE slots SET bot_id = NULL WHERE number = 777;".to_owned()).await;
    assert_eq!(pruned(&keeper).await, 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_deleted_idempotency_key_answers_nowhere_and_a_kept_one_everywhere(#[case] backend: Backend) {
    let database = Arc::new(Database::new(backend).await);
    let plan = Plan::of([greenroom::store::PoolRow { max_slots: 2_000, ..pool("meet") }]);
    let core = CoreFixture::planned(database.clone(), &plan).await;
    let ask = async |key: &str| core.ask(keyed(if key == "old" { 1 } else { 2 }, key)).await;
    let old = ask("old").await.bot.id;
    core.ended(old).await;
    core.clock.advance(DAY + HOUR);
    let new = ask("new").await;
    assert!(new.is_new);
    // Both keys are in the memory of placement.
    assert_eq!(ask("old").await.bot.id, old);
    keeper(&core, Retention { bots: Some(9 * DAY), ..KEPT }).run().await.unwrap();
    let again = ask("old").await;
    assert!(again.is_new && again.bot.id != old);
    let repeated = ask("new").await;
    assert_eq!((repeated.is_new, repeated.bot.id), (false, new.bot.id));
    assert_eq!(ask("old").await.bot.id, again.bot.id);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_transcript_can_be_deleted_before_its_bot(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let keeper = keeper(&core, Retention { transcripts: Some(HOUR), ..KEPT });
    let (old, open) = (full_bot(&core, &mut reader, 1).await, full_bot(&core, &mut reader, 2).await);
    end(&core, old).await;
    core.clock.advance(2 * HOUR);
    assert_eq!(pruned(&keeper).await, 0);
    assert_eq!(rows_of(&mut reader, old).await[3], 0, "the transcript is deleted");
    assert_eq!(rows_of(&mut reader, old).await[4], 1, "the log stays with the bot");
    assert_eq!(rows_of(&mut reader, open).await[3], 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_with_very_many_rows_is_deleted_in_several_transactions(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let keeper = keeper(&core, KEPT);
    let bots = [full_bot(&core, &mut reader, 1).await, full_bot(&core, &mut reader, 2).await];
    let now = core.clock.now();
    for bot in bots {
        let rows: Vec<String> =
            (0..3_000).map(|row| format!("('{bot}', '{bot}', 'd{row}', 0, 1, 'hello', '{now:.6}')")).collect();
        reader
            .execute(format!(
                "INSERT INTO transcript_segments (bot_id, connection_id, digest, start_time, end_time, text, created_at)
                 VALUES {};",
                rows.join(", ")
            ))
            .await;
        end(&core, bot).await;
    }
    core.lifecycle.delete_data(core.user, bots[0]).await.unwrap();
    assert_eq!(rows_of(&mut reader, bots[0]).await[3], 0);
    assert_eq!(rows_of(&mut reader, bots[1]).await[3], 3_001);
    core.clock.advance(9 * DAY);
    keeper.request_full_run();
    let report = keeper.run().await.unwrap();
    assert_eq!((report.counts["bots"], report.counts["transcript_segments"]), (2, 3_001));
    assert_eq!(rows_of(&mut reader, bots[1]).await, [0; 8]);
    // The last deleted event is noted although it was deleted before its bot.
    assert!(core.store.pruned_events().await.unwrap().0 > 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn useless_rows_are_deleted_and_those_in_use_stay(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let (ended, open) = (full_bot(&core, &mut reader, 1).await, full_bot(&core, &mut reader, 2).await);
    end(&core, ended).await;
    let (now, key) = (core.clock.now(), uuid::Uuid::new_v4());
    let row = |table: &str, name: &str, rest: &str, until: &str| {
        format!("INSERT INTO {table} ({name}, holder{rest}, lease_until) VALUES ('x', '{key}'{until}, '{now:.6}');")
    };
    let locks = [
        row("slot_locks", "slot", "", ""),
        row("image_locks", "image", ", host", ", 'h'"),
        row("leases", "name", ", holder_name", ", 'n'"),
    ];
    reader
        .execute(format!(
            "{} INSERT INTO failures (slot, at, message) VALUES ('s', '{now:.6}', 'm');
             INSERT INTO audit (at, action, detail, address) VALUES ('{now:.6}', 'keeper_run', '{{}}', '::1');
             INSERT INTO api_keys (id, user_id, hash, created_at, expires_at)
             VALUES ('{key}', '{}', 'h', '{now:.6}', '{now:.6}');",
            locks.concat(),
            core.user,
        ))
        .await;
    let keeper = keeper(&core, KEPT);
    let tables = ["slot_locks", "image_locks", "leases", "failures", "audit", "api_keys", "commands", "heartbeats"];
    let count = async |reader: &mut Reader| {
        let mut counts = Vec::new();
        for table in tables {
            counts.push(number(reader, format!("SELECT count(*) FROM {table}")).await);
        }
        counts
    };
    let before = count(&mut reader).await;
    keeper.run().await.unwrap();
    assert_eq!(count(&mut reader).await, before, "nothing is old yet");
    core.clock.advance(Duration::from_hours(25));
    keeper.run().await.unwrap();
    // The audit log is kept for longer. The key of the user, and the command and heartbeat of the open bot are in use.
    let after = count(&mut reader).await;
    assert_eq!(after, [0, 0, 0, 0, before[4], before[5] - 1, 1, 1]);
    assert_eq!(rows_of(&mut reader, open).await[6], 1);
    core.clock.advance(400 * DAY);
    keeper.run().await.unwrap();
    assert_eq!(count(&mut reader).await[4], 0);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn data_that_is_kept_for_ever_is_never_deleted(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut reader = core.database.reader().await;
    let bot = full_bot(&core, &mut reader, 1).await;
    end(&core, bot).await;
    core.clock.advance(5_000 * DAY);
    let forever = Retention { bots: None, transcripts: None, idempotency_keys: None, failures: None };
    assert_eq!(pruned(&keeper(&core, forever)).await, 0);
    let rows = rows_of(&mut reader, bot).await;
    assert!(rows[..6].iter().all(|rows| *rows > 0) && rows[7] == 1, "{rows:?}");
}

/// The names in the first column of the table in docs/retention.md.
fn owned_tables() -> BTreeSet<String> {
    let text = std::fs::read_to_string(in_repository("docs/retention.md")).unwrap();
    let (_, table) = text.split_once("## Who prunes what").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.flat_map(|row| row.split('|').next().unwrap_or_default().split(", "))
        .map(|name| name.trim().trim_matches('`').to_owned())
        .collect()
}

#[rstest]
#[case::sqlite(
    Backend::Sqlite,
    "SELECT name, '' FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)]
#[case::postgres(Backend::Postgres, "SELECT tablename::text, '' FROM pg_tables WHERE schemaname = current_schema()")]
#[tokio::test]
async fn every_table_has_an_owner_that_prunes_it(#[case] backend: Backend, #[case] tables: &'static str) {
    let database = Database::new(backend).await;
    drop(database.open().await);
    let found: BTreeSet<String> = database.reader().await.pairs(tables).await.into_iter().map(|row| row.0).collect();
    assert_eq!(owned_tables(), found, "docs/retention.md says who prunes each table");
}
