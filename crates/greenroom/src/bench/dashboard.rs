//! Measures the dashboard in a real Chromium while slots change: how long until the first picture of all slots, the
//! longest task of the page's main thread, the time of a frame, and the size of the live snapshot. The larger pool is
//! compared with the smaller one. The page is driven by `web/tests/frames.js`, with Playwright.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Command;

use super::Done;
use super::fixture::PlacementFixture;
use super::load::{LoadProcess, Work};

/// How many clients change slots.
const CLIENTS: usize = 8;
/// The load begins before the page is opened and ends after it is closed.
const BEFORE_AND_AFTER: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server others may be created. SQLite if absent.
    pub database: Option<String>,
    pub slots: Vec<u32>,
    /// How often slots change in a second.
    pub changes: u32,
    /// How long the page is watched.
    pub time: Duration,
    pub json: bool,
    /// The script that drives the browser.
    pub script: PathBuf,
}

/// What the script measured.
#[derive(Clone, Debug, Deserialize)]
struct Measured {
    first_picture_ms: f64,
    longest_task_ms: f64,
    long_tasks: u64,
    frame_p50_ms: f64,
    frame_p99_ms: f64,
    snapshot_bytes: u64,
    snapshot_gzip_bytes: u64,
}

pub async fn run(options: &Options) -> Done {
    let mut rows = Vec::new();
    for slots in &options.slots {
        let mut fixture = PlacementFixture::prepare(options.database.as_deref(), *slots, CLIENTS).await?;
        let measured = measure(options, &mut fixture).await;
        fixture.remove().await?;
        rows.push((*slots, measured?));
    }
    show(options, &rows);
    Ok(())
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done<Measured> {
    let servers = [fixture.start_server().await?];
    // A pair changes a slot twice.
    let work = Work::Place {
        time: options.time + BEFORE_AND_AFTER,
        interval: None,
        retry: false,
        pairs_per_second: Some(options.changes.div_ceil(2)),
    };
    let load = LoadProcess::start(&fixture.load(&servers, CLIENTS, work)).await?;
    let url = format!("http://{}", servers[0].address);
    let settings = json!({
        "urls": [&url], "url": url, "admin_token": fixture.spec.admin_token,
        "slots": fixture.slots, "time_ms": options.time.as_millis(),
    });
    let output = Command::new("node")
        .arg(&options.script)
        .env("SCENARIO_SETTINGS", settings.to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|error| format!("node cannot be started: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let measured = text.lines().find_map(|line| line.strip_prefix("measured: "));
    let measured = match measured {
        Some(json) if output.status.success() => serde_json::from_str(json)?,
        _ => return Err(format!("the page was not measured: {}\n{text}", output.status).into()),
    };
    load.report().await?.check()?;
    for server in servers {
        server.stop().await?;
    }
    fixture.check().await?;
    Ok(measured)
}

fn show(options: &Options, rows: &[(u32, Measured)]) {
    if options.json {
        let sizes: Vec<Value> = rows
            .iter()
            .map(|(slots, of)| {
                json!({
                    "slots": slots, "first_picture_ms": of.first_picture_ms, "longest_task_ms": of.longest_task_ms,
                    "long_tasks": of.long_tasks, "frame_p50_ms": of.frame_p50_ms, "frame_p99_ms": of.frame_p99_ms,
                    "snapshot_bytes": of.snapshot_bytes, "snapshot_gzip_bytes": of.snapshot_gzip_bytes,
                })
            })
            .collect();
        println!("{}", json!({"bench": "dashboard", "changes_per_second": options.changes, "sizes": sizes}));
        return;
    }
    println!("the dashboard in Chromium, {} changes of slots per second; times in milliseconds", options.changes);
    println!(
        "{:>8} {:>14} {:>13} {:>11} {:>10} {:>10} {:>12} {:>12}",
        "slots", "first picture", "longest task", "long tasks", "frame p50", "frame p99", "snapshot KB", "gzip KB"
    );
    for (slots, of) in rows {
        println!(
            "{slots:>8} {:>14.0} {:>13.0} {:>11} {:>10.1} {:>10.1} {:>12.0} {:>12.0}",
            of.first_picture_ms,
            of.longest_task_ms,
            of.long_tasks,
            of.frame_p50_ms,
            of.frame_p99_ms,
            of.snapshot_bytes as f64 / 1e3,
            of.snapshot_gzip_bytes as f64 / 1e3,
        );
    }
}
