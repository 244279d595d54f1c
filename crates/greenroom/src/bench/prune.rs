//! Measures placement while the keeper `retention` deletes a million old bots, and then a million old idempotency keys.
//! It compares this with a server on the same database that keeps everything. The rounds alternate, so that other load
//! on the machine affects both.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::Done;
use super::bars::{BarChart, Group};
use super::figures::median;
use super::fixture::PlacementFixture;
use super::old_bots::OldBots;

/// Each turn begins with a load that is not counted, because its server has just started.
const WARM_UP: Duration = Duration::from_secs(1);
/// Older than the defaults of `[retention]`.
const AGE: Duration = Duration::from_hours(200 * 24);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub bots: i64,
    pub slots: u32,
    pub clients: usize,
    pub rounds: usize,
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// Medians of the rounds.
#[derive(Clone, Debug, Serialize)]
struct Measured {
    what: &'static str,
    /// Pairs per second.
    pruning: f64,
    keeping: f64,
    ratio: f64,
    p99_ms_pruning: f64,
    p99_ms_keeping: f64,
    /// How many rows were deleted per second.
    pruned_per_second: f64,
}

pub async fn run(options: &Options) -> Done {
    let mut fixture = PlacementFixture::prepare(options.database.as_deref(), options.slots, options.clients).await?;
    let measured = measure_all(options, &mut fixture).await;
    let shown = measured.and_then(|measured| show(options, &measured));
    fixture.remove().await?;
    shown
}

async fn measure_all(options: &Options, fixture: &mut PlacementFixture) -> Done<Vec<Measured>> {
    let begin = jiff::Timestamp::now().saturating_sub(AGE)?;
    let bots = OldBots { begin, count: options.bots, segments: 0, has_log: false };
    bots.insert(&fixture.database).await?;
    let of_bots = measure(options, fixture, "bots", "SELECT count(*) FROM bots WHERE meeting_url LIKE '%abc-defg-hij'");
    let of_bots = of_bots.await?;
    // The bots stay: a key is deleted before its bot.
    bots.insert_keys(&fixture.database).await?;
    let of_keys = "SELECT count(*) FROM idempotency_keys WHERE body_hash = 'hash'";
    let of_keys = measure(options, fixture, "idempotency_keys", of_keys).await?;
    Ok(vec![of_bots, of_keys])
}

async fn measure(
    options: &Options,
    fixture: &mut PlacementFixture,
    what: &'static str,
    left: &'static str,
) -> Done<Measured> {
    let (mut rates, mut p99, mut pruned) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], Vec::new());
    for _ in 0..options.rounds.max(1) {
        for keeps_everything in [false, true] {
            fixture.spec.keeps_everything = keeps_everything;
            let servers = [fixture.start_server().await?];
            fixture.place(&servers, options.clients, WARM_UP).await?;
            let before = fixture.database.number(left).await?;
            let (report, _) = fixture.place(&servers, options.clients, options.time).await?;
            let after = fixture.database.number(left).await?;
            if keeps_everything && before != after {
                return Err("a server that keeps everything deleted something".into());
            }
            if !keeps_everything {
                pruned.push((before - after) as f64 / options.time.as_secs_f64());
            }
            rates[usize::from(keeps_everything)].push(report.pairs_per_second());
            p99[usize::from(keeps_everything)].push(report.latency_p99_ms);
            for server in servers {
                server.stop().await?;
            }
            fixture.check().await?;
        }
    }
    let (pruning, keeping) = (median(&rates[0]), median(&rates[1]));
    Ok(Measured {
        what,
        pruning,
        keeping,
        ratio: pruning / keeping,
        p99_ms_pruning: median(&p99[0]),
        p99_ms_keeping: median(&p99[1]),
        pruned_per_second: median(&pruned),
    })
}

fn show(options: &Options, all: &[Measured]) -> Done {
    let store = if options.database.is_some() { "PostgreSQL" } else { "SQLite" };
    if options.json {
        println!("{}", json!({"bench": "prune", "store": store, "bots": options.bots, "cases": all}));
    } else {
        println!("pairs per second on {store} while old data is deleted, and while it is kept; medians");
        println!(
            "{:>18} {:>10} {:>10} {:>8} {:>12} {:>12} {:>12}",
            "deleted", "deleting", "keeping", "ratio", "p99 ms del.", "p99 ms keep", "deleted/s"
        );
        for Measured { what, pruning, keeping, ratio, p99_ms_pruning, p99_ms_keeping, pruned_per_second } in all {
            println!(
                "{what:>18} {pruning:>10.0} {keeping:>10.0} {ratio:>8.2} {p99_ms_pruning:>12.1} {p99_ms_keeping:>12.1} \
                 {pruned_per_second:>12.0}"
            );
        }
    }
    if let Some(file) = &options.svg {
        let groups = all.iter().map(|measured| Group {
            label: format!("old {}", measured.what),
            values: vec![measured.pruning, measured.keeping],
        });
        let chart = BarChart {
            title: format!("Bots placed and ended on {store}, {} clients", options.clients),
            y_label: "pairs per second".to_owned(),
            names: vec!["deleting".to_owned(), "keeping".to_owned()],
            groups: groups.collect(),
        };
        std::fs::write(file, chart.to_svg())?;
    }
    Ok(())
}
