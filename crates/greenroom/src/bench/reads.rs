//! Measures every list and status call on a large installation: many ended bots, slots and queued bots, compared with a
//! thousandth of each. Both servers run at the same time on databases of their own, and each call is sent to them in
//! turn, so that other load on the machine affects both.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use super::Done;
use super::bars::{BarChart, Group};
use super::client::Client;
use super::database::{Database, IdleSlots};
use super::figures::{median, milliseconds};
use super::server::{POOL, PoolSpec, ServerProcess, ServerSpec};
use super::svg::shown;

/// The pool that the queued bots wait for. It may have no slots.
const FULL_POOL: &str = "full";
/// The number of bots in a meeting, in both installations.
const ACTIVE: i64 = 10;
/// Lists are measured with pages of one size, because a longer answer takes longer.
const PAGE: i64 = 10;
const GOAL: f64 = 2.0;

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server others may be created. SQLite if absent.
    pub database: Option<String>,
    pub ended: i64,
    pub slots: u32,
    pub queued: i64,
    /// How often each call is measured.
    pub calls: usize,
    pub json: bool,
    pub svg: Option<PathBuf>,
}

/// One installation.
struct Size {
    database: Database,
    server: ServerProcess,
    key: String,
    admin_token: String,
}

/// The calls, and whether an operator makes them. `ID` stands for a bot that has ended, `QUEUED` for the last in the
/// queue.
const CALLS: &[(&str, bool)] = &[
    ("/bots/status?limit=PAGE", false),
    ("/bots?limit=PAGE", false),
    ("/bots?limit=PAGE&status=active", false),
    ("/bots?limit=PAGE&status=queued", false),
    ("/bots?limit=PAGE&status=completed", false),
    ("/bots?limit=PAGE&platform=zoom", false),
    ("/bots?limit=PAGE&meeting=bench-7", false),
    ("/bots?limit=PAGE&metadata.customer=7", false),
    ("/bots/active?limit=PAGE", false),
    ("/meetings?limit=PAGE", false),
    ("/bots/ID", false),
    ("/bots/QUEUED", false),
    ("/bots/ID/events", false),
    ("/bots/ID/transcript", false),
    ("/admin/bots?limit=PAGE", true),
    ("/admin/bots?limit=PAGE&status=active", true),
    ("/admin/users?limit=PAGE", true),
    ("/admin/pools", true),
    ("/admin/slots?limit=PAGE", true),
    ("/admin/slots?limit=PAGE&status=idle", true),
    ("/admin/slots?limit=PAGE&status=error", true),
    ("/admin/slots/SLOT", true),
    ("/admin/queue?limit=PAGE", true),
    ("/admin/deployments?limit=PAGE", true),
    ("/admin/keepers", true),
    ("/admin/attention", true),
    ("/admin/audit?limit=PAGE", true),
    ("/metrics", true),
];

pub async fn run(options: &Options) -> Done {
    let small = Options {
        ended: (options.ended / 1_000).max(1),
        slots: (options.slots / 1_000).max(1),
        queued: (options.queued / 1_000).max(1),
        ..options.clone()
    };
    let mut sizes = Vec::new();
    let mut measured = Ok(Vec::new());
    for size in [options, &small] {
        match prepare(size).await {
            Ok(size) => sizes.push(size),
            Err(error) => measured = Err(error),
        }
    }
    if measured.is_ok() {
        measured = measure(options, &sizes).await;
    }
    let shown = measured.and_then(|rows| show(options, &small, &rows));
    for Size { database, server, .. } in sizes {
        server.stop().await?;
        database.remove().await?;
    }
    shown
}

async fn prepare(options: &Options) -> Done<Size> {
    let database = Database::create(options.database.as_deref()).await?;
    let full = PoolSpec { name: FULL_POOL.to_owned(), platform: "zoom".to_owned(), ..PoolSpec::hot(0) };
    let spec = ServerSpec::new(&database, vec![PoolSpec::hot(options.slots), full]);
    let prepared = async {
        let server = ServerProcess::start(&spec).await?;
        let key = server.create_users(1, 1_000_000).await?.remove(0);
        server.stop().await?;
        let slots = IdleSlots { pool: POOL, count: i64::from(options.slots), attribute_sets: &[] };
        database.fill(&slots).await?;
        for statement in fill_statements(options, database.is_postgres()) {
            database.execute(statement).await?;
        }
        let server = ServerProcess::start(&spec).await?;
        Done::Ok((server, key))
    };
    match prepared.await {
        Ok((server, key)) => Ok(Size { database, server, key, admin_token: spec.admin_token }),
        Err(error) => {
            database.remove().await?;
            Err(error)
        }
    }
}

