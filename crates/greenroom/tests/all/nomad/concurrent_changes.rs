//! Concurrent changes to a job, by other replicas and by people.

use std::time::Duration;

use greenroom::providers::{Provider, Stopped};
use serde_json::json;

use super::{SLOT, bot, config, count_of, expect_no_violations, provider, slot, statuses, with};
use crate::support::{NomadEvent, NomadFake, NomadFault, NomadOperation, NomadOptions, NomadTiming, until};

async fn slow_to_stop() -> NomadFake {
    let timing = NomadTiming { stop: Duration::from_millis(300), ..NomadTiming::default() };
    NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await
}

#[tokio::test]
async fn a_running_job_that_was_purged_counts_until_it_has_ended() {
    let nomad = slow_to_stop().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    nomad.purge(SLOT);
    let found = provider.inspect(&slot()).await.unwrap().expect("it still runs");
    assert!(found.running && found.state.contains("purged, running on node-1"), "{found:?}");
    assert_eq!(with(config(&nomad), "theirs").inspect(&slot()).await.unwrap(), None, "no other installation has it");
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(statuses(&nomad), ["complete"]);
    assert_eq!(provider.inspect(&slot()).await.unwrap(), None);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_failed_start_does_not_cancel_a_later_start_of_another_process() {
    let nomad = NomadFake::start().await;
    let (first, second) = (provider(&nomad), provider(&nomad));
    nomad.fail_next_allocation(
        "failed to create container: dial unix /var/run/docker.sock: connect: connection refused",
    );
    // The first provider sees that its allocation has failed, but gets the answer only after the second is done.
    nomad.break_next(NomadOperation::Register, NomadFault::Slow(Duration::from_millis(300)), 1);
    nomad.break_next(NomadOperation::Allocations, NomadFault::Slow(Duration::ZERO), 1);
    nomad.break_next(NomadOperation::Allocations, NomadFault::Slow(Duration::from_secs(2)), 1);
    let later = async {
        tokio::time::sleep(Duration::from_millis(800)).await;
        second.start(&bot("b")).await
    };
    let wanted = bot("a");
    let (failed, started) = tokio::join!(first.start(&wanted), later);
    assert!(failed.unwrap_err().message.contains("connection refused"));
    started.unwrap();
    assert_eq!((count_of(&nomad), statuses(&nomad)), (json!(1), vec!["failed".to_owned(), "running".to_owned()]));
    assert_eq!(nomad.faults_left(), 0);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_concurrent_start_ends_before_a_deleted_slots_job_is_purged() {
    let nomad = NomadFake::start().await;
    let (first, second) = (provider(&nomad), provider(&nomad));
    first.create(&bot("a")).await.unwrap();
    until("the job has no open evaluation", async || nomad.jobs()[SLOT]["Status"] == "dead").await;
    // The first provider sees that nothing runs, but gets the answer only after something runs.
    nomad.break_next(NomadOperation::Allocations, NomadFault::Slow(Duration::from_secs(1)), 1);
    let later = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        second.start(&bot("b")).await
    };
    let name = slot();
    let (deleted, started) = tokio::join!(first.delete(&name), later);
    deleted.unwrap();
    started.unwrap();
    let calls = nomad.calls();
    let purged = calls.iter().position(|call| call.operation == NomadOperation::Deregister).unwrap();
    let last = calls[..purged].iter().rfind(|call| call.operation == NomadOperation::Register).unwrap();
    assert_eq!(last.body["Job"]["TaskGroups"][0]["Count"], json!(0), "it was stopped before");
    assert_eq!(statuses(&nomad), ["complete"]);
    assert!(nomad.jobs().is_empty());
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_that_is_moved_restarts_with_the_same_data() {
    let nomad = NomadFake::start().await;
    let provider = provider(&nomad);
    let mut events = nomad.events();
    provider.start(&bot("a")).await.unwrap();
    nomad.move_allocation(&nomad.running(SLOT).unwrap());
    until("it is up again", async || statuses(&nomad) == ["complete", "running"]).await;
    let started = |event| match event {
        NomadEvent::Started { environment, .. } => Some(environment),
        NomadEvent::Stopped { .. } => None,
    };
    let environments: Vec<_> = std::iter::from_fn(|| events.try_recv().ok()).filter_map(started).collect();
    assert_eq!(environments.len(), 2);
    assert_eq!(environments[0], environments[1], "the same data, and the same token");
    // A repeated start finds it running.
    provider.start(&bot("a")).await.unwrap();
    assert!(provider.inspect(&slot()).await.unwrap().unwrap().is_healthy());
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    // An allocation that ends by itself is not started again.
    nomad.end_allocation(&nomad.running(SLOT).unwrap(), 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(statuses(&nomad), ["complete", "failed"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_purged_job_of_another_installation_does_not_count_as_ours() {
    let nomad = slow_to_stop().await;
    with(config(&nomad), "theirs").start(&bot("a")).await.unwrap();
    nomad.purge(SLOT);
    assert_eq!(provider(&nomad).inspect(&slot()).await.unwrap(), None);
    // The start still waits for it: two allocations of the same name never run at once.
    provider(&nomad).start(&bot("b")).await.unwrap();
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    expect_no_violations(&nomad);
}
