//! Measures many more requests at once than there are slots. Most bots wait in the queue, and each placed bot ends at
//! once, so that the queue becomes empty. It counts errors, doubles, connections to the database, and the server's
//! memory. It compares the rate with that of the same server under enough clients to keep it busy, which never wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::Done;
use super::bars::{BarChart, Group};
use super::fixture::PlacementFixture;
use super::load::Work;
use super::usage;

/// The number of clients that measure the rate without a queue.
const STEADY_CLIENTS: usize = 32;
const SAMPLE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    pub requests: usize,
    pub slots: u32,
    pub users: usize,
    /// How long the rate without a queue is measured.
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

pub async fn run(options: &Options) -> Done {
    let limit = i64::try_from(options.requests)?.clamp(5, 1_000_000);
    let users = options.users.clamp(1, options.requests.max(1));
    let mut fixture = PlacementFixture::prepare_for(options.database.as_deref(), options.slots, users, limit).await?;
    let measured = measure(options, &mut fixture).await;
    fixture.remove().await?;
    measured
}

async fn measure(options: &Options, fixture: &mut PlacementFixture) -> Done {
    let servers = [fixture.start_server().await?];
    let (steady, _) = fixture.place(&servers, STEADY_CLIENTS, options.time).await?;
    let sampler = match &options.database {
        Some(_) => Some(ConnectionSampler::start(&fixture.database.url).await?),
        None => None,
    };
    let spec = fixture.load(&servers, options.requests, Work::Burst);
    let (report, cpu) = fixture.run(&servers, &spec).await?;
    let connections = match sampler {
        Some(sampler) => Some(sampler.stop().await?),
        None => None,
    };
    let [server] = &servers;
    let peak = usage::peak_mib(server.pid).unwrap_or(0);
    let at_rest = fixture.check().await;
    let ratio = report.pairs_per_second() / steady.pairs_per_second();
    if options.json {
        println!(
            "{}",
            json!({
                "bench": "burst", "store": if options.database.is_some() { "PostgreSQL" } else { "SQLite" },
                "requests": options.requests, "slots": options.slots, "users": fixture.keys.len(),
                "seconds": report.seconds, "pairs_per_second": report.pairs_per_second(),
                "steady_pairs_per_second": steady.pairs_per_second(), "ratio": ratio, "queued": report.queued,
                "errors": report.errors, "doubles": report.doubles, "database_connections_max": connections,
                "server_peak_mib": peak, "wait_p50_ms": report.latency_p50_ms, "wait_p99_ms": report.latency_p99_ms,
                "cpu_per_pair": cpu,
            })
        );
    } else {
        let connections = connections.map_or_else(|| "not measured".to_owned(), |count| count.to_string());
        println!(
            "{} requests at once on {} slots, by {} users; each bot ends as soon as it has a slot",
            options.requests,
            options.slots,
            fixture.keys.len()
        );
        println!("{:<34} {:>10.2} s", "all served in", report.seconds);
        println!("{:<34} {:>10.0} pairs/s", "in the burst", report.pairs_per_second());
        println!("{:<34} {:>10.0} pairs/s", "32 clients without a queue", steady.pairs_per_second());
        println!("{:<34} {ratio:>10.2}", "ratio");
        println!("{:<34} {:>10}", "waited in the queue", report.queued);
        println!("{:<34} {:>10.0} ms", "from request to slot, p50", report.latency_p50_ms);
        println!("{:<34} {:>10.0} ms", "from request to slot, p99", report.latency_p99_ms);
        println!("{:<34} {:>10}", "errors", report.errors);
        println!("{:<34} {:>10}", "duplicates", report.doubles);
        println!("{:<34} {connections:>10}", "most connections to the database");
        println!("{:<34} {peak:>10} MiB", "most memory of the server");
    }
    if let Some(file) = &options.svg {
        let values = vec![report.pairs_per_second(), steady.pairs_per_second()];
        let chart = BarChart {
            title: format!("{} requests at once on {} slots", options.requests, options.slots),
            y_label: "pairs per second".to_owned(),
            names: vec!["in the burst".to_owned(), format!("{STEADY_CLIENTS} clients, no queue")],
            groups: vec![Group { label: format!("all served in {:.2} s", report.seconds), values }],
        };
        std::fs::write(file, chart.to_svg())?;
    }
    report.check()?;
    if report.pairs != options.requests as u64 {
        return Err(format!("{} of {} requests were served", report.pairs, options.requests).into());
    }
    at_rest?;
    for server in servers {
        server.stop().await?;
    }
    Ok(())
}

/// Repeatedly reads the number of connections to a database.
struct ConnectionSampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicI64>,
    work: tokio::task::JoinHandle<Result<(), sqlx::Error>>,
}

impl ConnectionSampler {
    async fn start(url: &str) -> Done<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
        let (ended, highest) = (stop.clone(), most.clone());
        let work = tokio::spawn(async move {
            while !ended.load(Ordering::Relaxed) {
                let count: i64 = sqlx::query_scalar(
                    "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
                        AND pid <> pg_backend_pid()",
                )
                .fetch_one(&mut connection)
                .await?;
                highest.fetch_max(count, Ordering::Relaxed);
                tokio::time::sleep(SAMPLE).await;
            }
            Ok(())
        });
        Ok(Self { stop, most, work })
    }

    /// The highest number of connections.
    async fn stop(self) -> Done<i64> {
        self.stop.store(true, Ordering::Relaxed);
        self.work.await??;
        Ok(self.most.load(Ordering::Relaxed))
    }
}
