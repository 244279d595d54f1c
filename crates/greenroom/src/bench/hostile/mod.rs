//! Measures how a hostile user affects others. The server runs as a separate process. A normal user reads its bot, and
//! the bot sends heartbeats. Their latencies are measured alone, and then while another user with a limit of one bot
//! attacks. Every attack has limits in count and time, and sends nothing outside this machine.
//!
//! - this file: the order of the attacks, and the table
//! - [`server`]: the process, its memory, and the data that is prepared in it
//! - [`probe`]: the normal user and its bot
//! - [`attacks`]: the attacks of the other user

mod attacks;
mod probe;
mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bench::Done;
use crate::bench::database::Database;
use crate::bench::figures::percentile;
use attacks::Attack;
use probe::Latencies;
use server::Server;

/// The latencies are measured alone for this part of an attack's time: one half.
const BASELINE_SHARE: u32 = 2;
/// How long the server has to answer normally again after an attack.
const SETTLES_WITHIN: Duration = Duration::from_secs(10);
const ANSWERS_WITHIN: Duration = Duration::from_millis(250);

#[derive(Clone, Debug)]
pub struct Options {
    /// A PostgreSQL database, on whose server another one may be created. SQLite if absent.
    pub database: Option<String>,
    /// The server to attack. If absent, this program.
    pub server_binary: Option<PathBuf>,
    /// How long each attack lasts.
    pub time: Duration,
    /// How many large bots the attacker has had.
    pub bots: usize,
    /// How many connections stay idle.
    pub idle: usize,
    /// A server that uses more memory is ended, to protect the machine.
    pub memory_mib: u64,
}

/// One line of the table.
struct Measured {
    attack: &'static str,
    baseline: Latencies,
    during: Latencies,
    /// The peak of the resident memory, in MiB.
    memory: u64,
    /// A description of the attack and its effects.
    did: String,
}

pub async fn run(options: &Options) -> Done {
    let database = Database::create(options.database.as_deref()).await?;
    let measured = measure(options, &database).await;
    let removed = database.remove().await;
    for line in table(&measured?) {
        println!("{line}");
    }
    removed
}

async fn measure(options: &Options, database: &Database) -> Done<Vec<Measured>> {
    let binary = options.server_binary.clone().map_or_else(std::env::current_exe, Ok)?;
    println!(
        "{} on {}, {} s for each attack",
        binary.display(),
        if options.database.is_some() { "PostgreSQL" } else { "SQLite" },
        options.time.as_secs()
    );
    let mut server = Server::start(&binary, &database.url, options.memory_mib).await?;
    let prepared = server::prepare(server.address, options.bots).await?;
    let mut measured = Vec::new();
    for attack in Attack::all(options.idle) {
        if !settles(&server, &prepared).await {
            println!(
                "before `{}`: no normal answer within {} s, so the server was restarted",
                attack.name(),
                SETTLES_WITHIN.as_secs()
            );
            server.kill().await?;
            server = Server::start(&binary, &database.url, options.memory_mib).await?;
        }
        let baseline = probe::measure(server.address, &prepared, options.time / BASELINE_SHARE).await;
        server.forget_peak();
        let attacker = attack.begin(server.address, &prepared.attacker_key);
        let during = probe::measure(server.address, &prepared, options.time).await;
        let did = attacker.end().await;
        let mut line = Measured { attack: attack.name(), baseline, during, memory: server.peak_mib(), did };
        if let Some(end) = server.has_ended() {
            line.did = format!("{}; {end}", line.did);
            server = Server::start(&binary, &database.url, options.memory_mib).await?;
        }
        measured.push(line);
    }
    server.stop().await?;
    Ok(measured)
}

/// Waits until the server answers as it does without an attack. False if that takes too long.
async fn settles(server: &Server, prepared: &server::Prepared) -> bool {
    let begun = Instant::now();
    while !probe::answers(server.address, prepared, ANSWERS_WITHIN).await {
        if begun.elapsed() > SETTLES_WITHIN {
            return false;
        }
        tokio::time::sleep(ANSWERS_WITHIN).await;
    }
    true
}

fn table(measured: &[Measured]) -> Vec<String> {
    let mut lines = vec![
        "latencies in ms: before > during the attack (ratio)".to_owned(),
        format!(
            "{:<14} {:>24} {:>26} {:>24} {:>26} {:>9} {:>7}  {}",
            "attack", "GET p50", "GET p99", "heartbeat p50", "heartbeat p99", "peak MiB", "errors", "attacker"
        ),
    ];
    for line in measured {
        let [get, beat] = [(&line.baseline.gets, &line.during.gets), (&line.baseline.beats, &line.during.beats)];
        lines.push(format!(
            "{:<14} {:>24} {:>26} {:>24} {:>26} {:>9} {:>7}  {}",
            line.attack,
            ratio(get.0, get.1, 0.5),
            ratio(get.0, get.1, 0.99),
            ratio(beat.0, beat.1, 0.5),
            ratio(beat.0, beat.1, 0.99),
            line.memory,
            line.during.errors,
            line.did
        ));
    }
    lines
}

fn ratio(baseline: &[f64], during: &[f64], share: f64) -> String {
    let (baseline, during) = (percentile(baseline, share), percentile(during, share));
    format!("{baseline:.1} > {during:.1} ({:.1}x)", during / baseline)
}
