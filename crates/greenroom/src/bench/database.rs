//! A new database for one measurement, which is removed afterwards. The benchmarks use plain SQL and not the store:
//! they depend only on the schema.

use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

use super::Done;

#[derive(Debug)]
pub struct Database {
    pub url: String,
    /// The database on the same PostgreSQL through which this one was created. `None` for SQLite.
    server: Option<String>,
}

/// The slots that fill a pool.
#[derive(Clone, Debug)]
pub struct IdleSlots<'a> {
    pub pool: &'a str,
    pub count: i64,
    /// The attributes of the slots as the schema stores them, used in turn. Empty: the defaults of the schema.
    pub attribute_sets: &'a [String],
}

impl Database {
    /// Creates a database on the PostgreSQL at `server`, or an SQLite file in the temporary folder.
    pub async fn create(server: Option<&str>) -> Done<Self> {
        let name = format!("greenroom_bench_{}", Uuid::new_v4().simple());
        let Some(server) = server else {
            let path = std::env::temp_dir().join(name);
            return Ok(Self { url: format!("sqlite:{}.db", path.display()), server: None });
        };
        let (base, _) = server.rsplit_once('/').ok_or("the URL names no database")?;
        let mut connection = PgConnection::connect(server).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await?;
        Ok(Self { url: format!("{base}/{name}"), server: Some(server.to_owned()) })
    }

    pub fn is_postgres(&self) -> bool {
        self.server.is_some()
    }

    pub async fn execute(&self, sql: impl Into<String>) -> Done {
        let query = sqlx::raw_sql(AssertSqlSafe(sql.into()));
        if self.is_postgres() {
            query.execute(&mut PgConnection::connect(&self.url).await?).await?;
        } else {
            query.execute(&mut SqliteConnection::connect(&self.url).await?).await?;
        }
        Ok(())
    }

    /// The number that a query returns.
    pub async fn number(&self, sql: impl Into<String>) -> Done<i64> {
        let sql = AssertSqlSafe(sql.into());
        Ok(if self.is_postgres() {
            sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(&self.url).await?).await?
        } else {
            sqlx::query_scalar(sql).fetch_one(&mut SqliteConnection::connect(&self.url).await?).await?
        })
    }

    /// The texts that a query returns, in one column.
    pub async fn texts(&self, sql: impl Into<String>) -> Done<Vec<String>> {
        let sql = AssertSqlSafe(sql.into());
        Ok(if self.is_postgres() {
            sqlx::query_scalar(sql).fetch_all(&mut PgConnection::connect(&self.url).await?).await?
        } else {
            sqlx::query_scalar(sql).fetch_all(&mut SqliteConnection::connect(&self.url).await?).await?
        })
    }

    /// Fills a pool with hot slots, as if an agent waited in each. No server may run on the database meanwhile. One
    /// must have run before, so that the schema and the pool exist.
    pub async fn fill(&self, slots: &IdleSlots<'_>) -> Done {
        let sql = fill_statements(slots, self.is_postgres());
        self.execute(sql).await?;
        if self.is_postgres() {
            // Only the filled table: PostgreSQL would treat a table that it analysed while empty as still empty.
            self.execute("ANALYZE slots").await?;
        }
        Ok(())
    }

    /// The secret that bot tokens are signed with.
    pub async fn signing_secret(&self) -> Done<String> {
        let found = self.texts("SELECT value FROM settings WHERE name = 'signing_secret'").await?;
        found.into_iter().next().ok_or_else(|| "the database has no signing secret".into())
    }

    /// Fails unless all slots are idle and no bot is open.
    pub async fn check_at_rest(&self, slots: i64) -> Done {
        let idle = self.number("SELECT COUNT(*) FROM slots WHERE status = 'idle' AND bot_id IS NULL").await?;
        let open = self.open_bots().await?;
        if idle != slots || open != 0 {
            return Err(format!("{idle} of {slots} slots are idle, and {open} bots have not ended").into());
        }
        Ok(())
    }

    pub async fn open_bots(&self) -> Done<i64> {
        self.number("SELECT COUNT(*) FROM bots WHERE status NOT IN ('completed', 'failed')").await
    }

    pub async fn remove(self) -> Done {
        let Some(server) = &self.server else {
            let path = self.url.trim_start_matches("sqlite:").to_owned();
            for end in ["", "-wal", "-shm", "-lock"] {
                let _ = std::fs::remove_file(format!("{path}{end}"));
            }
            return Ok(());
        };
        let mut connection = PgConnection::connect(server).await?;
        let name = self.url.rsplit('/').next().unwrap_or_default();
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await?;
        Ok(())
    }
}

/// It names only columns without a default, so that most changes of the schema do not matter here.
fn fill_statements(slots: &IdleSlots<'_>, is_postgres: bool) -> String {
    let IdleSlots { pool, count, attribute_sets } = slots;
    let (numbers, now, padded) = if is_postgres {
        let numbers = format!("generate_series(1, {count}) AS numbers (number)");
        (numbers, "now()", "lpad(number::text, greatest(3, length(number::text)), '0')")
    } else {
        let numbers = format!(
            "(WITH RECURSIVE counted (number) AS
                  (SELECT 1 UNION ALL SELECT number + 1 FROM counted WHERE number < {count})
              SELECT number FROM counted) AS numbers"
        );
        (numbers, "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')", "printf('%03d', number)")
    };
    let (column, value, sets) = if attribute_sets.is_empty() {
        (String::new(), String::new(), String::new())
    } else {
        let cases: String =
            attribute_sets.iter().enumerate().map(|(at, set)| format!(" WHEN {at} THEN '{set}'")).collect();
        let json: Vec<String> = attribute_sets.iter().map(|set| format!("\"{set}\"")).collect();
        let value = format!(", CASE (number - 1) % {}{cases} END", attribute_sets.len());
        (", attributes".to_owned(), value, format!(", attribute_sets = '[{}]'", json.join(",")))
    };
    format!(
        "INSERT INTO slots
             (name, pool, number, status, status_since, generation, description, created_at{column})
         SELECT 'pool-{pool}-' || {padded}, '{pool}', number, 'idle', {now}, 1,
                '[IDLE] Available - Never used', {now}{value}
           FROM {numbers};
         UPDATE pools SET slots = {count}{sets} WHERE name = '{pool}'"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_named_only_where_they_are_not_the_default() {
        let plain = fill_statements(&IdleSlots { pool: "p", count: 3, attribute_sets: &[] }, true);
        assert!(!plain.contains("attributes") && !plain.contains("attribute_sets"), "{plain}");
        let sets = ["a on-demand - 1 2".to_owned(), "b on-demand - 1 2".to_owned()];
        let two = fill_statements(&IdleSlots { pool: "p", count: 3, attribute_sets: &sets }, false);
        assert!(two.contains("% 2 WHEN 0 THEN 'a on-demand - 1 2' WHEN 1"), "{two}");
        assert!(two.contains(r#"attribute_sets = '["a on-demand - 1 2","b on-demand - 1 2"]'"#), "{two}");
    }
}
