//! A swarm of a test's own, of engines that only the test has.
//!
//! Tasks are spread, moved and restarted as in any swarm, and reach the machine at `docker_gateway()`. Overlay networks
//! carry what goes from one node to another. What needs IPVS of the kernel, the virtual address of a service and the
//! ports that a swarm publishes on every node, is there only on machines that have it.

use std::collections::HashMap;

use bollard::models::{
    Node, NodeState, ServiceSpec, ServiceSpecMode, ServiceSpecModeReplicated, SwarmInitRequest, SwarmJoinRequest,
    SwarmSpec, SwarmSpecDispatcher, Task, TaskSpec, TaskSpecContainerSpec, TaskSpecRestartPolicy, TaskState,
};
use bollard::query_parameters::{ListNodesOptions, ListTasksOptionsBuilder};
use futures_util::future::join_all;

use super::{Ours, PrivateEngine, Recipe};
use crate::support::until;

/// How often a node says that it is there, in nanoseconds. A swarm waits for a little more than two of them until it takes
/// a node for down: two seconds here, and not the twelve of its default.
const HEARTBEAT: i64 = 1_000_000_000;

#[derive(Debug)]
pub struct Swarm {
    /// The first is the only manager; it runs tasks too. They are named `node-1` and so on.
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

    /// The name of an image of this recipe, which every node has then.
    pub async fn image(&self, recipe: &Recipe) -> String {
        let names = join_all(self.nodes.iter().map(|node| node.image(recipe))).await;
        names.into_iter().next().expect("a swarm has a node")
    }

    /// The nodes as the manager sees them.
    async fn seen(&self) -> Vec<Node> {
        self.manager().docker.list_nodes(None::<ListNodesOptions>).await.unwrap()
    }

    /// How the manager sees a node.
    pub async fn state_of(&self, name: &str) -> Option<NodeState> {
        self.seen().await.iter().find(|node| name_of(node) == name).and_then(state_of)
    }

    /// The id of a new service of a test's own. Its tasks are restarted without delay.
    pub async fn serve(&self, image: &str, ours: &Ours, replicas: i64) -> String {
        let labels = Some(HashMap::from([ours.label()]));
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

    /// The tasks of a service that there are and have been.
    pub async fn tasks(&self, service: &str) -> Vec<Task> {
        let filters = HashMap::from([("service".to_owned(), vec![service.to_owned()])]);
        let options = ListTasksOptionsBuilder::new().filters(&filters).build();
        self.manager().docker.list_tasks(Some(options)).await.unwrap()
    }

    /// The names of the nodes on which tasks of a service run and are meant to, in order; one for each task.
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
