//! Measures the size of the database over many days, which pass in seconds: on each day some bots are created and end,
//! and the keeper `retention` runs with the clock of that day. The size is to stay the same after the first days.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use super::Done;
use super::database::Database;
use super::old_bots::OldBots;
use super::svg::{Line, Plot, Scale, shown};
use crate::clock::Clock;
use crate::context::Context;
use crate::keepers::Keeper;
use crate::keepers::retention::{Retention, RetentionKeeper};
use crate::keepers::stats::StatsKeeper;
use crate::random::Random;
use crate::store::Store;

const DAY: Duration = Duration::from_hours(24);
const SEGMENTS_PER_BOT: i64 = 5;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub days: u32,
    pub bots_per_day: i64,
    pub kept_days: u32,
    /// How long a simulated day lasts at least.
    pub day_length: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// The end of a day.
#[derive(Clone, Debug, Serialize)]
struct DayEnd {
    day: u32,
    bytes: i64,
    /// The log of SQLite.
    log_bytes: i64,
    bots: i64,
}

pub async fn run(options: &Options) -> Done {
    let database = Database::create(options.database.as_deref()).await?;
    // A day takes seconds here, so vacuum has to come more often too.
    let vacuums = async |setting: &str| {
        if database.is_postgres() {
            let _ = database.execute(format!("ALTER SYSTEM {setting}")).await;
            let _ = database.execute("SELECT pg_reload_conf()").await;
        }
    };
    vacuums("SET autovacuum_naptime = '1s'").await;
    let measured = simulate(options, &database).await;
    vacuums("RESET autovacuum_naptime").await;
    let shown = measured.and_then(|days| show(options, &days));
    database.remove().await?;
    shown
}

async fn simulate(options: &Options, database: &Database) -> Done<Vec<DayEnd>> {
    let store = Store::open(&database.url).await?;
    let begin = Timestamp::now().saturating_sub(DAY * options.days)?;
    let clock = Clock::manual(begin);
    let context = Context::new(store.clone(), clock.clone(), Random::System);
    let kept = Some(DAY * options.kept_days);
    let retention = Retention { bots: kept, transcripts: kept, idempotency_keys: Some(DAY), failures: kept };
    let stats = Arc::new(StatsKeeper::new(&context, None));
    let keeper = RetentionKeeper::new(&context, retention, stats).without_rests();
    let mut days = Vec::new();
    for day in 1..=options.days {
        let begun = Instant::now();
        let (begin, count) = (clock.now(), options.bots_per_day);
        let bots = OldBots { begin, count, segments: SEGMENTS_PER_BOT, has_log: true };
        bots.insert(database).await?;
        bots.insert_keys(database).await?;
        clock.advance(DAY);
        // A run ends after a minute at the latest.
        while keeper.run().await?.counts.get("bots").is_some_and(|bots| *bots > 0) {}
        tokio::time::sleep(options.day_length.saturating_sub(begun.elapsed())).await;
        let (bytes, log_bytes) = size(database).await?;
        days.push(DayEnd { day, bytes, log_bytes, bots: database.number("SELECT count(*) FROM bots").await? });
    }
    store.close().await;
    Ok(days)
}

/// The size of the database, and of the log of SQLite.
async fn size(database: &Database) -> Done<(i64, i64)> {
    if database.is_postgres() {
        return Ok((database.number("SELECT pg_database_size(current_database())").await?, 0));
    }
    let file = database.url.trim_start_matches("sqlite:");
    let log = std::fs::metadata(format!("{file}-wal")).map_or(0, |log| log.len());
    Ok((i64::try_from(std::fs::metadata(file)?.len())?, i64::try_from(log)?))
}

fn show(options: &Options, days: &[DayEnd]) -> Done {
    let store = if options.database.is_some() { "PostgreSQL" } else { "SQLite" };
    let mebibytes = |bytes: i64| bytes as f64 / 1_048_576.0;
    // From here on, as much is deleted on each day as is added.
    let settled = days.iter().find(|end| end.day == options.kept_days * 2).or(days.first());
    let growth = settled.zip(days.last()).map_or(f64::NAN, |(first, last)| last.bytes as f64 / first.bytes as f64);
    if options.json {
        println!("{}", json!({"bench": "growth", "store": store, "growth": growth, "days": days}));
    } else {
        println!(
            "size of {store} with {} bots a day, kept for {} days; the last day has {growth:.2} of the size of day {}",
            options.bots_per_day,
            options.kept_days,
            settled.map_or(0, |end| end.day)
        );
        println!("{:>5} {:>10} {:>10} {:>10}", "day", "MiB", "log MiB", "bots");
        for DayEnd { day, bytes, log_bytes, bots } in days {
            println!("{day:>5} {:>10.1} {:>10.1} {bots:>10}", mebibytes(*bytes), mebibytes(*log_bytes));
        }
    }
    if let Some(file) = &options.svg {
        let line = |name: &str, bytes: fn(&DayEnd) -> i64| Line {
            name: name.to_owned(),
            points: days.iter().map(|end| (f64::from(end.day), mebibytes(bytes(end)))).collect(),
        };
        let mut lines = vec![line("database", |end| end.bytes)];
        if options.database.is_none() {
            lines.push(line("log", |end| end.log_bytes));
        }
        let bots = shown(options.bots_per_day as f64);
        let plot = Plot {
            title: format!("{store}: {bots} bots a day, kept for {} days", options.kept_days),
            x_label: "simulated day".to_owned(),
            y_label: "MiB".to_owned(),
            x_scale: Scale::Linear,
            lines,
            marks: vec![(f64::from(options.kept_days), "first deletion".to_owned())],
        };
        std::fs::write(file, plot.to_svg())?;
    }
    Ok(())
}
