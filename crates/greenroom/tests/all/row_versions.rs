//! The row versions that placement's writes leave in PostgreSQL. The writes change no index, so PostgreSQL can remove
//! old versions on the page. While a transaction is held open, it keeps them all.

use domain::SlotName;
use greenroom::store::PoolRow;

use crate::support::placement_writes::write_slots;
use crate::support::{Backend, CoreFixture, Database, Plan, Reader, pool};

const UPDATES: i64 = 1_500;

/// How many pages PostgreSQL reads to run a statement.
async fn pages(reader: &mut Reader, sql: &'static str) -> u64 {
    let Reader::Postgres(connection) = reader else { panic!("only PostgreSQL keeps row versions") };
    sqlx::raw_sql("SET enable_seqscan = off; SET enable_bitmapscan = off").execute(&mut *connection).await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}");
    let (plan,): (serde_json::Value,) =
        sqlx::query_as(sqlx::AssertSqlSafe(explain)).fetch_one(connection).await.unwrap();
    let of = |what: &str| plan[0]["Plan"][what].as_u64().unwrap();
    of("Shared Hit Blocks") + of("Shared Read Blocks")
}

#[tokio::test]
async fn a_row_is_found_on_postgres_however_many_versions_a_transaction_keeps() {
    let hot = PoolRow { hot: true, ..pool("meet") };
    let core = CoreFixture::planned(Database::new(Backend::Postgres).await.into(), &Plan::of([hot])).await;
    core.reserved(0).await;
    let mut slot = core.store.slots(None, None).await.unwrap().remove(0);
    assert_eq!(slot.name, SlotName::stored("pool-meet-001".to_owned()));

    let mut holder = core.database.reader().await;
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM slots, placement;".to_owned()).await;
    for number in 0..UPDATES {
        slot.token_number = number;
        write_slots(&core.store, vec![slot.clone()], false, core.clock.now()).await;
    }
    let mut reader = core.database.reader().await;
    let one = "SELECT token_number FROM slots WHERE name = 'pool-meet-001' ORDER BY epoch DESC LIMIT 1";
    let examined = pages(&mut reader, one).await;
    assert!(examined < 20, "{examined} pages for one slot");
    let examined = pages(&mut reader, "SELECT token FROM placement ORDER BY epoch DESC LIMIT 1").await;
    assert!(examined < 20, "{examined} pages for the token");

    assert_eq!(core.store.slot(&slot.name).await.unwrap().unwrap().token_number, UPDATES - 1);
    holder.execute("COMMIT;".to_owned()).await;
    assert_eq!(core.store.slots(None, None).await.unwrap().len(), 1);
}

/// A core on PostgreSQL with two hot slots, each with a waiting agent.
async fn two_hot_slots() -> CoreFixture {
    let hot = PoolRow { hot: true, recycle_after: 0, max_slots: 2, min_idle: 2, ..pool("meet") };
    let core = CoreFixture::planned(Database::new(Backend::Postgres).await.into(), &Plan::of([hot])).await;
    core.placement.keep_warm().await.unwrap();
    for slot in core.store.slots(None, None).await.unwrap() {
        assert!(core.placement.report(slot.name.clone(), crate::support::waits(&slot)).await.unwrap());
    }
    core
}

/// A bot gets a slot, starts and exits.
async fn come_and_go(core: &CoreFixture, number: usize) {
    let bot = core.ask(crate::support::bot_request(number)).await.bot;
    let connection_id = bot.connection_id.expect("the bot is in a slot");
    let claim = greenroom::lifecycle::tokens::Claim { bot: bot.id, connection: connection_id };
    let caller = greenroom::lifecycle::callbacks::Caller { claim, connection_id };
    core.lifecycle.started(caller, None).await.unwrap();
    core.exited(caller, 0).await.unwrap();
}

/// How many rows of a table were updated, and how many of these without an entry in any index.
async fn updates(reader: &mut Reader, table: &str) -> (i64, i64) {
    let Reader::Postgres(connection) = reader else { panic!("only PostgreSQL counts updates") };
    let counts = format!("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{table}'");
    sqlx::query_as(sqlx::AssertSqlSafe(counts)).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn a_bot_that_comes_and_goes_in_a_hot_slot_of_postgres_changes_no_index_of_slots_and_bots() {
    const BOTS: usize = 200;
    let core = two_hot_slots().await;
    let mut reader = core.database.reader().await;
    for number in 0..BOTS {
        come_and_go(&core, number).await;
    }
    // PostgreSQL adds the statistics of a connection when the connection closes.
    core.store.close().await;
    for (table, each) in [("slots", 2), ("bots", 2)] {
        let expected = i64::try_from(BOTS * each).unwrap();
        let (all, hot) = crate::support::found("the updates are counted", async || {
            Some(updates(&mut reader, table).await).filter(|(all, _)| *all >= expected)
        })
        .await;
        println!("{table}: {hot} of {all} updates changed no index");
        assert!(hot * 100 >= all * 90, "{table}: only {hot} of {all} updates changed no index");
    }
}

#[tokio::test]
async fn rows_that_postgres_has_moved_are_found_again() {
    let core = two_hot_slots().await;
    let mut reader = core.database.reader().await;
    let mut locations = Vec::new();
    for number in 0..6 {
        come_and_go(&core, number).await;
        let slots = "SELECT name, ctid::text FROM slots ORDER BY name";
        locations.push(reader.pairs(slots).await);
        // Separate statements, because neither may run in a transaction.
        for table in ["slots", "placement"] {
            reader.execute(format!("VACUUM FULL {table}")).await;
        }
        let moved = reader.pairs(slots).await;
        if number > 0 {
            assert_ne!(Some(&moved), locations.last(), "the rows were moved");
        }
    }
    let mut bots: Vec<_> = core.store.slots(None, None).await.unwrap().into_iter().map(|slot| slot.bot_id).collect();
    bots.dedup();
    assert_eq!(bots, [None], "all slots are idle again");
}
