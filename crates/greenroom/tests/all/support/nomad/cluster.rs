//! The cluster over time: evaluations are processed after a delay, and nodes start and end tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::job::{driver_refusal, list, number, text};
use super::scheduler::{Order, process};
use super::state::{Allocation, Key, State};
use super::text::{duration, nanoseconds};

/// The delay of each action that does not happen at once.
#[derive(Clone, Copy, Debug)]
pub struct NomadTiming {
    /// Until an evaluation is processed.
    pub evaluation: Duration,
    /// Until the task of a new allocation runs, or fails.
    pub start: Duration,
    /// Until a stopped allocation has ended.
    pub stop: Duration,
    /// Until a running allocation counts as healthy, which ends its deployment.
    pub healthy: Duration,
    /// Until a task restarts on its node.
    pub restart: Duration,
    /// Until a failed allocation is placed again.
    pub reschedule: Duration,
}

impl Default for NomadTiming {
    fn default() -> Self {
        let [short, long] = [2, 20].map(Duration::from_millis);
        Self { evaluation: short, start: short, stop: short, healthy: long, restart: short, reschedule: long }
    }
}

/// An event of a container, for a test that plays its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NomadEvent {
    Started { job: String, allocation: String, environment: BTreeMap<String, String> },
    Stopped { job: String, allocation: String },
}

#[derive(Debug)]
pub struct Cluster {
    state: Mutex<State>,
    pub timing: NomadTiming,
    /// The index of the cluster, for blocking queries.
    pub changes: watch::Sender<u64>,
    events: mpsc::UnboundedSender<NomadEvent>,
}

