//! Every metric of the server. This table is the only place that states names, units, labels, buckets and meanings: the
//! exporter gets them from here, and `docs/metrics.md` is made from it. A test fails when the code records a name that
//! is not in it.
//!
//! Rules for a new metric: the name ends with its unit; a counter ends with `_total`; the values of a label are few and
//! known (pools, hosts, statuses), and never come from a caller. A name is never given another meaning.

use std::fmt::Write;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// It only grows, and begins at 0 when the process starts.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts values by size.
    Histogram(&'static [f64]),
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// Calls that take milliseconds: requests, statements.
const CALLS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// Work that takes seconds to minutes: starts of slots, calls to providers, runs of keepers, waits for a slot.
const WORK: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];
/// What lasts as long as a meeting: minutes to hours.
const MEETINGS: &[f64] =
    &[0.1, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 2700.0, 3600.0, 7200.0, 14400.0];
/// Numbers of jobs.
const JOBS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    buckets: &'static [f64],
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: Kind::Histogram(buckets), labels, help }
}

/// A part of the table, with its heading and what its reader must know.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    pub title: &'static str,
    pub about: &'static str,
    pub metrics: &'static [Metric],
}

/// All metrics, by subject.
pub const SECTIONS: &[Section] = &[
    Section {
        title: "Fleet",
        about: "Every replica reports the same numbers for the whole installation, so take `max`, not `sum`. The server \
                reads them during a scrape, at most every 5 seconds. They are `NaN` while the database does not answer.",
        metrics: &[
            gauge("greenroom_bots", &["status"], "Bots that have not ended, by the status that users see"),
            gauge("greenroom_slots", &["pool", "status"], "Slots, by pool and status"),
            gauge("greenroom_pool_max_slots", &["pool"], "The largest number of slots that the pool may have"),
            gauge("greenroom_queue_bots", &["pool"], "Bots in the queue, by the first pool that could take them"),
            gauge(
                "greenroom_queue_oldest_age_seconds",
                &["pool"],
                "How long the oldest bot in the queue has waited; 0 if none waits",
            ),
            gauge("greenroom_gate_places_used", &["host"], "Slot starts in progress on a host"),
            gauge(
                "greenroom_gate_places_max",
                &["host"],
                "Slot starts that may be in progress on a host: `deploy.max_concurrent`",
            ),
            gauge("greenroom_gate_waiting", &["host"], "Slot starts that wait at the gate of a host"),
        ],
    },
    Section {
        title: "Bots",
        about: "The leader counts these from the committed events, at most some seconds later, each event once for all \
                replicas. So take `sum`: a new leader goes on where the last one ended. `reason` is `other` for a reason \
                that the bot itself gave.",
        metrics: &[
            counter("greenroom_bot_requests_total", &[], "Bots that were requested and admitted"),
            histogram(
                "greenroom_bot_queue_wait_duration_seconds",
                WORK,
                &["pool"],
                "Time from the request until the bot got its first slot",
            ),
            counter(
                "greenroom_bot_starts_total",
                &["pool", "start", "result"],
                "Starts of bots in a slot. `start`: `hot` (an agent waited in the slot), `stopped` (the slot was started) or `cold` (the slot was created). `result`: `started`, `failed`, `stopped` (by its user) or `returned` (to the queue, for lack of capacity)",
            ),
            histogram(
                "greenroom_bot_start_duration_seconds",
                WORK,
                &["pool", "start"],
                "Time from the slot until the first callback of the bot, for starts that succeeded",
            ),
            histogram(
                "greenroom_bot_status_duration_seconds",
                MEETINGS,
                &["status"],
                "Time that a bot spent in a status, recorded when it left it",
            ),
            counter(
                "greenroom_bot_ends_total",
                &["pool", "status", "reason", "fault"],
                "Bots that ended: `completed` or `failed`, why, and by whose fault (`none`, `host`, `bot`, `provider`, `capacity`)",
            ),
        ],
    },
    Section {
        title: "Placement",
        about: "Each replica counts its own work.",
        metrics: &[
            histogram(
                "greenroom_placement_batch_jobs",
                JOBS,
                &[],
                "Jobs (requests, ends of bots, slot events) that one plan covered",
            ),
            counter(
                "greenroom_placement_conflicts_total",
                &["what"],
                "Plans that were made again because another writer was faster: it replaced the token (`token`), or changed a bot, a deployment or a key (`row`)",
            ),
            counter(
                "greenroom_placement_reads_total",
                &["what"],
                "How placement caught up: by the `journal`, or by reading `everything`",
            ),
            counter(
                "greenroom_invariant_violations_total",
                &["kind"],
                "Violations of rules that must always hold; see keepers.md",
            ),
            counter(
                "greenroom_bot_transitions_total",
                &["to"],
                "Status changes of bots that this replica committed, by new status",
            ),
            counter("greenroom_heartbeats_written_total", &[], "Heartbeats written to the store"),
        ],
    },
    Section {
        title: "Providers",
        about: "`result` of a call: `ok`, `transient` (a retry may help), `unavailable` (not reached), `no_capacity`, `permanent`, or `cancelled` (the server stopped waiting).",
        metrics: &[
            histogram(
                "greenroom_provider_call_duration_seconds",
                WORK,
                &["provider", "call", "result"],
                "Duration of calls to a provider",
            ),
            gauge(
                "greenroom_provider_up",
                &["pool", "provider"],
                "Whether the provider of the pool answers, as this replica sees it: 1 or 0",
            ),
            gauge(
                "greenroom_provider_closed",
                &["pool", "provider"],
                "1 while a provider has asked for no more requests (429), 0 otherwise",
            ),
            counter(
                "greenroom_provider_throttled_total",
                &["budget"],
                "Answers of a provider that asked for a pause (429)",
            ),
            gauge(
                "greenroom_provider_budget_remaining_requests",
                &["budget"],
                "Requests that are left in a budget now",
            ),
            gauge("greenroom_provider_budget_max_requests", &["budget"], "Requests that a budget allows in its period"),
            counter(
                "greenroom_slot_recoveries_total",
                &["pool", "result"],
                "Attempts to recover a slot in error: `recovered`, `failed`, or `deleted` after too many",
            ),
        ],
    },
    Section {
        title: "Keepers",
        about: "The leader runs the keepers, so a replica that once led has old values: take `max by (keeper)` of timestamps.",
        metrics: &[
            gauge("greenroom_leader", &[], "1 on the replica that runs the keepers, 0 on others"),
            counter("greenroom_keeper_runs_total", &["keeper"], "Runs"),
            counter("greenroom_keeper_failures_total", &["keeper"], "Runs that failed or could not do everything"),
            counter(
                "greenroom_keeper_did_total",
                &["keeper", "what"],
                "What the runs did; keepers.md lists the values of `what`",
            ),
            counter(
                "greenroom_pruned_rows_total",
                &["table"],
                "Rows that the keeper `retention` has deleted because they were old",
            ),
            histogram("greenroom_keeper_run_duration_seconds", WORK, &["keeper"], "Duration of a run"),
            gauge(
                "greenroom_keeper_last_run_timestamp_seconds",
                &["keeper"],
                "When the last run ended, in Unix seconds",
            ),
            gauge(
                "greenroom_keeper_last_success_timestamp_seconds",
                &["keeper"],
                "When the last run ended that did everything, in Unix seconds",
            ),
            gauge(
                "greenroom_keeper_interval_seconds",
                &["keeper"],
                "The time between two runs, if nothing wakes the keeper",
            ),
        ],
    },
    Section {
        title: "Database",
        about: "`lane` is the kind of call that the connections are for: ARCHITECTURE.md, \"The store\".",
        metrics: &[
            histogram(
                "greenroom_database_call_duration_seconds",
                CALLS,
                &["call", "result"],
                "Duration of database calls, by the name of the statement and result (`ok`, `error`)",
            ),
            gauge("greenroom_database_connections_used", &["lane"], "Connections that are in use"),
            gauge("greenroom_database_connections_max", &["lane"], "Connections that may be open"),
            gauge(
                "greenroom_database_disk_free_bytes",
                &[],
                "Free bytes on the disk of the SQLite file; absent with PostgreSQL",
            ),
            gauge(
                "greenroom_database_disk_size_bytes",
                &[],
                "Size of the disk of the SQLite file; absent with PostgreSQL",
            ),
        ],
    },
    Section {
        title: "HTTP and streams",
        about: "`route` is the pattern of the path. It never contains an id.",
        metrics: &[
            counter("greenroom_http_requests_total", &["method", "route", "status"], "Requests that were answered"),
            histogram(
                "greenroom_http_request_duration_seconds",
                CALLS,
                &["method", "route"],
                "Time to answer a request; a long poll counts until its answer",
            ),
            gauge("greenroom_http_requests_under_way", &[], "Requests in progress"),
            counter(
                "greenroom_http_overloaded_total",
                &["what"],
                "Requests that were refused with 503 `overloaded`: `bytes`, `streams`, `refusals`, `connections`, `placement`",
            ),
            counter(
                "greenroom_http_unread_answers_total",
                &[],
                "Answers that were dropped because the client did not read them",
            ),
            gauge(
                "greenroom_stream_readers",
                &["stream"],
                "Open streams: `events` (`GET /events`) and `live` (`GET /admin/live`)",
            ),
            counter("greenroom_live_readers_dropped_total", &[], "Readers of the live view that were too slow"),
            gauge("greenroom_bus_up", &[], "Whether Redis took the last message: 1 or 0; absent without Redis"),
            counter(
                "greenroom_bus_dropped_total",
                &[],
                "Commands that were left to heartbeats because Redis did not take them",
            ),
        ],
    },
    Section {
        title: "Traces",
        about: "",
        metrics: &[counter(
            "greenroom_trace_spans_total",
            &["result"],
            "Spans of traces: `sent`, `failed` (the collector did not take them) or `dropped` (too many waited)",
        )],
    },
    Section {
        title: "Process",
        about: "",
        metrics: &[gauge("greenroom_build_info", &["version"], "Always 1; the version of this server is in the label")],
    },
];

