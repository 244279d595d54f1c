//! A fake Nomad that starts no processes, for tests of its HTTP clients.
//! It answers as Nomad does and refuses requests that Nomad refuses. It also refuses what Nomad would ignore, and
//! records each refusal in [`NomadFake::violations`], which a test expects to be empty. Like a real cluster, it
//! evaluates and places jobs after a delay; the delays are in [`NomadTiming`].

mod api;
mod cluster;
mod job;
mod logs;
mod lost_nodes;
mod operation;
mod scheduler;
mod schema;
mod server;
mod state;
mod text;
mod tls;
mod view;

pub use cluster::{NomadEvent, NomadTiming};
pub use operation::{NomadFault, NomadOperation};
pub use state::NomadNode;
pub use tls::NomadTls;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use cluster::Cluster;
use server::Server;
use state::{Key, NomadCall, State};
use tls::NomadCertificates;

/// The settings of the cluster.
#[derive(Clone, Debug)]
pub struct NomadOptions {
    /// The only token that the fake accepts.
    pub token: String,
    /// Whether the token may do everything. If not, it may do anything with jobs in `namespaces`, and otherwise only
    /// what the following fields allow.
    pub is_management: bool,
    pub may_read_nodes: bool,
    pub may_read_agent: bool,
    /// The namespaces that exist.
    pub namespaces: Vec<String>,
    pub nodes: Vec<NomadNode>,
    pub timing: NomadTiming,
    pub tls: NomadTls,
    /// The address to listen on. The certificate is for 127.0.0.1 only, like certificates that Nomad creates.
    pub host: &'static str,
}

impl Default for NomadOptions {
    fn default() -> Self {
        Self {
            token: text::identifier(),
            is_management: false,
            may_read_nodes: true,
            may_read_agent: false,
            namespaces: vec!["default".to_owned()],
            nodes: vec![NomadNode::new("node-1")],
            timing: NomadTiming::default(),
            tls: NomadTls::default(),
            host: "127.0.0.1",
        }
    }
}

#[derive(Debug)]
pub struct NomadFake {
    cluster: Arc<Cluster>,
    url: String,
    token: String,
    certificates: NomadCertificates,
    events: Mutex<Option<mpsc::UnboundedReceiver<NomadEvent>>>,
    serving: JoinHandle<()>,
}

impl Drop for NomadFake {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl NomadFake {
    pub async fn start() -> Self {
        Self::start_with(NomadOptions::default()).await
    }

    pub async fn start_with(options: NomadOptions) -> Self {
        let state = State {
            index: 10,
            namespaces: options.namespaces.clone(),
            nodes: options.nodes.clone(),
            ..State::default()
        };
        let (sender, events) = mpsc::unbounded_channel();
        let cluster = Cluster::new(state, options.timing, sender);
        let certificates = NomadCertificates::new();
        let acceptor = certificates.acceptor(options.tls);
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind((options.host, 0)).await.unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let token = options.token.clone();
        let server = Arc::new(Server { cluster: cluster.clone(), options });
        let serving = tokio::spawn(server.serve(listener, acceptor));
        Self { cluster, url, token, certificates, events: Mutex::new(Some(events)), serving }
    }

    /// The address of the fake, without a slash at the end and without `/v1`.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn certificates(&self) -> &NomadCertificates {
        &self.certificates
    }

    /// The events of containers. There can be only one listener.
    pub fn events(&self) -> mpsc::UnboundedReceiver<NomadEvent> {
        self.events.lock().unwrap().take().expect("there is already a listener")
    }

    /// Makes the next `count` requests of an operation fail.
    pub fn break_next(&self, operation: NomadOperation, fault: NomadFault, count: usize) {
        self.cluster.state().faults.extend(std::iter::repeat_n((operation, fault), count));
    }

    /// Removes all faults that were set.
    pub fn mend(&self) {
        self.cluster.state().faults.clear();
    }

    /// How many requests are still to fail.
    pub fn faults_left(&self) -> usize {
        self.cluster.state().faults.len()
    }

    /// Makes the next task fail to start, with this message of its driver.
    pub fn fail_next_allocation(&self, message: &str) {
        self.cluster.state().failures.push_back(message.to_owned());
    }

    /// All requests, in order. Requests that match no operation are only in [`NomadFake::violations`].
    pub fn calls(&self) -> Vec<NomadCall> {
        self.cluster.state().calls.clone()
    }

    pub fn count(&self, operation: NomadOperation) -> usize {
        self.cluster.state().calls.iter().filter(|call| call.operation == operation).count()
    }

    /// All requests that a correct client never sends.
    pub fn violations(&self) -> Vec<String> {
        self.cluster.state().violations.clone()
    }

