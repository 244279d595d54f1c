//! A real Prometheus scrapes a real server that is busy and in trouble. Every query of every dashboard finds data, and
//! every metric has the labels of the table. promtool then proves on the recorded series that each alert fires, and
//! that none fires on the recording of a healthy server.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use greenroom::telemetry::catalog;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Backend, COOLIFY_TOKEN, CoolifyFake, CoolifyFault, CoolifyOperation, CoolifySettings, Database, PrivatePrometheus,
    Process, found, in_repository, meet_link, until,
};

/// Metrics that this test need not see, and why. Every other one must have data.
const EMPTY: [(&str, &str); 2] = [
    ("greenroom_bus_up", "only a server with Redis has it"),
    ("greenroom_placement_conflicts_total", "a write of another part at the same moment causes them, by chance"),
];

/// An alert, the metric and the labels of the recorded series that get other values, and the values.
type Firing = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

const FIRES: [Firing; 14] = [
    ("GreenroomDown", "up", &[], "0+0x150"),
    ("GreenroomBotsFailing", "greenroom_bot_ends_total", &[("reason", "deploy_failed")], "0+1x150"),
    ("GreenroomQueueOld", "greenroom_queue_oldest_age_seconds", &[("pool", "meet")], "180+0x150"),
    ("GreenroomPoolExhausted", "greenroom_slots", &[("pool", "meet"), ("status", "busy")], "1+0x150"),
    ("GreenroomSlotsInError", "greenroom_slots", &[("pool", "broken"), ("status", "error")], "1+0x150"),
    ("GreenroomKeeperLate", "greenroom_keeper_last_success_timestamp_seconds", &[("keeper", "sweeper")], "0+0x150"),
    ("GreenroomNoLeader", "greenroom_leader", &[], "0+0x150"),
    ("GreenroomProviderDown", "greenroom_provider_up", &[("pool", "away")], "0+0x150"),
    ("GreenroomProviderClosed", "greenroom_provider_closed", &[("provider", "coolify")], "1+0x150"),
    ("GreenroomProviderBudgetLow", "greenroom_provider_budget_remaining_requests", &[], "1+0x150"),
    ("GreenroomDatabaseFailing", "greenroom_database_call_duration_seconds_count", &[("result", "error")], "0+1x150"),
    ("GreenroomDatabaseConnectionsExhausted", "greenroom_database_connections_used", &[("lane", "users")], "4+0x150"),
    ("GreenroomDatabaseDiskFull", "greenroom_database_disk_free_bytes", &[], "1000+0x150"),
    ("GreenroomInvariantViolated", "greenroom_invariant_violations_total", &[("kind", "copy")], "0+1x150"),
];

/// The series that Prometheus has now, with their labels and values.
type Series = Vec<(BTreeMap<String, String>, String)>;

/// Crashes if its name says so, and otherwise stays until it is asked to leave.
const BOT: &str = "case $BOT_DATA in *crashing*) exit 3;; esac; echo '{\\\"event\\\": \\\"joined\\\"}'; read leave";

fn pool(name: &str, platform: &str, rest: &str) -> String {
    format!("[[pool]]\nname = \"{name}\"\nplatform = \"{platform}\"\n{rest}\n")
}

fn process_pool(name: &str, platform: &str, script: &str, slots: usize) -> String {
    let binary = env!("CARGO_BIN_EXE_greenroom");
    let command = format!("[\"{binary}\", \"agent\", \"--\", \"sh\", \"-c\", \"{script}\"]");
    pool(name, platform, &format!("provider = \"process\"\nmax_slots = {slots}\nprocess = {{ command = {command} }}"))
}

