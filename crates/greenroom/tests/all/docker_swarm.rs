//! Tests of the private engines and swarms of the test support. If they fail, other tests fail too, without a fault of
//! the server.

use bollard::models::NodeState;

use crate::support::{PrivateEngine, Recipe, Registry, Swarm, until};

#[tokio::test]
async fn a_docker_engine_that_was_stopped_or_killed_has_its_containers_when_it_is_started_again() {
    let mut engine = PrivateEngine::start("alone").await;
    let labelled = engine.unique_label();
    let image = engine.image(&Recipe::script("trap 'exit 7' TERM; while :; do sleep 0.05; done")).await;
    let container = engine.run(&image, &labelled, &[]).await;
    engine.stop().await;
    assert!(engine.docker.ping().await.is_err());
    engine.start_again().await;
    assert_eq!(engine.exit_code(&container).await, 7);
    engine.kill().await;
    engine.start_again().await;
    assert_eq!(labelled.containers().await.len(), 1);
    assert_eq!(labelled.running().await.len(), 0);
}

#[tokio::test]
async fn a_docker_engine_that_is_frozen_answers_once_it_is_thawed() {
    let engine = PrivateEngine::start("alone").await;
    engine.freeze();
    let mut answer = Box::pin(engine.docker.ping());
    let waited = tokio::time::timeout(std::time::Duration::from_millis(300), &mut answer).await;
    assert!(waited.is_err(), "the engine has answered");
    engine.thaw();
    answer.await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_of_a_docker_engine() {
    let engine = PrivateEngine::start("alone").await;
    let labelled = engine.unique_label();
    let mark = format!("{}", uuid::Uuid::new_v4().as_u128());
    let image = engine.image(&Recipe::script(&format!("sleep {mark}"))).await;
    engine.run(&image, &labelled, &[]).await;
    let folder = engine.host.strip_prefix("unix://").unwrap().strip_suffix("/docker.sock").unwrap().to_owned();
    until("the container runs", async || processes_with(&mark) > 0).await;
    assert!(processes_with(&folder) > 0);
    drop(engine);
    drop(labelled);
    assert_eq!(processes_with(&mark), 0);
    assert_eq!(processes_with(&folder), 0);
    assert!(!std::path::Path::new(&folder).exists());
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(&folder));
}

/// How many processes of this machine have a text in their command.
fn processes_with(text: &str) -> usize {
    let commands = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = commands.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
    commands.filter(|command| String::from_utf8_lossy(command).contains(text)).count()
}

#[tokio::test]
async fn a_swarm_of_one_pulls_from_the_registry_and_runs_a_service() {
    let (swarm, registry) = (Swarm::single().await, Registry::shared());
    let labelled = swarm.manager().unique_label();
    let image = swarm.image(&Recipe::script("sleep 1000")).await;
    let name = registry.push(swarm.manager(), &image).await;
    swarm.manager().forget_image(&image).await;
    let service = swarm.serve(&name, &labelled, 1).await;
    until("its task runs", async || swarm.runs_on(&service).await == ["node-1"]).await;
    assert_eq!(labelled.services().await.len(), 1);
    assert_eq!(labelled.running().await.len(), 1);
    until("the registry has logged it", async || registry.fetches(&name) == 2).await;
    assert_eq!(registry.pulls(&name), 1);
}

#[tokio::test]
async fn a_swarm_moves_the_task_of_a_node_that_is_killed() {
    let mut swarm = Swarm::of(3).await;
    let labelled = swarm.manager().unique_label();
    let image = swarm.image(&Recipe::script("sleep 1000")).await;
    let service = swarm.serve(&image, &labelled, 3).await;
    until("there is a task on each node", async || swarm.runs_on(&service).await == ["node-1", "node-2", "node-3"])
        .await;
    swarm.node_mut("node-2").kill().await;
    until("its task runs elsewhere", async || {
        let nodes = swarm.runs_on(&service).await;
        nodes.len() == 3 && !nodes.contains(&"node-2".to_owned())
    })
    .await;
    swarm.node_mut("node-2").start_again().await;
    until("the node is back", async || swarm.state_of("node-2").await == Some(NodeState::READY)).await;
}

#[tokio::test]
async fn a_swarm_runs_a_task_twice_when_it_cannot_reach_a_node() {
    let mut swarm = Swarm::of(2).await;
    let labelled = swarm.manager().unique_label();
    let image = swarm.image(&Recipe::script("trap 'exit 0' TERM; while :; do sleep 0.05; done")).await;
    let service = swarm.serve(&image, &labelled, 2).await;
    until("there is a task on each node", async || swarm.runs_on(&service).await == ["node-1", "node-2"]).await;
    let lost = swarm.node_mut("node-2");
    lost.cut_off();
    let theirs = lost.labelled(&format!("{}={}", labelled.label().0, labelled.label().1));
    until("its task runs elsewhere", async || swarm.runs_on(&service).await == ["node-1", "node-1"]).await;
    assert_eq!(swarm.state_of("node-2").await, Some(NodeState::DOWN));
    assert_eq!(theirs.running().await.len(), 1);
    swarm.node_mut("node-2").connect_again();
    until("the node has stopped its own", async || theirs.running().await.is_empty()).await;
}