    /// The jobs of all namespaces by name, as Nomad returns them.
    pub fn jobs(&self) -> BTreeMap<String, Value> {
        self.cluster.state().jobs.values().map(|job| (job.key.1.clone(), view::job(job))).collect()
    }

    /// All allocations of jobs with this name that were not collected, the oldest first.
    pub fn allocations(&self, job: &str) -> Vec<Value> {
        let state = self.cluster.state();
        state.allocations.iter().filter(|one| one.key.1 == job).map(view::allocation).collect()
    }

    /// The running allocation of a job.
    pub fn running(&self, job: &str) -> Option<String> {
        let state = self.cluster.state();
        let mut running = state.allocations.iter().filter(|one| one.key.1 == job && one.client == "running");
        running.next_back().map(|one| one.id.clone())
    }

    /// Sets the standard output of the task of a job.
    pub fn set_logs(&self, job: &str, text: &str) {
        self.set_stream(job, 0, text);
    }

    /// Sets the standard error of the task of a job.
    pub fn set_error_logs(&self, job: &str, text: &str) {
        self.set_stream(job, 1, text);
    }

    fn set_stream(&self, job: &str, stream: usize, text: &str) {
        let mut state = self.cluster.state();
        let key = find(&state, job);
        state.logs.entry(key).or_default()[stream] = text.to_owned();
    }

    /// Runs the garbage collector on everything that has ended, however recently.
    pub fn collect_garbage(&self) {
        self.cluster.state().collect();
        self.cluster.announce();
    }

    /// Purges a job, as another person would.
    pub fn purge(&self, job: &str) {
        let mut state = self.cluster.state();
        let key = find(&state, job);
        state.jobs.remove(&key);
        let evaluation = state.evaluate(&key, "job-deregister");
        drop(state);
        self.cluster.announce();
        self.cluster.process_later(evaluation);
    }

    /// Ends the process in an allocation. For a service, this is a failure with any exit code.
    pub async fn end_allocation(&self, allocation: &str, exit_code: i64) {
        self.cluster.end_and_maybe_restart(allocation, cluster::terminated(exit_code)).await;
    }

    /// Makes an allocation fail on its node.
    pub async fn fail_allocation(&self, allocation: &str, message: &str) {
        let event = json!({"Type": "Driver Failure", "DisplayMessage": message, "DriverError": message});
        self.cluster.end_and_maybe_restart(allocation, event).await;
    }

    /// Disconnects a node. If an allocation on it is configured to survive this, Nomad waits for the node. Otherwise
    /// the node is down: its allocations are lost, and are placed elsewhere if there is capacity.
    pub fn lose_node(&self, name: &str) {
        let state = self.cluster.state();
        let node = state.nodes.iter().find(|node| node.name == name).expect("a node of this name exists").id.clone();
        let is_waiting = |one: &state::Allocation| one.node == node && one.desired == "run" && one.lost_after() > 0;
        let is_awaited = state.allocations.iter().any(|one| is_waiting(one) && !one.has_ended());
        drop(state);
        self.change_node(name, |node| (node.is_up, node.is_awaited) = (false, is_awaited));
    }

    /// Reconnects a node.
    pub fn bring_back_node(&self, name: &str) {
        self.change_node(name, |node| node.is_up = true);
    }

    /// Moves an allocation, as if somebody stopped it, drained its node, or started a job with a higher priority.
    pub fn move_allocation(&self, allocation: &str) {
        self.cluster.move_away(allocation).expect("an allocation of this name exists");
    }

    pub fn set_eligible(&self, name: &str, is_eligible: bool) {
        self.change_node(name, |node| node.is_eligible = is_eligible);
    }

    pub fn add_node(&self, node: NomadNode) {
        self.cluster.state().nodes.push(node);
        self.cluster.unblock();
    }

    fn change_node(&self, name: &str, change: impl FnOnce(&mut NomadNode)) {
        let mut state = self.cluster.state();
        let node = state.nodes.iter_mut().find(|node| node.name == name).expect("a node of this name exists");
        change(node);
        let id = node.id.clone();
        drop(state);
        self.cluster.node_changed(&id);
    }

    /// Registers a job of somebody else, without checks.
    pub fn add_job(&self, namespace: &str, job: &Value) {
        let key = (namespace.to_owned(), job["ID"].as_str().expect("a job has an ID").to_owned());
        let mut state = self.cluster.state();
        state.upsert(&key, job::canonical(job, namespace));
        let evaluation = state.evaluate(&key, "job-register");
        drop(state);
        self.cluster.announce();
        self.cluster.process_later(evaluation);
    }
}

/// Finds a job by its name in any namespace, also a purged one.
fn find(state: &State, job: &str) -> Key {
    let known = state.jobs.keys().chain(state.allocations.iter().map(|one| &one.key));
    known.into_iter().find(|key| key.1 == job).cloned().unwrap_or_else(|| ("default".to_owned(), job.to_owned()))
}
