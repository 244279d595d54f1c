//! A node that dies, or that only Nomad cannot reach.

use std::time::Duration;

use domain::SlotName;
use greenroom::providers::{Provider, Spec, Stopped};
use serde_json::{Value, json};

use super::{SLOT, agent, bot, count_of, expect_no_violations, provider, slot, statuses};
use crate::support::{NomadFake, NomadNode, NomadOptions, NomadTiming, until};

async fn two_nodes_with(timing: NomadTiming) -> NomadFake {
    let nodes = vec![NomadNode::new("one"), NomadNode { memory: 30_000, ..NomadNode::new("two") }];
    NomadFake::start_with(NomadOptions { nodes, timing, ..NomadOptions::default() }).await
}

async fn two_nodes() -> NomadFake {
    two_nodes_with(NomadTiming::default()).await
}

fn node_of_last(nomad: &NomadFake) -> String {
    nomad.allocations(SLOT).last().unwrap()["NodeName"].as_str().unwrap().to_owned()
}

/// Starts an allocation, and disconnects its node.
async fn lost(nomad: &NomadFake, spec: &Spec) {
    provider(nomad).start(spec).await.unwrap();
    assert_eq!(node_of_last(nomad), "one");
    nomad.lose_node("one");
    until("its state is unknown", async || statuses(nomad) == ["unknown"]).await;
}

#[tokio::test]
async fn an_allocation_on_a_lost_node_is_unhealthy_and_never_started_twice_by_nomad() {
    for spec in [bot("a"), agent()] {
        let nomad = two_nodes().await;
        let provider = provider(&nomad);
        lost(&nomad, &spec).await;
        // The bot may be in its meeting, or the agent may have one that is.
        let found = provider.inspect(&slot()).await.unwrap().unwrap();
        assert!(found.running && found.unhealthy && found.state.contains("unknown on one"), "{found:?}");
        let listed = provider.list().await.unwrap().remove(0);
        assert!(listed.running && listed.unhealthy && listed.state.contains("unknown"), "{listed:?}");
        nomad.bring_back_node("one");
        until("it continues", async || statuses(&nomad) == ["running"]).await;
        assert!(provider.inspect(&slot()).await.unwrap().unwrap().is_healthy());
        assert!(provider.list().await.unwrap()[0].is_healthy());
        // The evaluation that Nomad has scheduled for later does not delay the stop.
        assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
        expect_no_violations(&nomad);
    }
}

#[tokio::test]
async fn a_start_replaces_an_allocation_on_a_lost_node() {
    for (spec, next) in [(agent(), agent()), (bot("a"), bot("a")), (agent(), Spec { generation: 2, ..agent() })] {
        let nomad = two_nodes().await;
        let provider = provider(&nomad);
        lost(&nomad, &spec).await;
        provider.start(&next).await.unwrap();
        assert_eq!(
            (statuses(&nomad), node_of_last(&nomad).as_str()),
            (vec!["unknown".into(), "running".into()], "two")
        );
        assert!(provider.list().await.unwrap()[0].is_healthy(), "an allocation that is to stop is not counted");
        assert!(provider.inspect(&slot()).await.unwrap().unwrap().is_healthy());
        nomad.bring_back_node("one");
        until("the allocation has stopped", async || statuses(&nomad) == ["complete", "running"]).await;
        expect_no_violations(&nomad);
    }
}

#[tokio::test]
async fn the_slot_of_a_bot_that_was_lost_with_its_node_is_free_for_the_next() {
    let nomad = two_nodes().await;
    let provider = provider(&nomad);
    lost(&nomad, &bot("a")).await;
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(count_of(&nomad), json!(0));
    assert_eq!(nomad.jobs()[SLOT]["Status"], "pending", "Nomad has scheduled an evaluation for tomorrow");
    assert!(!provider.inspect(&slot()).await.unwrap().unwrap().running);
    assert!(!provider.list().await.unwrap()[0].running);
    provider.start(&bot("b")).await.unwrap();
    assert_eq!(node_of_last(&nomad), "two");
    nomad.bring_back_node("one");
    until("the allocation has stopped", async || statuses(&nomad) == ["complete", "running"]).await;
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn the_slot_of_a_bot_that_was_lost_with_its_node_can_be_deleted() {
    let nomad = two_nodes().await;
    let provider = provider(&nomad);
    lost(&nomad, &bot("a")).await;
    provider.delete(&slot()).await.unwrap();
    assert_eq!(provider.inspect(&slot()).await.unwrap(), None);
    assert!(nomad.jobs().is_empty());
    provider.start(&bot("b")).await.unwrap();
    assert_eq!(node_of_last(&nomad), "two");
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_stop_ends_although_the_node_dies_meanwhile() {
    let nomad = two_nodes_with(NomadTiming { stop: Duration::from_secs(1), ..NomadTiming::default() }).await;
    let provider = provider(&nomad);
    // Nomad waits for this allocation, so the node is not down but disconnected.
    nomad.set_eligible("two", false);
    let other = Spec { slot: SlotName::stored("pool-meet-002".to_owned()), ..bot("other") };
    provider.start(&other).await.unwrap();
    provider.start(&bot("a")).await.unwrap();
    nomad.set_eligible("two", true);
    let dies = async {
        until("it is to stop", async || nomad.allocations(SLOT)[0]["DesiredStatus"] == "stop").await;
        nomad.lose_node("one");
    };
    let name = slot();
    let stops = tokio::time::timeout(Duration::from_secs(20), provider.stop(&name, true));
    let (stopped, ()) = tokio::join!(stops, dies);
    assert_eq!(stopped.expect("the stop does not wait for the node").unwrap(), Stopped::Seen);
    assert_eq!(statuses(&nomad), ["running"], "Nomad's last known status");
    assert!(!provider.inspect(&slot()).await.unwrap().unwrap().running);
    assert!(!provider.list().await.unwrap()[0].running);
    provider.start(&bot("b")).await.unwrap();
    assert_eq!(node_of_last(&nomad), "two");
    nomad.bring_back_node("one");
    until("the allocation has stopped", async || statuses(&nomad) == ["complete", "running"]).await;
    expect_no_violations(&nomad);
}

/// Nomad does this with any configuration. The documentation mentions it.
#[tokio::test]
async fn an_allocation_that_had_not_started_when_its_node_was_lost_is_placed_again_by_nomad() {
    let nomad = two_nodes_with(NomadTiming { start: Duration::from_millis(500), ..NomadTiming::default() }).await;
    let provider = provider(&nomad);
    let dies = async {
        until("it is placed", async || statuses(&nomad) == ["pending"]).await;
        nomad.lose_node("one");
    };
    let wanted = bot("a");
    let (started, ()) = tokio::join!(provider.start(&wanted), dies);
    started.unwrap();
    assert_eq!((statuses(&nomad), node_of_last(&nomad).as_str()), (vec!["lost".into(), "running".into()], "two"));
    let connections: Vec<Value> =
        nomad.allocations(SLOT).iter().map(|one| one["Job"]["Meta"]["greenroom.connection"].clone()).collect();
    assert_eq!(connections, [json!("a"), json!("a")]);
    expect_no_violations(&nomad);
}