impl Cluster {
    pub fn new(state: State, timing: NomadTiming, events: mpsc::UnboundedSender<NomadEvent>) -> Arc<Self> {
        let changes = watch::Sender::new(state.index);
        Arc::new(Self { state: Mutex::new(state), timing, changes, events })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Wakes all blocking queries.
    pub fn announce(&self) {
        let index = self.state().index;
        self.changes.send_replace(index);
    }

    /// Processes an evaluation after a delay.
    pub fn process_later(self: &Arc<Self>, evaluation: String) {
        let cluster = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(cluster.timing.evaluation).await;
            let orders = process(&mut cluster.state(), &evaluation);
            cluster.announce();
            orders.into_iter().for_each(|order| cluster.follow(order));
        });
    }

    /// Evaluates all jobs again that wait for capacity.
    pub fn unblock(self: &Arc<Self>) {
        let mut state = self.state();
        let blocked = state.evaluations.iter_mut().filter(|evaluation| evaluation.status == "blocked");
        let freed: Vec<String> = blocked
            .map(|evaluation| {
                evaluation.status = "pending";
                evaluation.id.clone()
            })
            .collect();
        drop(state);
        freed.into_iter().for_each(|evaluation| self.process_later(evaluation));
    }

    fn follow(self: &Arc<Self>, order: Order) {
        let cluster = self.clone();
        tokio::spawn(async move {
            match order {
                Order::Start(allocation) => cluster.start(&allocation).await,
                Order::Stop(allocation) => {
                    tokio::time::sleep(cluster.timing.stop).await;
                    cluster.stop(&allocation);
                }
                Order::Watch(allocation) => cluster.watch(&allocation).await,
            }
        });
    }

    async fn start(self: &Arc<Self>, id: &str) {
        // An allocation that replaces another one waits until that one has ended. An allocation that replaces nothing
        // does not wait, even while an unwanted one still runs.
        let mut changes = self.changes.subscribe();
        let _ = changes.wait_for(|_| !self.is_preceded(id)).await;
        tokio::time::sleep(self.timing.start).await;
        loop {
            let why_not = {
                let mut state = self.state();
                let index = state.next_index();
                let refused = state.allocation(id).and_then(|one| tasks_of(one).iter().find_map(driver_refusal));
                let why_not = refused.or_else(|| state.failures.pop_front());
                let Some(one) = state.allocation(id).filter(|one| !one.is_over()) else { return };
                one.modified = index;
                one.modified_at = nanoseconds();
                if why_not.is_none() {
                    set_running(one);
                }
                state.settle();
                why_not
            };
            let Some(message) = why_not else { break };
            let event = json!({"Type": "Driver Failure", "DisplayMessage": message, "DriverError": message,
                               "Details": {"driver_error": message}});
            if !self.end(id, event).await {
                return;
            }
        }
        let started = self.state().allocation(id).map(|one| NomadEvent::Started {
            job: one.key.1.clone(),
            allocation: one.id.clone(),
            environment: one.environment(),
        });
        self.announce();
        started.into_iter().for_each(|event| drop(self.events.send(event)));
        self.watch(id).await;
    }

    fn is_preceded(&self, id: &str) -> bool {
        let mut state = self.state();
        let previous = state.allocation(id).map(|one| one.previous.clone()).unwrap_or_default();
        state.allocation(&previous).is_some_and(|one| !one.has_ended())
    }

    /// Waits until an allocation is healthy, which ends its deployment.
    async fn watch(&self, id: &str) {
        tokio::time::sleep(self.timing.healthy).await;
        let mut state = self.state();
        let index = state.next_index();
        let Some(one) = state.allocation(id).filter(|one| one.client == "running" && !one.deployment.is_empty()) else {
            return;
        };
        one.healthy = Some(true);
        one.modified = index;
        let (deployment, key) = (one.deployment.clone(), one.key.clone());
        let wanted: i64 = state
            .jobs
            .get(&key)
            .map_or(0, |job| list(&job.spec, "TaskGroups").iter().map(|group| number(group, "Count")).sum());
        let healthy = state.allocations.iter().filter(|one| one.deployment == deployment && one.healthy == Some(true));
        if i64::try_from(healthy.count()).is_ok_and(|healthy| healthy >= wanted) {
            state.deployments.iter_mut().filter(|one| one.id == deployment).for_each(|one| one.is_active = false);
        }
        state.settle();
        drop(state);
        self.announce();
    }

    fn stop(self: &Arc<Self>, id: &str) {
        let mut state = self.state();
        let index = state.next_index();
        // A node that does not answer receives nothing either.
        let down: Vec<String> = state.nodes.iter().filter(|node| !node.is_up).map(|node| node.id.clone()).collect();
        let ends = |one: &&mut Allocation| !one.has_ended() && !down.contains(&one.node);
        let Some(one) = state.allocation(id).filter(ends) else { return };
        let timeout = tasks_of(one).first().map_or(0, |task| number(task, "KillTimeout"));
        let had_started = one.client == "running";
        one.client = "complete";
        one.client_description = "All tasks have completed";
        one.modified = index;
        one.modified_at = nanoseconds();
        let killing = format!("Sent interrupt. Waiting {} before force killing", duration(timeout));
        for task in one.tasks.values_mut() {
            task.state = "dead";
            task.finished = Some(nanoseconds());
            task.events.push(event(json!({"Type": "Killing", "DisplayMessage": killing})));
            if had_started {
                task.events.push(terminated(0));
            }
            task.events.push(event(json!({"Type": "Killed", "DisplayMessage": "Task successfully killed"})));
        }
        let stopped = NomadEvent::Stopped { job: one.key.1.clone(), allocation: one.id.clone() };
        state.settle();
        drop(state);
        self.announce();
        if had_started {
            let _ = self.events.send(stopped);
        }
        self.unblock();
    }

    /// Ends the tasks of an allocation, which ended by themselves or never started. Depending on its policies, they
    /// restart or the allocation fails. For a service, the exit code makes no difference. Returns true if the tasks are
    /// to restart.
    pub async fn end(self: &Arc<Self>, id: &str, how: Value) -> bool {
        let restarts = {
            let mut state = self.state();
            let index = state.next_index();
            let Some(one) = state.allocation(id).filter(|one| !one.is_over()) else { return false };
            let policy = tasks_of(one).first().map(|task| task["RestartPolicy"].clone()).unwrap_or_default();
            one.modified = index;
            one.modified_at = nanoseconds();
            let restarts = end_tasks(one, &policy, how);
            let stopped = NomadEvent::Stopped { job: one.key.1.clone(), allocation: one.id.clone() };
            let had_started = one.tasks.values().any(|task| task.started.is_some());
            state.settle();
            if had_started {
                let _ = self.events.send(stopped);
            }
            restarts
        };
        self.announce();
        if restarts {
            tokio::time::sleep(self.timing.restart).await;
            return true;
        }
        self.reschedule_later(id);
        self.unblock();
        false
    }

    /// Ends the tasks of an allocation, and restarts them on the same node if the policy says so.
    pub async fn end_and_maybe_restart(self: &Arc<Self>, id: &str, how: Value) {
        if self.end(id, how).await {
            self.follow(Order::Start(id.to_owned()));
        }
    }

    fn reschedule_later(self: &Arc<Self>, id: &str) {
        let mut state = self.state();
        let Some(one) = state.allocation(id).filter(|one| one.client == "failed" && one.desired == "run") else {
            return;
        };
        let (key, group, done) = (one.key.clone(), one.group.clone(), one.reschedules);
        let policy = state.jobs.get(&key).and_then(|job| job.group(&group)).map(|group| &group["ReschedulePolicy"]);
        let is_eligible =
            policy.is_some_and(|policy| policy["Unlimited"] == json!(true) || number(policy, "Attempts") > done);
        if !is_eligible {
            return;
        }
        let evaluation = state.evaluate(&key, "alloc-failure");
        drop(state);
        let (cluster, id) = (self.clone(), id.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(cluster.timing.reschedule).await;
            if let Some(one) = cluster.state().allocation(&id) {
                one.is_due = true;
            }
            cluster.process_later(evaluation);
        });
    }

    /// Stops an allocation so that its job gets another one.
    pub fn move_away(self: &Arc<Self>, id: &str) -> Option<String> {
        let mut state = self.state();
        let one = state.allocation(id)?;
        one.is_leaving = true;
        let key = one.key.clone();
        let evaluation = state.evaluate(&key, "alloc-stop");
        drop(state);
        self.process_later(evaluation.clone());
        Some(evaluation)
    }

    /// Evaluates all jobs with an allocation on a node, because the node changed.
    pub fn node_changed(self: &Arc<Self>, node: &str) {
        let mut state = self.state();
        let mut keys: Vec<Key> = state
            .allocations
            .iter()
            .filter(|one| one.node == node && !one.has_ended())
            .map(|one| one.key.clone())
            .collect();
        keys.sort();
        keys.dedup();
        let evaluations: Vec<String> = keys.iter().map(|key| state.evaluate(key, "node-update")).collect();
        drop(state);
        self.announce();
        evaluations.into_iter().for_each(|evaluation| self.process_later(evaluation));
        self.unblock();
    }
}