/// The id of a bot, as an SQL expression. Ids sort by their prefix and then by their number.
fn id(prefix: &str, is_postgres: bool) -> String {
    match is_postgres {
        true => format!("('{prefix}-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid"),
        false => format!("'{prefix}-0000-7000-8000-' || printf('%012x', number)"),
    }
}

fn numbers(count: i64, is_postgres: bool) -> String {
    match is_postgres {
        true => format!("generate_series(1, {count}) AS numbers (number)"),
        false => format!(
            "(WITH RECURSIVE counted (number) AS
                  (SELECT 1 UNION ALL SELECT number + 1 FROM counted WHERE number < {count})
              SELECT number FROM counted) AS numbers"
        ),
    }
}

const ENDED_IDS: &str = "01000000";
const ACTIVE_IDS: &str = "01500000";
const QUEUED_IDS: &str = "01900000";

/// The rows of the bots, each table with one statement.
fn fill_statements(options: &Options, is_postgres: bool) -> Vec<String> {
    let now = if is_postgres { "now()" } else { "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')" };
    let far = if is_postgres { "timestamptz '2100-01-01'" } else { "'2100-01-01T00:00:00.000000Z'" };
    let json = if is_postgres { "::json" } else { "" };
    let user = "(SELECT id FROM users WHERE email = 'bench-0@localhost')";
    let bots = |ids: &str, count: i64, platform: &str, status: &str, more: &str| {
        // Two open bots of a user never attend one meeting.
        let meeting = if ids == ENDED_IDS { "'bench-' || (number % 1000)" } else { "'open-' || number" };
        let (columns, values) = more.split_once('|').unwrap_or((more, ""));
        format!(
            "INSERT INTO bots (id, user_id, platform, native_meeting_id, meeting_url, status, status_since, priority,
                               queue_timeout_ms, config, metadata, created_at, updated_at{columns})
             SELECT {id}, {user}, '{platform}', {meeting}, 'https://meetings.invalid/' || number,
                    '{status}', {now}, 100, 300000, '{{}}'{json}, ('{{\"customer\": ' || (number % 10) || '}}'){json},
                    {now}, {now}{values}
               FROM {numbers}",
            id = id(ids, is_postgres),
            numbers = numbers(count, is_postgres),
        )
    };
    let open = |ids: &str, count: i64| {
        let (id, numbers) = (id(ids, is_postgres), numbers(count, is_postgres));
        format!("INSERT INTO open_bots (user_id, bot_id) SELECT {user}, {id} FROM {numbers}")
    };
    let Options { ended, queued, .. } = options;
    let mut statements = vec![
        bots(
            ENDED_IDS,
            *ended,
            "google_meet",
            "completed",
            &format!(", reason, fault, end_time|, 'finished', 'none', {now}"),
        ),
        format!(
            "INSERT INTO events (bot_id, user_id, at, kind, from_status, to_status, reason, actor)
             SELECT {}, {user}, {now}, 'status_changed', 'active', 'completed', 'finished', 'bot' FROM {}",
            id(ENDED_IDS, is_postgres),
            numbers(*ended, is_postgres)
        ),
        format!("INSERT INTO ended_counts (user_id, status, count) SELECT {user}, 'completed', {ended}"),
        "UPDATE ended_counts_position SET last_event = (SELECT max(id) FROM events)".to_owned(),
        "UPDATE stats_position SET last_event = (SELECT max(id) FROM events)".to_owned(),
        bots(ACTIVE_IDS, ACTIVE, "teams", "active", &format!(", connection_id|, {}", id(ACTIVE_IDS, is_postgres))),
        open(ACTIVE_IDS, ACTIVE),
        bots(QUEUED_IDS, *queued, "zoom", "reserved", &format!(", pool|, '{FULL_POOL}'")),
        open(QUEUED_IDS, *queued),
        format!(
            "INSERT INTO queue (bot_id, platform, pool, priority, queued_at, timeout_at)
             SELECT {}, 'zoom', '{FULL_POOL}', 100, {now}, {far} FROM {} ORDER BY number",
            id(QUEUED_IDS, is_postgres),
            numbers(*queued, is_postgres)
        ),
        format!(
            "INSERT INTO slot_memory (slot, incarnation, bytes, measured_at) SELECT name, incarnation, 1000000, {now} FROM slots"
        ),
    ];
    if is_postgres {
        statements.push("VACUUM ANALYZE".to_owned());
    }
    statements
}