/// A server with pools that work, crash, cannot start, cannot be reached, and refuse requests.
fn troubled(coolify: &CoolifyFake) -> String {
    let mut config = "[heartbeat]\ninterval = \"1s\"\n[limits]\nstreams_per_key = 1\n".to_owned();
    config += &process_pool("meet", "google_meet", BOT, 1);
    let nothing = "provider = \"process\"\nmax_slots = 1\nprocess = { command = [\"/does/not/exist\"] }";
    config += &pool("broken", "teams", nothing);
    config += &pool(
        "away",
        "zoom",
        "provider = \"docker\"\nmax_slots = 1\ndocker = { host = \"tcp://127.0.0.1:1\", image = \"bot\" }",
    );
    config += &pool(
        "coolify",
        "zoom",
        &format!(
            "provider = \"coolify\"\nmax_slots = 2\nmin_idle = 1\nstandby = \"stopped\"\n[pool.coolify]\n\
             api_url = \"{}/api/v1\"\napi_token = \"{COOLIFY_TOKEN}\"\nproject_uuid = \"{}\"\nserver_uuid = \"{}\"\n\
             environment_name = \"production\"\nimage = \"team/bot:1\"",
            coolify.url,
            CoolifyFake::PROJECT,
            CoolifyFake::SERVER,
        ),
    );
    config
}

/// One round of everything that can happen to a bot.
async fn cause_trouble(server: &Process, round: usize) {
    let (admin, user) = (server.admin(), server.admin().user(100).await);
    let crashing = user.ask(json!({"meeting_url": meet_link(4 * round + 3), "bot_display_name": "crashing"})).await;
    let teams = format!("https://teams.live.com/meet/234567890123{round}?p=abc");
    let not_started = user.ask(json!({"meeting_url": teams})).await;
    for bot in [crashing, not_started] {
        user.until(bot["id"].as_str().unwrap(), "failed").await;
    }
    let first = user.bot(&meet_link(4 * round)).await;
    user.until(&first, "active").await;
    let waiting = user.bot(&meet_link(4 * round + 1)).await;
    let (status, _) = admin.post("/admin/slots/pool-broken-001/recover", json!({})).await;
    assert!(status.is_success() || status == reqwest::StatusCode::CONFLICT, "{status}");
    let (status, _) = user.send(Method::GET, &format!("/bots/{first}/transcript"), None).await;
    assert!(status.is_server_error(), "{status}");
    user.stop(&first).await;
    user.until(&first, "completed").await;
    user.until(&waiting, "active").await;
    let last = user.bot(&meet_link(4 * round + 2)).await;
    // The heartbeats, the figures and the metrics of bots.
    until("a heartbeat is written", async || {
        let text = admin.text("/metrics").await;
        text.lines().any(|line| {
            line.strip_prefix("greenroom_heartbeats_written_total ").is_some_and(|count| count.parse() != Ok(0_u32))
        })
    })
    .await;
    admin.post("/admin/stats/run", json!({})).await;
    // The last round leaves a bot in the queue.
    if round == 0 {
        for bot in [last, waiting] {
            user.stop(&bot).await;
            user.until(&bot, "completed").await;
        }
    }
}

