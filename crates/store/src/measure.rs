//! What the metrics say about the database: how long each call takes, which connections are in use, and how full the
//! disk of an SQLite file is.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use metrics::Histogram;

use super::Store;
use super::connect::Pools;
use super::lanes::Lane;

/// The connections of one kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    pub lane: &'static str,
    pub used: u32,
    pub max: u32,
}

/// The disk of an SQLite file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    pub free: u64,
    pub size: u64,
}

/// Where the durations of one call are counted. To look it up anew for each call costs more than to count.
#[derive(Clone)]
struct CallMetrics {
    ok: Histogram,
    /// Made at the first error: most calls never fail, and a histogram has many series.
    error: Option<Histogram>,
}

thread_local! {
    static CALL_METRICS: RefCell<HashMap<&'static str, CallMetrics>> = RefCell::default();
}

impl CallMetrics {
    fn new(call: &'static str) -> Self {
        Self { ok: Self::histogram(call, "ok"), error: None }
    }

    fn histogram(call: &'static str, result: &'static str) -> Histogram {
        metrics::histogram!("greenroom_database_call_duration_seconds", "call" => call, "result" => result)
    }
}

/// Measures a call to the database by its name.
pub(super) async fn measured<T, E>(call: &'static str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    let begun = Instant::now();
    let done = work.await;
    let took = begun.elapsed();
    CALL_METRICS.with_borrow_mut(|known| {
        let metrics = known.entry(call).or_insert_with(|| CallMetrics::new(call));
        let histogram = match done {
            Ok(_) => &metrics.ok,
            Err(_) => metrics.error.get_or_insert_with(|| CallMetrics::histogram(call, "error")),
        };
        histogram.record(took);
    });
    done
}

impl Store {
    /// The connections that are in use now, by the kind of call that they are for.
    pub fn connections(&self) -> Vec<Connections> {
        let of = |lane, size: u32, idle: usize, max| {
            let idle = u32::try_from(idle).unwrap_or(u32::MAX);
            Connections { lane, used: size.saturating_sub(idle), max }
        };
        match &self.pools {
            Pools::Sqlite { writer, readers, users, .. } => {
                [("writer", writer), ("readers", readers), ("users", users)]
                    .map(|(lane, pool)| of(lane, pool.size(), pool.num_idle(), pool.options().get_max_connections()))
                    .into()
            }
            Pools::Postgres(pools) => [Lane::Placement, Lane::Leases, Lane::Bots, Lane::Users]
                .map(|lane| {
                    let pool = pools.of(lane);
                    of(lane.as_str(), pool.size(), pool.num_idle(), pool.options().get_max_connections())
                })
                .into(),
        }
    }

    /// How full the disk of the SQLite file is. `None` with PostgreSQL, or if the system does not tell.
    pub fn disk_space(&self) -> Option<DiskSpace> {
        let Pools::Sqlite { file, .. } = &self.pools else { return None };
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let found = nix::sys::statvfs::statvfs(folder).ok()?;
        let unit = found.fragment_size();
        Some(DiskSpace { free: found.blocks_available() * unit, size: found.blocks() * unit })
    }
}