/// All metrics.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.iter().flat_map(|section| section.metrics)
}

/// The unit of a metric, which its name states.
pub fn unit(metric: &Metric) -> &'static str {
    let name = metric.name.trim_end_matches("_total");
    let known = [("_timestamp_seconds", "Unix time in seconds"), ("_seconds", "seconds"), ("_bytes", "bytes")];
    known.iter().find(|(suffix, _)| name.ends_with(suffix)).map_or("number", |(_, unit)| unit)
}

/// The tables of `docs/metrics.md`.
pub fn markdown() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let _ = write!(text, "## {}\n\n", section.title);
        if !section.about.is_empty() {
            let _ = write!(text, "{}\n\n", wrapped(section.about));
        }
        text.push_str("| metric | kind | unit | meaning |\n|---|---|---|---|\n");
        for metric in section.metrics {
            let labels = match metric.labels {
                [] => String::new(),
                labels => format!("{{{}}}", labels.join(",")),
            };
            let Metric { name, kind, help, .. } = metric;
            let _ = writeln!(text, "| `{name}{labels}` | {} | {} | {help} |", kind.as_str(), unit(metric));
        }
        text.push('\n');
    }
    text.push_str("## Buckets\n\n| histogram | buckets |\n|---|---|\n");
    for metric in metrics() {
        if let Kind::Histogram(buckets) = metric.kind {
            let buckets: Vec<String> = buckets.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "| `{}` | {} |", metric.name, buckets.join(", "));
        }
    }
    text
}

