//! Measures placement as a pool grows: the same clients on larger and larger pools, compared with the smallest one.
//! Each size has its own database, which is filled before. The sizes take turns, so that other load on the machine
//! affects all of them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::Done;
use super::figures::{median, milliseconds};
use super::fixture::{CpuPerPair, PlacementFixture};
use super::svg::{Line, Plot, Scale, shown};

/// Each turn begins with a load that is not counted, because its server has just started.
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server others may be created. SQLite if absent.
    pub database: Option<String>,
    pub slots: Vec<u32>,
    pub clients: usize,
    pub rounds: usize,
    pub time: Duration,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

struct Size {
    fixture: PlacementFixture,
    rates: Vec<f64>,
    /// How long its server took until it was ready, in milliseconds.
    starts: Vec<f64>,
    cpu: Vec<CpuPerPair>,
}

pub async fn run(options: &Options) -> Done {
    let mut sizes = Vec::new();
    let mut measured = Ok(());
    for slots in &options.slots {
        match PlacementFixture::prepare(options.database.as_deref(), *slots, options.clients).await {
            Ok(fixture) => sizes.push(Size { fixture, rates: Vec::new(), starts: Vec::new(), cpu: Vec::new() }),
            Err(error) => measured = Err(error),
        }
    }
    if measured.is_ok() {
        measured = measure(options, &mut sizes).await;
    }
    let shown = measured.and_then(|()| show(options, &sizes));
    for size in sizes {
        size.fixture.remove().await?;
    }
    shown
}

async fn measure(options: &Options, sizes: &mut [Size]) -> Done {
    for _ in 0..options.rounds.max(1) {
        for size in &mut *sizes {
            let servers = [size.fixture.start_server().await?];
            size.fixture.place(&servers, options.clients, WARM_UP).await?;
            let (report, cpu) = size.fixture.place(&servers, options.clients, options.time).await?;
            size.rates.push(report.pairs_per_second());
            size.cpu.push(cpu);
            for server in servers {
                size.starts.push(milliseconds(server.ready_in));
                server.stop().await?;
            }
            size.fixture.check().await?;
        }
    }
    Ok(())
}

fn show(options: &Options, sizes: &[Size]) -> Done {
    let first = sizes.first().map_or(f64::NAN, |size| median(&size.rates));
    let mut rows = Vec::new();
    for size in sizes {
        let (rate, cpu) = (median(&size.rates), CpuPerPair::median(&size.cpu));
        rows.push(json!({
            "slots": size.fixture.slots, "pairs_per_second": rate, "ratio": rate / first,
            "start_ms": median(&size.starts), "cpu_per_pair": cpu,
        }));
    }
    if options.json {
        println!("{}", json!({"bench": "scale", "clients": options.clients, "sizes": rows}));
    } else {
        let smallest = sizes.first().map_or(0, |size| size.fixture.slots);
        println!(
            "pairs per second with {} clients; ratio to {smallest} slots; medians of alternating rounds",
            options.clients
        );
        println!(
            "{:>10} {:>10} {:>8} {:>10} {:>8} {:>8} {:>8}",
            "slots", "pairs/s", "ratio", "start ms", "server", "database", "load µs"
        );
        for size in sizes {
            let (rate, cpu) = (median(&size.rates), CpuPerPair::median(&size.cpu));
            println!(
                "{:>10} {rate:>10.0} {:>8.2} {:>10.0} {}",
                size.fixture.slots,
                rate / first,
                median(&size.starts),
                cpu.shown()
            );
        }
    }
    if let Some(file) = &options.svg {
        let points = sizes.iter().map(|size| (f64::from(size.fixture.slots), median(&size.rates))).collect();
        let plot = Plot {
            title: format!("Bots placed and ended, {} clients, one server", shown(options.clients as f64)),
            x_label: "slots in the pool".to_owned(),
            y_label: "pairs per second".to_owned(),
            x_scale: Scale::Logarithmic,
            lines: vec![Line { name: "Greenroom".to_owned(), points }],
            marks: Vec::new(),
        };
        std::fs::write(file, plot.to_svg())?;
    }
    Ok(())
}