/// The times of one call, in milliseconds.
struct Measured {
    call: String,
    large: f64,
    small: f64,
}

impl Measured {
    fn ratio(&self) -> f64 {
        self.large / self.small
    }
}

async fn measure(options: &Options, sizes: &[Size]) -> Done<Vec<Measured>> {
    let mut clients = Vec::new();
    for size in sizes {
        clients.push(Client::connect(size.server.address).await?);
    }
    let mut rows = Vec::new();
    for (path, is_admin) in CALLS {
        let mut times = vec![Vec::new(); sizes.len()];
        // The first call of each prepares statements, and is not counted.
        for round in 0..=options.calls.max(1) {
            for (number, (size, client)) in sizes.iter().zip(&mut clients).enumerate() {
                let call = format!("GET {}", real_path(path, number, options));
                let token = if *is_admin { &size.admin_token } else { &size.key };
                let begun = Instant::now();
                let (status, body) = client.call(&call, token, None, "").await?;
                if status != 200 {
                    return Err(format!("{call} returned {status}: {}", String::from_utf8_lossy(body)).into());
                }
                if round > 0 {
                    times[number].push(milliseconds(begun.elapsed()));
                }
            }
        }
        let call = path.replace("PAGE", &PAGE.to_string());
        rows.push(Measured { call, large: median(&times[0]), small: median(&times[1]) });
    }
    Ok(rows)
}

/// The path of a call, in the large installation (0) or the small one.
fn real_path(path: &str, size: usize, options: &Options) -> String {
    let part = if size == 0 { 1 } else { 1_000 };
    let bot = |ids: &str, number: i64| format!("{ids}-0000-7000-8000-{number:012x}");
    let slot = (options.slots / part).max(1);
    let last = |count: i64| (count / i64::from(part)).max(1);
    path.replace("PAGE", &PAGE.to_string())
        .replace("QUEUED", &bot(QUEUED_IDS, last(options.queued)))
        .replace("SLOT", &format!("pool-{POOL}-{slot:03}"))
        .replace("/ID", &format!("/{}", bot(ENDED_IDS, 1)))
}

fn show(options: &Options, small: &Options, rows: &[Measured]) -> Done {
    let size = |of: &Options| json!({"ended": of.ended, "slots": of.slots, "queued": of.queued});
    let worst = rows.iter().map(Measured::ratio).fold(0.0, f64::max);
    if options.json {
        let calls: Vec<Value> = rows
            .iter()
            .map(|row| json!({"call": row.call, "ms": row.large, "beside_ms": row.small, "ratio": row.ratio()}))
            .collect();
        let report = json!({
            "bench": "reads", "database": if options.database.is_some() { "postgres" } else { "sqlite" },
            "size": size(options), "beside": size(small), "goal": GOAL, "worst": worst, "calls": calls,
        });
        println!("{report}");
    } else {
        let counts = |of: &Options| {
            let [ended, slots, queued] = [of.ended, i64::from(of.slots), of.queued].map(|count| shown(count as f64));
            format!("{ended} ended bots, {slots} slots, {queued} queued bots")
        };
        println!("{} beside {}; medians of {} calls in turn", counts(options), counts(small), options.calls);
        println!("{:<42} {:>9} {:>9} {:>7}", "call", "ms", "beside", "ratio");
        for row in rows {
            println!("{:<42} {:>9.2} {:>9.2} {:>7.2}", row.call, row.large, row.small, row.ratio());
        }
        println!("{:<42} {:>9} {:>9} {worst:>7.2}", format!("the largest ratio (goal: at most {GOAL})"), "", "");
    }
    if let Some(file) = &options.svg {
        let groups = rows
            .iter()
            .enumerate()
            .map(|(at, row)| Group { label: (at + 1).to_string(), values: vec![row.large, row.small] });
        let chart = BarChart {
            title: "List and status calls, in the order of the table".to_owned(),
            y_label: "milliseconds".to_owned(),
            names: vec![format!("{} bots", shown(options.ended as f64)), format!("{} bots", shown(small.ended as f64))],
            groups: groups.collect(),
        };
        std::fs::write(file, chart.to_svg())?;
    }
    Ok(())
}