/// The text in lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() >= 100 {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;

    /// The names that the code records, with the macro that records them.
    fn recorded(folder: &Path, found: &mut BTreeMap<String, &'static str>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                recorded(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for kind in ["counter", "gauge", "histogram"] {
                for call in text.split(&format!("{kind}!(")).skip(1) {
                    // In this file the macros are only named.
                    if let Some(name) = call.trim_start().strip_prefix('"') {
                        found.insert(name.split('"').next().unwrap().to_owned(), kind);
                    }
                }
            }
        }
    }

    #[test]
    fn the_code_records_the_metrics_of_the_table_and_no_others() {
        let mut found = BTreeMap::new();
        for name in ["greenroom", "providers", "store"] {
            recorded(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"), &mut found);
        }
        let table: BTreeMap<String, &str> =
            metrics().map(|metric| (metric.name.to_owned(), metric.kind.as_str())).collect();
        assert_eq!(found, table);
        assert_eq!(table.len(), metrics().count(), "a name is in the table twice");
    }

    #[test]
    fn names_state_their_kind_and_unit() {
        for metric in metrics() {
            let Metric { name, kind, help, labels } = metric;
            assert!(name.starts_with("greenroom_") && !help.is_empty(), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            if let Kind::Histogram(buckets) = kind {
                assert!(name.ends_with("_duration_seconds") || name.ends_with("_jobs"), "{name}");
                assert!(buckets.is_sorted(), "{name}");
            }
            let unbounded = ["user", "user_id", "bot", "bot_id", "slot", "path", "url"];
            assert!(labels.iter().all(|label| !unbounded.contains(label)), "{name}");
        }
    }
}
