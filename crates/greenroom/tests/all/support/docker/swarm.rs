//! A swarm of engines that only one test uses.
//! The swarm places, moves and restarts tasks as any swarm does, and tasks reach the machine at `docker_gateway()`.
//! Overlay networks connect the nodes. A service's virtual address, and ports that a swarm publishes on every node,
//! need IPVS in the kernel, and work only on machines that have it.

use std::collections::HashMap;

use bollard::models::{
    Node, NodeState, ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, SwarmInitRequest, SwarmJoinRequest,
    SwarmSpec, SwarmSpecDispatcher, Task, TaskSpec, TaskSpecContainerSpec, TaskSpecRestartPolicy, TaskState,
};
use bollard::query_parameters::{ListNodesOptions, ListTasksOptionsBuilder};
use futures_util::future::join_all;

use super::{Labelled, PrivateEngine, Recipe};
use crate::support::until;

/// The interval of a node's heartbeats, in nanoseconds. A swarm takes a node for down after a little more than two
/// intervals: two seconds here, instead of twelve by default.
const HEARTBEAT: i64 = 1_000_000_000;

#[derive(Debug)]
pub struct Swarm {
    /// The first node is the only manager, and also runs tasks. Their names are `node-1` and so on.
    pub nodes: Vec<PrivateEngine>,
}

impl Swarm {
    pub async fn single() -> Self {
        Self::of(1).await
    }

    pub async fn of(size: usize) -> Self {
        let names: Vec<_> = (1..=size).map(|number| format!("node-{number}")).collect();
        let nodes = join_all(names.iter().map(|name| PrivateEngine::start(name))).await;
        let (manager, workers) = nodes.split_first().expect("a swarm has a node");

        let dispatcher = SwarmSpecDispatcher { heartbeat_period: Some(HEARTBEAT) };
        let init = SwarmInitRequest {
            listen_addr: Some("0.0.0.0:2377".to_owned()),
            advertise_addr: Some(manager.address()),
            spec: Some(SwarmSpec { dispatcher: Some(dispatcher), ..SwarmSpec::default() }),
            ..SwarmInitRequest::default()
        };
        manager.docker.init_swarm(init).await.unwrap();
        let token = manager.docker.inspect_swarm().await.unwrap().join_tokens.unwrap().worker;
        join_all(workers.iter().map(async |worker| {
            let join = SwarmJoinRequest {
                listen_addr: Some("0.0.0.0:2377".to_owned()),
                advertise_addr: Some(worker.address()),
                remote_addrs: Some(vec![format!("{}:2377", manager.address())]),
                join_token: token.clone(),
                ..SwarmJoinRequest::default()
            };
            worker.docker.join_swarm(join).await.unwrap();
        }))
        .await;

        let swarm = Self { nodes };
        until("all nodes are ready", async || {
            let nodes = swarm.seen().await;
            nodes.len() == size && nodes.iter().all(|node| state_of(node) == Some(NodeState::READY))
        })
        .await;
        swarm
    }

    pub fn manager(&self) -> &PrivateEngine {
        &self.nodes[0]
    }

    pub fn node_mut(&mut self, name: &str) -> &mut PrivateEngine {
        self.nodes.iter_mut().find(|node| node.name() == name).expect("a node of the swarm")
    }

    /// Builds an image of this recipe on every node, and returns its name.
    pub async fn image(&self, recipe: &Recipe) -> String {
        let names = join_all(self.nodes.iter().map(|node| node.image(recipe))).await;
        names.into_iter().next().expect("a swarm has a node")
    }

    /// The nodes in the manager's list.
    async fn seen(&self) -> Vec<Node> {
        self.manager().docker.list_nodes(None::<ListNodesOptions>).await.unwrap()
    }

    /// The state of a node in the manager's list.
    pub async fn state_of(&self, name: &str) -> Option<NodeState> {
        self.seen().await.iter().find(|node| name_of(node) == name).and_then(state_of)
    }

    /// Creates a service of this test, and returns its id. Its tasks restart without delay.
    pub async fn serve(&self, image: &str, labelled: &Labelled, replicas: i64) -> String {
        let labels = Some(HashMap::from([labelled.label()]));
        let container = TaskSpecContainerSpec {
            image: Some(image.to_owned()),
            labels: labels.clone(),
            ..TaskSpecContainerSpec::default()
        };
        let restarts = TaskSpecRestartPolicy { delay: Some(0), ..TaskSpecRestartPolicy::default() };
        let replicated = ServiceSpecModeReplicated { replicas: Some(replicas) };
        let spec = ServiceSpec {
            name: Some(uuid::Uuid::new_v4().simple().to_string()),
            labels,
            task_template: Some(TaskSpec {
                container_spec: Some(container),
                restart_policy: Some(restarts),
                ..TaskSpec::default()
            }),
            mode: Some(ServiceSpecMode { replicated: Some(replicated), ..ServiceSpecMode::default() }),
            ..ServiceSpec::default()
        };
        self.manager().docker.create_service(spec, None).await.unwrap().id.unwrap()
    }

    /// All present and past tasks of a service.
    pub async fn tasks(&self, service: &str) -> Vec<Task> {
        let filters = HashMap::from([("service".to_owned(), vec![service.to_owned()])]);
        let options = ListTasksOptionsBuilder::new().filters(&filters).build();
        self.manager().docker.list_tasks(Some(options)).await.unwrap()
    }

    /// For each task of a service that runs and should run, the name of its node, in order.
    pub async fn runs_on(&self, service: &str) -> Vec<String> {
        let nodes = self.seen().await;
        let runs = |task: &Task| {
            let state = task.status.as_ref().and_then(|status| status.state);
            state == Some(TaskState::RUNNING) && task.desired_state == Some(TaskState::RUNNING)
        };
        let tasks = self.tasks(service).await;
        let on = tasks.iter().filter(|task| runs(task)).filter_map(|task| task.node_id.as_deref());
        let node = |id: &str| nodes.iter().find(|node| node.id.as_deref() == Some(id)).expect("a node of the swarm");
        let mut names: Vec<_> = on.map(|id| name_of(node(id)).to_owned()).collect();
        names.sort();
        names
    }
}

fn name_of(node: &Node) -> &str {
    node.description.as_ref().and_then(|description| description.hostname.as_deref()).unwrap_or_default()
}

fn state_of(node: &Node) -> Option<NodeState> {
    node.status.as_ref().and_then(|status| status.state)
}
