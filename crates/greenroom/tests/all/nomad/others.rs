//! What others do to a job at the same time: other replicas, and people.

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
async fn what_somebody_purged_while_it_ran_is_there_until_it_has_ended() {
    let nomad = slow_to_stop().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    nomad.purge(SLOT);
    let found = provider.inspect(&slot()).await.unwrap().expect("it runs still");
    assert!(found.running && found.state.contains("purged, running on node-1"), "{found:?}");
    assert_eq!(with(config(&nomad), "theirs").inspect(&slot()).await.unwrap(), None, "it is nobody else's");
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(statuses(&nomad), ["complete"]);
    assert_eq!(provider.inspect(&slot()).await.unwrap(), None);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_start_that_failed_takes_back_nothing_that_another_has_begun_since() {
    let nomad = NomadFake::start().await;
    let (first, second) = (provider(&nomad), provider(&nomad));
    nomad.fail_next_allocation(
        "failed to create container: dial unix /var/run/docker.sock: connect: connection refused",
    );
    // The first sees that its own has failed, and hears it only when the second is done.
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
async fn what_another_begins_while_a_slot_is_deleted_has_ended_before_the_job_is_purged() {
    let nomad = NomadFake::start().await;
    let (first, second) = (provider(&nomad), provider(&nomad));
    first.create(&bot("a")).await.unwrap();
    until("nothing is left to decide", async || nomad.jobs()[SLOT]["Status"] == "dead").await;
    // The first sees that nothing runs, and hears it only when something does.
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
    assert_eq!(last.body["Job"]["TaskGroups"][0]["Count"], json!(0), "it was told to stop before");
    assert_eq!(statuses(&nomad), ["complete"]);
    assert!(nomad.jobs().is_empty());
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_that_somebody_moves_is_started_again_with_what_it_had() {
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
    // Whoever starts it once more finds it there.
    provider.start(&bot("a")).await.unwrap();
    assert!(provider.inspect(&slot()).await.unwrap().unwrap().is_well());
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    // One that ends by itself is not.
    nomad.end_allocation(&nomad.running(SLOT).unwrap(), 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(statuses(&nomad), ["complete", "failed"]);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_foreign_job_that_was_purged_says_nothing_of_ours() {
    let nomad = slow_to_stop().await;
    with(config(&nomad), "theirs").start(&bot("a")).await.unwrap();
    nomad.purge(SLOT);
    assert_eq!(provider(&nomad).inspect(&slot()).await.unwrap(), None);
    // It is waited for all the same: there are never two of a name.
    provider(&nomad).start(&bot("b")).await.unwrap();
    assert_eq!(statuses(&nomad), ["complete", "running"]);
    expect_no_violations(&nomad);
}
