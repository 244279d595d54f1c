//! Measures placement while a transaction stays open, as a forgotten session or a long report does. Vacuum cannot
//! remove dead rows meanwhile. It compares the rate in the last minute of the open transaction with the rate before it.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::Done;
use super::fixture::PlacementFixture;
use super::load::Work;
use super::svg::{Line, Plot, Scale};

/// The last part of the open transaction, which is compared with the time before it.
const LAST: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created.
    pub database: String,
    pub slots: u32,
    pub clients: usize,
    pub before: Duration,
    pub hold: Duration,
    pub interval: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

pub async fn run(options: &Options) -> Done {
    let mut fixture = PlacementFixture::prepare(Some(&options.database), options.slots, options.clients).await?;
    let measured = measure(options, &mut fixture).await;
    fixture.remove().await?;
    measured
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done {
    let servers = [fixture.start_server().await?];
    let interval = Some(options.interval);
    let work = |time| Work::Place { time, interval, retry: false, pairs_per_second: None };
    let spec = fixture.load(&servers, options.clients, work(options.before));
    let before = fixture.run(&servers, &spec).await?.0;
    before.check()?;

    let mut holder = PgConnection::connect(&fixture.database.url).await?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT COUNT(*) FROM slots";
    sqlx::raw_sql(begin).execute(&mut holder).await?;
    let spec = fixture.load(&servers, options.clients, work(options.hold));
    let during = fixture.run(&servers, &spec).await?.0;
    during.check()?;
    sqlx::raw_sql("COMMIT").execute(&mut holder).await?;
    fixture.check().await?;
    for server in servers {
        server.stop().await?;
    }

    let [rates_before, rates_during] = [(&before, options.before), (&during, options.hold)]
        .map(|(report, time)| rates(&report.intervals, options.interval, time));
    let last = last_part(&rates_during, options.interval);
    let (rate_before, rate_last) = (mean(&rates_before), mean(last));
    let ratio = rate_last / rate_before;
    if options.json {
        println!(
            "{}",
            json!({
                "bench": "bloat", "slots": options.slots, "clients": options.clients,
                "hold_seconds": options.hold.as_secs(), "interval_seconds": options.interval.as_secs_f64(),
                "before": rate_before, "last": rate_last, "ratio": ratio,
                "rates_before": rates_before, "rates_during": rates_during,
            })
        );
    } else {
        println!("pairs per second with {} clients on {} slots", options.clients, options.slots);
        println!("{:<44} {rate_before:>8.0}", "before");
        let held = format!("after {} s with an open transaction", options.hold.as_secs());
        println!("{held:<44} {rate_last:>8.0}");
        println!("{:<44} {ratio:>8.2}", "ratio");
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, plot(options, &rates_before, &rates_during).to_svg())?;
    }
    Ok(())
}

/// Pairs per second, for each interval that was measured completely.
fn rates(counts: &[u64], interval: Duration, time: Duration) -> Vec<f64> {
    let whole = (time.as_secs_f64() / interval.as_secs_f64()).floor().max(1.0) as usize;
    let seconds = interval.min(time).as_secs_f64();
    counts.iter().take(whole).map(|count| *count as f64 / seconds).collect()
}

/// The rates of the last minute, or of the last interval if that is longer.
fn last_part(rates: &[f64], interval: Duration) -> &[f64] {
    let intervals = (LAST.as_secs_f64() / interval.as_secs_f64()).round().max(1.0) as usize;
    &rates[rates.len().saturating_sub(intervals)..]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn plot(options: &Options, before: &[f64], during: &[f64]) -> Plot {
    let seconds = options.interval.as_secs_f64();
    let points = before.iter().chain(during).enumerate();
    let points = points.map(|(at, rate)| ((at as f64 + 0.5) * seconds / 60.0, *rate)).collect();
    Plot {
        title: format!("Placement while a transaction stays open, {} clients", options.clients),
        x_label: "minutes".to_owned(),
        y_label: "pairs per second".to_owned(),
        x_scale: Scale::Linear,
        lines: vec![Line { name: "Greenroom".to_owned(), points }],
        marks: vec![(before.len() as f64 * seconds / 60.0, "transaction open from here".to_owned())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_intervals_count() {
        let counts = [300, 600, 5];
        assert_eq!(rates(&counts, Duration::from_secs(30), Duration::from_secs(60)), [10.0, 20.0]);
        assert_eq!(rates(&counts[..1], Duration::from_secs(30), Duration::from_secs(10)), [30.0]);
    }

    #[test]
    fn the_last_minute_is_as_many_intervals_as_make_one() {
        let rates = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(last_part(&rates, Duration::from_secs(30)), [3.0, 4.0]);
        assert_eq!(last_part(&rates, Duration::from_secs(300)), [4.0]);
        assert_eq!(last_part(&rates, Duration::from_secs(1)), rates);
    }
}
