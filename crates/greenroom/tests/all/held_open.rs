//! A transaction that somebody else holds open: PostgreSQL keeps every version of a row meanwhile, and placement writes the
//! same rows over and over.

use domain::SlotName;
use greenroom::store::PoolRow;

use crate::support::written::write_slots;
use crate::support::{Backend, Database, House, Plan, Reader, pool};

const UPDATES: i64 = 1_500;

/// How many pages PostgreSQL looks at to run a statement.
async fn pages(reader: &mut Reader, sql: &'static str) -> u64 {
    let Reader::Postgres(connection) = reader else { panic!("only PostgreSQL keeps versions") };
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
    let house = House::planned(Database::new(Backend::Postgres).await.into(), &Plan::of([hot])).await;
    house.reserved(0).await;
    let mut slot = house.store.slots(None, None).await.unwrap().remove(0);
    assert_eq!(slot.name, SlotName::stored("pool-meet-001".to_owned()));

    let mut holder = house.database.reader().await;
    holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM slots, placement;".to_owned()).await;
    for number in 0..UPDATES {
        slot.token_number = number;
        write_slots(&house.store, vec![slot.clone()], false, house.clock.now()).await;
    }
    let mut reader = house.database.reader().await;
    let one = "SELECT token_number FROM slots WHERE name = 'pool-meet-001' ORDER BY epoch DESC LIMIT 1";
    let looked_at = pages(&mut reader, one).await;
    assert!(looked_at < 20, "{looked_at} pages for one slot");
    let looked_at = pages(&mut reader, "SELECT token FROM placement ORDER BY epoch DESC LIMIT 1").await;
    assert!(looked_at < 20, "{looked_at} pages for the token");

    assert_eq!(house.store.slot(&slot.name).await.unwrap().unwrap().token_number, UPDATES - 1);
    holder.execute("COMMIT;".to_owned()).await;
    assert_eq!(house.store.slots(None, None).await.unwrap().len(), 1);
}