#[tokio::test]
async fn every_panel_and_every_alert_finds_its_data_in_a_busy_server_scraped_by_prometheus() {
    let coolify = CoolifyFake::start(CoolifySettings::default()).await;
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &troubled(&coolify)).await;
    let prometheus = PrivatePrometheus::start(&server.url, &alerts()).await;
    let admin = server.admin();
    let reader = admin.user(1).await;
    let _events = reader.request(Method::GET, "/events").send().await.unwrap();
    let _live = admin.request(Method::GET, "/admin/live").send().await.unwrap();
    assert_eq!(reader.request(Method::GET, "/events").send().await.unwrap().status(), 503);

    // Another program has changed the database: a read of transcripts fails.
    database.execute("ALTER TABLE transcript_segments RENAME TO moved").await;
    cause_trouble(&server, 0).await;
    prometheus.scrape_again().await;
    coolify.break_next(CoolifyOperation::List, CoolifyFault::Throttle(300), 1);
    admin.post("/admin/sync/run", json!({})).await;
    cause_trouble(&server, 1).await;
    prometheus.scrape_again().await;

    for file in dashboards() {
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        for (panel, target) in panels.iter().flat_map(|panel| {
            panel["targets"].as_array().into_iter().flatten().map(move |target| (&panel["title"], target))
        }) {
            let expression = target["expr"].as_str().unwrap();
            let exempt = EMPTY.iter().any(|(metric, _)| expression.contains(metric));
            let query = expression.replace("$__rate_interval", "2m").replace("$pool", ".*");
            if exempt {
                prometheus.query(&query).await;
                continue;
            }
            let what = format!("the panel {panel} of {} has data: {query}", file.display());
            until(&what, async || {
                let result = prometheus.query(&query).await;
                result.iter().any(|(_, value)| value != "NaN")
            })
            .await;
        }
    }
    check_against_table(&prometheus.query("{__name__=~\"greenroom_.*\"}").await);

    let rules = prometheus.rules().await;
    let mut names = BTreeSet::new();
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule}");
        names.insert(rule["name"].as_str().unwrap());
        has_runbook(rule);
    }
    assert_eq!(names, FIRES.iter().map(|(alert, ..)| *alert).collect());
    let recorded = recorded(&prometheus, &rules).await;
    let tests: String = FIRES.iter().map(|fires| firing_test(&recorded, fires)).collect();
    promtool(&database, &tests);
}

#[tokio::test]
async fn no_alert_fires_on_the_recording_of_a_healthy_server_by_prometheus() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start_configured(&database, &process_pool("meet", "google_meet", BOT, 3)).await;
    let prometheus = PrivatePrometheus::start(&server.url, &alerts()).await;
    let (admin, user) = (server.admin(), server.admin().user(3).await);
    let bot = user.bot(&meet_link(1)).await;
    user.until(&bot, "active").await;
    user.stop(&bot).await;
    user.until(&bot, "completed").await;
    admin.post("/admin/stats/run", json!({})).await;
    prometheus.scrape_again().await;
    let recorded = recorded(&prometheus, &prometheus.rules().await).await;
    assert!(recorded.len() > 50, "{recorded:?}");
    // The disk of the machine that runs the test may be nearly full; that of a healthy server is half empty.
    let size = recorded.iter().find(|(labels, _)| labels["__name__"] == "greenroom_database_disk_size_bytes");
    let half = size.unwrap().1.parse::<f64>().unwrap() / 2.0;
    let mut tests = input(&recorded, |labels, value| match labels["__name__"].as_str() {
        "greenroom_database_disk_free_bytes" => format!("{half}+0x150"),
        _ => format!("{value}+0x150"),
    });
    expect(&mut tests, "count(ALERTS) or vector(0)", 0);
    promtool(&database, &tests);
    // Prometheus itself says the same.
    assert_eq!(prometheus.query("ALERTS{alertstate=\"firing\"}").await, vec![]);
}

fn alerts() -> PathBuf {
    in_repository("deploy/prometheus/alerts.yml")
}

fn dashboards() -> Vec<PathBuf> {
    let files = std::fs::read_dir(in_repository("deploy/grafana")).unwrap();
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    assert!(files.len() >= 3, "{files:?}");
    files
}

/// Every series has exactly the labels that the table states.
fn check_against_table(series: &Series) {
    let mut seen = BTreeSet::new();
    for (labels, _) in series {
        let name = labels["__name__"].as_str();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let metric = catalog::metrics().find(|metric| metric.name == name || metric.name == base);
        let metric = metric.unwrap_or_else(|| panic!("{name} is not in the table"));
        let others = ["__name__", "instance", "job", "le"];
        let found: BTreeSet<&str> = labels.keys().map(String::as_str).filter(|key| !others.contains(key)).collect();
        assert_eq!(found, metric.labels.iter().copied().collect(), "{name}");
        seen.insert(metric.name);
    }
    let missing = catalog::metrics().map(|metric| metric.name).filter(|name| !seen.contains(name));
    let missing: Vec<&str> = missing.filter(|name| EMPTY.iter().all(|(empty, _)| empty != name)).collect();
    assert!(missing.is_empty(), "metrics that were not recorded: {missing:?}");
}

