//! This module sets up logs and metrics. Logs go to standard error, as text on a terminal and as JSON otherwise. They
//! never contain a token or a key.
//!
//! - this file: logs, and the recorder of metrics
//! - [`catalog`]: every metric, with its labels, buckets and meaning

pub mod catalog;

use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use catalog::{Kind, Metric};

/// The log filter without `RUST_LOG`. The messages of sqlx about slow or broken connections do not help an operator;
/// the caller that needed the connection logs its own failure.
const DEFAULT_FILTER: &str = "info,sqlx=warn,sqlx::pool=error,sqlx_core=error";

/// Starts logging. `RUST_LOG` sets the level.
pub fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    // A second call, as in tests, changes nothing.
    let _ = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        builder.json().with_span_list(false).try_init()
    };
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "thread panicked")));
}

/// Sets up the metrics, once per process.
pub fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(begin).clone()
}

fn begin() -> PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for metric in catalog::metrics() {
        if let Kind::Histogram(buckets) = metric.kind {
            // This fails only for an empty list.
            match builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets) {
                Ok(with_buckets) => builder = with_buckets,
                Err(_) => return PrometheusBuilder::new().build_recorder().handle(),
            }
        }
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    // This fails only if another recorder is installed; then that one is used.
    let _ = metrics::set_global_recorder(recorder);
    for Metric { name, kind, labels, help } in catalog::metrics().copied() {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, help),
            Kind::Gauge => metrics::describe_gauge!(name, help),
            Kind::Histogram(_) => metrics::describe_histogram!(name, help),
        }
        // Without a first value of 0, a query for the increase would miss the first event.
        if kind == Kind::Counter && labels.is_empty() {
            metrics::counter!(name).increment(0);
        }
    }
    metrics::gauge!("greenroom_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    handle
}
