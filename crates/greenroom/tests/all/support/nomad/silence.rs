//! What Nomad makes of nodes that it does not hear of any more, and of those that are back.

use std::collections::BTreeMap;

use super::scheduler::Order;
use super::state::{Evaluation, State};
use super::text::{identifier, nanoseconds};

const LOST: &str = "alloc is lost since its node is down";
const UNKNOWN: &str = "alloc is unknown since its node is disconnected";

/// What becomes of what is on nodes that are not heard of. What ran on one that is down is lost, and is to be replaced like
/// something that is not there. Where its group does not want that, nobody knows how it is until the node comes back: it
/// goes on then, or is stopped if that was decided meanwhile. What was to stop before stays as it was on a node that is
/// waited for.
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

/// To look again when a node has not been heard of for as long as what is there is waited for. Nothing takes it back: when the
/// allocation is stopped, or the job is purged, it is still pending.
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
