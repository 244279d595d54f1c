//! This module sets up logs and metrics. Logs go to standard error, as text on a terminal and as JSON otherwise. They
//! never contain a token or a key.

use std::io::IsTerminal;
use std::sync::OnceLock;

use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

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
    let builder = PrometheusBuilder::new();
    let recorder = match builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS) {
        Ok(builder) => builder.build_recorder(),
        Err(_) => PrometheusBuilder::new().build_recorder(),
    };
    let handle = recorder.handle();
    // This fails only if another recorder is installed; then that one is used.
    let _ = metrics::set_global_recorder(recorder);
    metrics::describe_gauge!("greenroom_bots", "Bots that have not ended, by status");
    metrics::describe_gauge!("greenroom_slots", "Slots, by pool and status");
    metrics::describe_histogram!("greenroom_placement_batch_size", "Jobs in one placement batch");
    metrics::describe_counter!("greenroom_bot_transitions_total", "Status changes of bots, by new status");
    metrics::describe_counter!("greenroom_heartbeats_written_total", "Heartbeats written to the store");
    metrics::describe_counter!("greenroom_http_requests_total", "HTTP requests, by method, route and status");
    metrics::describe_gauge!("greenroom_http_requests_under_way", "HTTP requests in progress");
    metrics::describe_histogram!("greenroom_http_request_seconds", Unit::Seconds, "Duration of HTTP requests");
    metrics::describe_histogram!(
        "greenroom_database_call_seconds",
        Unit::Seconds,
        "Duration of database calls, by call"
    );
    handle
}
