//! The findings of the doctor about Nomad.

use greenroom::config::provider::{NomadConfig, ProviderConfig as Kind};
use greenroom::config::{Config, Sources};
use greenroom::providers::Provider;
use greenroom::providers::check::{Check, Verdict};

use super::{config, expect_no_violations, provider, with};
use crate::support::{NomadFake, NomadNode, NomadOptions, in_repository};

fn verdicts(checks: &[Check]) -> Vec<(&str, Verdict)> {
    checks.iter().map(|check| (check.what, check.verdict)).collect()
}

#[tokio::test]
async fn a_cluster_with_capacity_passes_every_check() {
    let nomad = NomadFake::start().await;
    let checks = provider(&nomad).check(16).await;
    let good = ["reachable", "token", "namespace", "nodes", "room"].map(|what| (what, Verdict::Good));
    assert_eq!(verdicts(&checks), good, "{checks:?}");
    assert!(checks[0].found.contains("led by 127.0.0.1:4647"), "{checks:?}");
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn capacity_is_counted_on_each_node_where_slots_can_run() {
    let nodes = vec![
        NomadNode::new("one"),
        NomadNode { memory: 3_999, ..NomadNode::new("small") },
        NomadNode { is_eligible: false, ..NomadNode::new("retired") },
        NomadNode { is_up: false, ..NomadNode::new("down") },
        NomadNode { drivers: Vec::new(), ..NomadNode::new("bare") },
        NomadNode { datacenter: "dc2".to_owned(), ..NomadNode::new("far") },
    ];
    let nomad = NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await;
    let provider = with(NomadConfig { datacenters: vec!["dc1".to_owned()], ..config(&nomad) }, "ours");
    // 16 by memory and by processor on the first, one on the second.
    let room = provider.check(18).await.pop().unwrap();
    assert_eq!((room.what, room.verdict), ("room", Verdict::Doubtful));
    assert!(room.found.contains("room for 17 slots") && room.found.contains("may have 18"), "{room:?}");
    assert_eq!(provider.check(17).await.pop().unwrap().verdict, Verdict::Good);
    let huge = with(NomadConfig { memory: 100_000, ..config(&nomad) }, "ours");
    assert_eq!(huge.check(1).await.pop().unwrap().verdict, Verdict::Bad);
    let nowhere = with(NomadConfig { datacenters: vec!["dc3".to_owned()], ..config(&nomad) }, "ours");
    let nodes = nowhere.check(1).await.pop().unwrap();
    assert_eq!((nodes.what, nodes.verdict), ("nodes", Verdict::Bad));
    expect_no_violations(&nomad);
}

#[tokio::test]
async fn problems_are_reported_with_nomads_messages() {
    let nomad = NomadFake::start_with(NomadOptions { may_read_nodes: false, ..NomadOptions::default() }).await;
    let checks = provider(&nomad).check(1).await;
    assert_eq!(verdicts(&checks)[3], ("nodes", Verdict::Doubtful), "slots can run without it: {checks:?}");
    assert!(checks[3].found.contains("node { policy = \"read\" }"), "{checks:?}");
    let unknown = with(NomadConfig { token: Some("nobody".to_owned().into()), ..config(&nomad) }, "ours");
    let checks = unknown.check(1).await;
    assert_eq!(verdicts(&checks), [("reachable", Verdict::Good), ("token", Verdict::Bad)]);
    assert!(checks[1].found.contains("Permission denied"));
    let options = NomadOptions { is_management: true, ..NomadOptions::default() };
    let mighty = NomadFake::start_with(options).await;
    let elsewhere = with(NomadConfig { namespace: "nowhere".to_owned(), ..config(&mighty) }, "ours");
    assert_eq!(verdicts(&elsewhere.check(1).await)[2], ("namespace", Verdict::Bad));
    let away = config(&mighty);
    drop(mighty);
    let checks = with(away, "ours").check(1).await;
    assert_eq!(verdicts(&checks), [("reachable", Verdict::Bad)]);
}

#[test]
fn the_configuration_in_the_documentation_is_valid() {
    let document = std::fs::read_to_string(in_repository("docs/how-to/nomad.md")).unwrap();
    let (_, section) = document.split_once("## Configuration\n").unwrap();
    let (_, block) = section.split_once("```toml file=greenroom.toml\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greenroom.toml");
    std::fs::write(&file, block.split_once("```").unwrap().0).unwrap();
    let config = Config::load(&Sources { file: Some(file), ..Sources::default() }).unwrap();
    let Kind::Nomad(nomad) = &config.pools[0].provider else { panic!("{:?}", config.pools[0]) };
    assert_eq!((nomad.namespace.as_str(), nomad.cpu, nomad.memory), ("bots", 1_000, 2_000));
    assert!(nomad.client_key.is_some());
}
