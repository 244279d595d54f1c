//! A node that dies, or that only Nomad does not hear of any more.

use greenroom::providers::{Provider, Stopped};

use super::{SLOT, agent, bot, count_of, expect_no_violations, provider, slot, statuses};
use crate::support::{NomadFake, NomadNode, NomadOptions, until};

async fn two_nodes() -> NomadFake {
    let nodes = vec![NomadNode::new("one"), NomadNode { memory: 30_000, ..NomadNode::new("two") }];
    NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await
}

fn node_of_last(nomad: &NomadFake) -> String {
    nomad.allocations(SLOT).last().unwrap()["NodeName"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_slot_in_which_an_agent_waits_is_warm_again_on_another_node() {
    let nomad = two_nodes().await;
    let provider = provider(&nomad);
    provider.start(&agent()).await.unwrap();
    assert_eq!(node_of_last(&nomad), "one");
    nomad.lose_node("one");
    until("the agent is up elsewhere", async || statuses(&nomad) == ["lost", "running"]).await;
    assert_eq!(node_of_last(&nomad), "two");
    // Whoever starts it once more finds it there.
    provider.start(&agent()).await.unwrap();
    assert_eq!(statuses(&nomad), ["lost", "running"]);
    nomad.lose_node("two");
    until("there is no room any more", async || statuses(&nomad) == ["lost", "lost"]).await;
    assert!(!provider.list().await.unwrap()[0].running);
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn a_bot_whose_node_falls_silent_is_never_started_twice() {
    let nomad = two_nodes().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    nomad.lose_node("one");
    until("nobody knows how it is", async || statuses(&nomad) == ["unknown"]).await;
    assert!(provider.inspect(&slot()).await.unwrap().unwrap().running, "it may be in its meeting");
    assert!(provider.list().await.unwrap()[0].running);
    nomad.bring_back_node("one");
    until("it went on", async || statuses(&nomad) == ["running"]).await;
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn the_slot_of_a_bot_that_was_lost_with_its_node_is_free_for_the_next() {
    let nomad = two_nodes().await;
    let provider = provider(&nomad);
    provider.start(&bot("a")).await.unwrap();
    nomad.lose_node("one");
    until("nobody knows how it is", async || statuses(&nomad) == ["unknown"]).await;
    assert_eq!(provider.stop(&slot(), true).await.unwrap(), Stopped::Seen);
    assert_eq!(count_of(&nomad), serde_json::json!(0));
    assert!(!provider.inspect(&slot()).await.unwrap().unwrap().running);
    assert!(!provider.list().await.unwrap()[0].running);
    provider.start(&bot("b")).await.unwrap();
    assert_eq!(node_of_last(&nomad), "two");
    nomad.bring_back_node("one");
    until("what was to stop has stopped", async || statuses(&nomad) == ["complete", "running"]).await;
    expect_no_violations(&nomad);
}
