//! Runs pgbench with the two plain statements of the simplest possible pool, on one table. Greenroom's figures are
//! compared with it.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use uuid::Uuid;

use super::Done;
use super::database::Database;

/// Takes the least recently used idle slot, and returns it.
const ACQUIRE_AND_RELEASE: &str = "\
\\set bot random(1, 2000000000)
\\set id 0
UPDATE bot_pool_slots SET status = 'busy', assigned_bot_id = :bot, last_used_at = NOW() WHERE id = (\
SELECT id FROM bot_pool_slots WHERE status = 'idle' ORDER BY last_used_at ASC NULLS FIRST LIMIT 1 \
FOR UPDATE SKIP LOCKED) RETURNING id \\aset
UPDATE bot_pool_slots SET status = 'idle', assigned_bot_id = NULL WHERE id = :id;
";

/// Stores one heartbeat of one of `:bots` bots.
const ONE_UPDATE: &str = "\
\\set bot random(1, :bots)
UPDATE bot_heartbeats SET last_heartbeat_at = NOW() WHERE bot_id = :bot;
";

/// The table, and the script, which is removed when this is dropped.
#[derive(Debug)]
pub struct Pgbench {
    program: String,
    url: String,
    script: PathBuf,
}

impl Pgbench {
    /// Creates the table in a PostgreSQL database.
    pub async fn prepare(program: &str, database: &Database, slots: u32) -> Done<Self> {
        database
            .execute(format!(
                "CREATE TABLE bot_pool_slots (id SERIAL PRIMARY KEY, status VARCHAR(50) NOT NULL DEFAULT 'idle',
                                              assigned_bot_id INTEGER, last_used_at TIMESTAMP);
                 CREATE INDEX idx_bot_pool_slots_status ON bot_pool_slots (status);
                 INSERT INTO bot_pool_slots (status) SELECT 'idle' FROM generate_series(1, {slots});
                 ANALYZE bot_pool_slots"
            ))
            .await?;
        Self::with_script(program, database, ACQUIRE_AND_RELEASE)
    }

    /// Creates the table for the benchmark of heartbeats.
    pub async fn prepare_heartbeats(program: &str, database: &Database, bots: u32) -> Done<Self> {
        database
            .execute(format!(
                "CREATE TABLE bot_heartbeats (bot_id INTEGER PRIMARY KEY, last_heartbeat_at TIMESTAMP);
                 INSERT INTO bot_heartbeats (bot_id) SELECT generate_series(1, {bots});
                 ANALYZE bot_heartbeats"
            ))
            .await?;
        Self::with_script(program, database, &ONE_UPDATE.replace(":bots", &bots.to_string()))
    }

    fn with_script(program: &str, database: &Database, script: &str) -> Done<Self> {
        let file = std::env::temp_dir().join(format!("greenroom-bench-{}.sql", Uuid::new_v4().simple()));
        std::fs::write(&file, script)?;
        Ok(Self { program: program.to_owned(), url: database.url.clone(), script: file })
    }

    /// Transactions per second, from the output of pgbench.
    pub async fn run(&self, clients: usize, time: Duration) -> Done<f64> {
        let seconds = time.as_secs().max(1).to_string();
        let output = Command::new(&self.program)
            .args(["--no-vacuum", "--protocol", "prepared", "--jobs", "2"])
            .args(["--client", &clients.to_string(), "--time", &seconds, "--file"])
            .arg(&self.script)
            .arg(&self.url)
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| format!("{} cannot be run: {error}", self.program))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let figure = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        figure.ok_or_else(|| format!("pgbench failed: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

impl Drop for Pgbench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.script);
    }
}