fn tasks_of(one: &Allocation) -> &[Value] {
    let group = list(&one.spec, "TaskGroups").iter().find(|group| text(group, "Name") == one.group);
    group.map_or(&[], |group| list(group, "Tasks"))
}

fn set_running(one: &mut Allocation) {
    one.client = "running";
    one.client_description = "Tasks are running";
    for task in one.tasks.values_mut() {
        task.state = "running";
        task.started = Some(nanoseconds());
        task.events.push(event(json!({"Type": "Task Setup", "Message": "Building Task Directory",
                                      "DisplayMessage": "Building Task Directory"})));
        task.events.push(event(json!({"Type": "Started", "DisplayMessage": "Task started by client"})));
    }
}

/// Whether the tasks are to restart. Without any attempts left, the allocation has failed.
fn end_tasks(one: &mut Allocation, policy: &Value, how: Value) -> bool {
    let attempts = number(policy, "Attempts");
    let interval = duration(number(policy, "Interval"));
    let done = one.tasks.values().map(|task| task.restarts).max().unwrap_or_default();
    let restarts = i64::try_from(done).is_ok_and(|done| done < attempts) || text(policy, "Mode") == "delay";
    let reason = match attempts {
        0 => "Policy allows no restarts".to_owned(),
        attempts => format!("Exceeded allowed attempts {attempts} in interval {interval} and mode is \"fail\""),
    };
    for task in one.tasks.values_mut() {
        task.events.push(event(how.clone()));
        if restarts {
            let message = format!("Task restarting in {}", duration(number(policy, "Delay")));
            task.restarts += 1;
            task.state = "pending";
            task.events.push(event(json!({"Type": "Restarting", "DisplayMessage": message})));
        } else {
            task.state = "dead";
            task.failed = true;
            task.finished = Some(nanoseconds());
            task.events.push(event(json!({"Type": "Not Restarting", "DisplayMessage": reason, "FailsTask": true,
                                          "RestartReason": reason,
                                          "Details": {"restart_reason": reason, "fails_task": "true"}})));
        }
    }
    (one.client, one.client_description) =
        if restarts { ("pending", "No tasks have started") } else { ("failed", "Failed tasks") };
    restarts
}

pub fn terminated(exit_code: i64) -> Value {
    event(json!({"Type": "Terminated", "DisplayMessage": format!("Exit Code: {exit_code}"), "ExitCode": exit_code,
                 "Details": {"exit_code": exit_code.to_string(), "signal": "0"}}))
}

/// An event of a task, with the fields that every event has.
fn event(own: Value) -> Value {
    let mut whole = json!({"Time": nanoseconds(), "Message": "", "DisplayMessage": "", "Details": {}, "ExitCode": 0,
                           "Signal": 0, "FailsTask": false, "DriverError": "", "RestartReason": ""});
    if let (Some(whole), Value::Object(own)) = (whole.as_object_mut(), own) {
        whole.extend(own);
    }
    whole
}
