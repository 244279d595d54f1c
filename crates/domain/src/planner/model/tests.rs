//! Histories on the planner alone.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{BATCHES, Bug, FEWER_BATCHES, History, plant};

/// Fails with the smallest failing history, and says how to run it again.
fn must_agree(seed: u64, batches: usize) {
    let history = History::new(seed, batches);
    if history.run().is_ok() {
        return;
    }
    let (small, failure) = history.shrink();
    panic!("{}\n`scripts/model seed {seed}` runs it again", failure.describe(&small));
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.replace(['_', ','], "").parse().ok()).unwrap_or(otherwise)
}

#[test]
fn ten_thousand_random_histories_agree_with_the_model() {
    for seed in 0..10_000 {
        must_agree(seed, FEWER_BATCHES);
    }
}

#[test]
#[ignore = "for scripts/model, with MODEL_HISTORIES, from MODEL_FROM on"]
fn many_random_histories_agree_with_the_model() {
    let (from, count) = (number("MODEL_FROM", 0), number("MODEL_HISTORIES", 10_000));
    let threads = number("MODEL_THREADS", std::thread::available_parallelism().map_or(1, |count| count.get() as u64));
    let longest_seconds = number("MODEL_SECONDS", u64::MAX);
    let (next, done, began) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count || began.elapsed().as_secs() >= longest_seconds {
                        return;
                    }
                    must_agree(from + at, BATCHES);
                    let so_far = done.fetch_add(1, Ordering::Relaxed) + 1;
                    if so_far.is_multiple_of((count / 20).clamp(1, 50_000)) {
                        let seconds = began.elapsed().as_secs_f64();
                        eprintln!("{so_far} of {count} histories agree, {seconds:.1} s");
                    }
                }
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let done = done.into_inner();
    println!("{done} histories agree, {seconds:.1} s, {:.0} a second", done as f64 / seconds);
    assert!(done == count || longest_seconds < u64::MAX, "{done} of {count} were run");
}

#[test]
#[ignore = "runs the history MODEL_SEED"]
fn one_history() {
    must_agree(number("MODEL_SEED", 0), BATCHES);
}

#[test]
fn histories_reach_every_kind_of_job_with_and_without_effect() {
    let mut seen = BTreeMap::new();
    for seed in 0..600 {
        History::new(seed, BATCHES).run_and_count(&mut seen).unwrap();
    }
    for (kind, count) in &seen {
        println!("{count:>6} {kind}");
    }
    let events = "Cleared AgentWaits NoCapacity Silent Broken Failed Recovering Recovered Lost UnknownProcess Stopped Drain Gone";
    for event in events.split(' ') {
        for fits in [true, false] {
            assert!(seen.contains_key(&format!("{event} {fits}")), "{event} {fits}");
        }
    }
    let others = [
        "Started true",
        "NotBegun true",
        "Reserve placed new=true",
        "Reserve placed new=false",
        "Reserve waits new=true",
        "Reserve waits new=false",
        "Reserve KeyExpired",
        "Reserve IdempotencyMismatch",
        "Reserve NoPool",
        "Reserve NothingFits",
        "Reserve PriorityTooLow",
        "Reserve DuplicateBot",
        "Reserve LimitReached",
        "Exited Completed",
        "Exited Failed",
        "Exited StaleConnection",
        "Exited Ended",
        "Exited NoSuchBot",
        "QueueTimeout Failed",
        "QueueTimeout Reserved",
        "DeployTimeout Failed",
        "DeployTimeout Reserved",
        "DeployFailed Failed",
        "DeployFailed InvalidTransition",
        "NoStart Failed",
        "StopGrace Completed",
        "KeepWarm made=1 let_go=0 stopped=0 replaced=0",
        "KeepWarm made=0 let_go=1 stopped=0 replaced=0",
        "KeepWarm made=0 let_go=0 stopped=1 replaced=0",
        "KeepWarm made=0 let_go=0 stopped=0 replaced=1",
        "RetryWaiting ",
        "ServeQueues ",
    ];
    for kind in others {
        assert!(seen.contains_key(kind), "{kind}");
    }
}

/// A planted bug must be found within this many histories.
const MOST_HISTORIES: u64 = 3_000;

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    println!("| bug | seed | step | caught by |");
    println!("|---|---|---|---|");
    for bug in Bug::ALL {
        plant(Some(bug));
        let found = (0..MOST_HISTORIES).find_map(|seed| Some((seed, History::new(seed, BATCHES).run().err()?)));
        plant(None);
        match found {
            Some((seed, failure)) => {
                let what = failure.what.lines().next().unwrap_or_default();
                println!("| `{bug:?}` | {seed} | {} | {what} |", failure.step);
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