/// The section of the runbook exists.
fn has_runbook(rule: &Value) {
    for text in ["summary", "description", "runbook_url"] {
        assert!(rule["annotations"][text].is_string(), "{rule}");
    }
    let (file, anchor) = rule["annotations"]["runbook_url"].as_str().unwrap().split_once('#').unwrap();
    let text = std::fs::read_to_string(in_repository(file)).unwrap();
    assert!(text.lines().any(|line| line.starts_with("## ") && line[3..].to_lowercase() == anchor), "{anchor}");
}

/// The series of the metrics that the rules name.
async fn recorded(prometheus: &PrivatePrometheus, rules: &[Value]) -> Series {
    let all = prometheus.query("{__name__=~\"greenroom_.*|up\"}").await;
    let is_used = |name: &str| rules.iter().any(|rule| rule["query"].as_str().unwrap().contains(name));
    all.into_iter().filter(|(labels, value)| value != "NaN" && is_used(&labels["__name__"])).collect()
}

fn input(recorded: &Series, value: impl Fn(&BTreeMap<String, String>, &str) -> String) -> String {
    let mut text = "  - interval: 1m\n    input_series:\n".to_owned();
    for (labels, recorded) in recorded {
        let pairs: Vec<String> = labels
            .iter()
            .filter(|(key, _)| *key != "__name__")
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        let series = json!(format!("{}{{{}}}", labels["__name__"], pairs.join(",")));
        writeln!(text, "      - series: {series}\n        values: '{}'", value(labels, recorded)).unwrap();
    }
    text
}

fn expect(text: &mut String, expression: &str, value: i64) {
    let expression = json!(expression);
    writeln!(
        text,
        "    promql_expr_test:\n      - expr: {expression}\n        eval_time: 140m\n        exp_samples:\n          \
         - labels: '{{}}'\n            value: {value}"
    )
    .unwrap();
}

/// The recorded series, of which some get values that make the alert fire.
fn firing_test(recorded: &Series, (alert, metric, wanted, values): &Firing) -> String {
    let changes = |labels: &BTreeMap<String, String>| {
        labels["__name__"] == *metric
            && wanted.iter().all(|(key, value)| labels.get(*key).is_some_and(|is| is == value))
    };
    assert!(recorded.iter().any(|(labels, _)| changes(labels)), "the server has no {metric} {wanted:?} for {alert}");
    let mut text =
        input(recorded, |labels, value| if changes(labels) { (*values).to_owned() } else { format!("{value}+0x150") });
    expect(&mut text, &format!("count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}}) > bool 0"), 1);
    text
}

/// Runs unit tests of the rules.
fn promtool(database: &Database, tests: &str) {
    let file = database.folder.path().join("tests.yml");
    let rules = json!(alerts());
    std::fs::write(&file, format!("rule_files: [{rules}]\nevaluation_interval: 1m\ntests:\n{tests}")).unwrap();
    for arguments in [vec!["check", "rules", alerts().to_str().unwrap()], vec!["test", "rules", file.to_str().unwrap()]]
    {
        let done = Command::new(PrivatePrometheus::promtool()).args(&arguments).output().unwrap();
        let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(done.status.success(), "promtool {arguments:?}: {said}");
    }
}

#[tokio::test]
async fn a_scrape_is_answered_from_memory_for_some_seconds() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let admin = server.admin();
    let reads = async || {
        let text = admin.text("/metrics").await;
        let calls =
            |line: &&str| line.starts_with("greenroom_database_call_duration_seconds_count{call=\"bots.count_open\"");
        text.lines().find(calls).map(str::to_owned)
    };
    let first = found("the bots are counted", reads).await;
    for _ in 0..20 {
        assert_eq!(reads().await.as_ref(), Some(&first));
    }
}
