//! How Nomad handles nodes that stop sending heartbeats, and nodes that return.

use std::collections::BTreeMap;

use super::scheduler::Order;
use super::state::{Evaluation, State};
use super::text::{identifier, nanoseconds};

const LOST: &str = "alloc is lost since its node is down";
const UNKNOWN: &str = "alloc is unknown since its node is disconnected";

/// Updates the allocations on nodes that do not answer. On a node that is down, a running allocation is lost, and is
/// replaced like a missing one. If its group does not want that, its state is unknown until the node returns. Then it
/// continues, or stops if that was decided meanwhile. An allocation that was to stop keeps its state on a node that
/// Nomad waits for.
pub fn mark_lost(state: &mut State, evaluation: &Evaluation, orders: &mut Vec<Order>) {
    let (key, index, now) = (&evaluation.key, state.next_index(), nanoseconds());
    let statuses: BTreeMap<String, &str> = state.nodes.iter().map(|node| (node.id.clone(), node.status())).collect();
    let mut deadline = None;
    for one in state.allocations.iter_mut().filter(|one| one.key == *key && !one.has_ended()) {
        let (node, is_wanted) = (statuses.get(&one.node).copied().unwrap_or("down"), one.desired == "run");
        let is_back = node == "ready" && evaluation.trigger == "node-update" && one.client != "pending";
        let becomes = match (node, one.client) {
            ("ready", "unknown") => "running",
            ("ready", client) => client,
            ("disconnected", client) if !is_wanted => client,
            (_, "unknown") => "unknown",
            (_, "running") if is_wanted && one.waits_for_its_node() => "unknown",
            _ => "lost",
        };
        if is_back && !is_wanted {
            orders.push(Order::Stop(one.id.clone()));
        }
        if becomes == one.client {
            continue;
        }
        (one.client, one.modified, one.modified_at) = (becomes, index, now);
        match becomes {
            "unknown" => {
                one.client_description = "";
                one.desired_description = UNKNOWN.to_owned();
                deadline = Some(now + one.lost_after());
            }
            "running" => one.client_description = "Tasks are running",
            _ if is_wanted => {
                one.desired = "stop";
                one.desired_description = LOST.to_owned();
            }
            _ => {}
        }
    }
    if let Some(deadline) = deadline {
        put_off(state, evaluation, deadline);
    }
}

/// Schedules an evaluation for the time when the group stops waiting for its node. Nothing cancels it: it is still
/// pending after the allocation is stopped or the job is purged.
fn put_off(state: &mut State, evaluation: &Evaluation, deadline: i64) {
    let index = state.next_index();
    state.evaluations.push(Evaluation {
        id: identifier(),
        status: "pending",
        description: "created for delayed disconnect timeout".to_owned(),
        trigger: "max-disconnect-timeout",
        previous: evaluation.id.clone(),
        wait_until: Some(deadline),
        created: index,
        modified: index,
        at: nanoseconds(),
        ..evaluation.clone()
    });
}
