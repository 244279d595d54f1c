//! The effects of a job: evaluations, allocations, nodes.

use std::time::Duration;

use super::*;
use crate::support::{NomadEvent, NomadNode, NomadTiming, until};

/// All allocations of a job as desired and real status, the oldest first.
fn statuses(nomad: &NomadFake, job: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    nomad.allocations(job).iter().map(|one| (text(&one["DesiredStatus"]), text(&one["ClientStatus"]))).collect()
}

async fn becomes(nomad: &NomadFake, job: &str, expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> =
        expected.iter().map(|(desired, real)| ((*desired).to_owned(), (*real).to_owned())).collect();
    until(&format!("the allocations of {job} are {expected:?}"), async || statuses(nomad, job) == expected).await;
}

fn status(nomad: &NomadFake, job: &str) -> Value {
    nomad.jobs()[job]["Status"].clone()
}

#[tokio::test]
async fn a_job_is_evaluated_placed_and_started_one_after_the_other() {
    let nomad = NomadFake::start().await;
    let mut events = nomad.events();
    let change = register(&nomad, &slot("a", 1, "1")).await;
    let evaluation = evaluated(&nomad, &change).await;
    assert_eq!(evaluation["TriggeredBy"], "job-register");
    let allocation = running(&nomad, "a").await;
    let environment = [("GENERATION".to_owned(), "1".to_owned())].into();
    let started = NomadEvent::Started { job: "a".to_owned(), allocation: allocation.clone(), environment };
    assert_eq!(events.recv().await, Some(started));
    let shown = get(&nomad, &format!("allocation/{allocation}")).await.json();
    assert_eq!(shown["TaskStates"]["bot"]["State"], "running");
    assert_eq!(shown["EvalID"], evaluation["ID"]);
    let listed = get(&nomad, "job/a/allocations").await.json();
    assert_eq!(listed[0]["ID"], allocation.as_str());
    assert_eq!(listed[0]["JobVersion"], 0);
    let id = evaluation["ID"].as_str().unwrap();
    assert_eq!(get(&nomad, &format!("evaluation/{id}/allocations")).await.json()[0]["ID"], allocation.as_str());
    assert_eq!(get(&nomad, "job/a/summary").await.json()["Summary"]["slot"]["Running"], 1);
    assert_eq!(get(&nomad, "nodes?resources=true").await.json()[0]["NodeResources"]["Memory"]["MemoryMB"], 32_768);
    assert_eq!(status(&nomad, "a"), "running");
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn a_changed_environment_replaces_what_runs_and_an_unchanged_job_leaves_it() {
    let nomad = NomadFake::start().await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    let first = running(&nomad, "a").await;
    let same = register(&nomad, &slot("a", 1, "1")).await;
    evaluated(&nomad, &same).await;
    assert_eq!(nomad.jobs()["a"]["Version"], 0);
    assert_eq!(nomad.running("a"), Some(first));
    // The answer has the index that status changes increase too, which check-and-set cannot use.
    assert!(same.json()["JobModifyIndex"].as_u64() > nomad.jobs()["a"]["JobModifyIndex"].as_u64());
    register(&nomad, &slot("a", 1, "2")).await.json();
    becomes(&nomad, "a", &[("stop", "complete"), ("run", "running")]).await;
    let shown = nomad.allocations("a");
    assert_eq!(shown[0]["DesiredDescription"], "alloc is being updated due to job update");
    assert_eq!(shown[0]["NextAllocation"], shown[1]["ID"]);
    assert_eq!(nomad.jobs()["a"]["Version"], 1);
}

#[tokio::test]
async fn a_changed_meta_replaces_what_runs_and_a_changed_policy_does_not() {
    let nomad = NomadFake::start().await;
    let mut job = slot("a", 1, "1");
    register(&nomad, &job).await.json();
    let first = running(&nomad, "a").await;
    job["TaskGroups"][0]["ReschedulePolicy"]["Delay"] = json!(60 * SECOND);
    let change = register(&nomad, &job).await;
    evaluated(&nomad, &change).await;
    assert_eq!(nomad.running("a"), Some(first));
    assert_eq!(get(&nomad, "job/a/allocations").await.json()[0]["JobVersion"], 1);
    // The meta is in the environment of every task.
    job["Meta"]["greenroom"] = json!("another");
    register(&nomad, &job).await.json();
    becomes(&nomad, "a", &[("stop", "complete"), ("run", "running")]).await;
    assert_eq!(nomad.violations(), [""; 0]);
}

/// The next event of containers: whether a container was started, and its allocation.
async fn next(events: &mut tokio::sync::mpsc::UnboundedReceiver<NomadEvent>) -> (bool, String) {
    match events.recv().await.unwrap() {
        NomadEvent::Started { allocation, .. } => (true, allocation),
        NomadEvent::Stopped { allocation, .. } => (false, allocation),
    }
}

#[tokio::test]
async fn a_replacement_starts_when_the_replaced_allocation_has_ended() {
    let timing = NomadTiming { stop: Duration::from_millis(200), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let mut events = nomad.events();
    register(&nomad, &slot("a", 1, "1")).await.json();
    let first = running(&nomad, "a").await;
    register(&nomad, &slot("a", 1, "2")).await.json();
    becomes(&nomad, "a", &[("stop", "complete"), ("run", "running")]).await;
    assert_eq!(next(&mut events).await, (true, first.clone()));
    assert_eq!(next(&mut events).await, (false, first));
    assert!(next(&mut events).await.0);
}

#[tokio::test]
async fn a_start_after_a_count_of_zero_does_not_wait_for_an_allocation_that_is_still_stopping() {
    let timing = NomadTiming { stop: Duration::from_secs(2), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    running(&nomad, "a").await;
    let change = register(&nomad, &slot("a", 0, "1")).await;
    evaluated(&nomad, &change).await;
    register(&nomad, &slot("a", 1, "2")).await.json();
    becomes(&nomad, "a", &[("stop", "running"), ("run", "running")]).await;
}

#[tokio::test]
async fn a_service_scaled_to_zero_is_dead_and_is_never_collected() {
    let nomad = NomadFake::start().await;
    let mut events = nomad.events();
    register(&nomad, &slot("a", 1, "1")).await.json();
    let allocation = running(&nomad, "a").await;
    let body = json!({"Count": 0, "Target": {"Group": "slot"}, "Message": "no more"});
    ask(&nomad, Method::POST, "job/a/scale", Some(&body)).await.json();
    becomes(&nomad, "a", &[("stop", "complete")]).await;
    events.recv().await.unwrap();
    assert_eq!(events.recv().await, Some(NomadEvent::Stopped { job: "a".to_owned(), allocation }));
    assert_eq!(status(&nomad, "a"), "dead");
    let scaled = get(&nomad, "job/a/scale").await.json();
    assert_eq!(scaled["TaskGroups"]["slot"]["Desired"], 0);
    assert_eq!(scaled["TaskGroups"]["slot"]["Events"][0]["PreviousCount"], 1);
    nomad.collect_garbage();
    assert_eq!(nomad.allocations("a"), [Value::Null; 0]);
    assert_eq!(get(&nomad, "job/a/evaluations").await.json(), json!([]));
    assert_eq!(status(&nomad, "a"), "dead");
    register(&nomad, &slot("a", 1, "2")).await.json();
    running(&nomad, "a").await;
}

#[tokio::test]
async fn a_job_that_was_stopped_is_collected_and_one_that_was_purged_is_gone_at_once() {
    let nomad = NomadFake::start().await;
    for job in ["a", "b"] {
        register(&nomad, &slot(job, 1, "1")).await.json();
        running(&nomad, job).await;
    }
    ask(&nomad, Method::DELETE, "job/a", None).await.json();
    becomes(&nomad, "a", &[("stop", "complete")]).await;
    assert_eq!(nomad.jobs()["a"]["Stop"], true);
    ask(&nomad, Method::DELETE, "job/b?purge=true", None).await.json();
    assert_eq!(get(&nomad, "job/b").await.refusal(), (404, "job not found"));
    becomes(&nomad, "b", &[("stop", "complete")]).await;
    assert_eq!(get(&nomad, "job/b/allocations").await.json()[0]["ClientStatus"], "complete");
    nomad.collect_garbage();
    assert!(nomad.jobs().is_empty());
    // To delete a missing job is no error.
    let repeated = ask(&nomad, Method::DELETE, "job/b?purge=true", None).await.json();
    assert_eq!(repeated["EvalID"], "");
}

#[tokio::test]
async fn a_placement_without_capacity_says_why_and_is_made_when_there_is_capacity() {
    let small = NomadNode { memory: 512, ..NomadNode::new("small") };
    let nomad = NomadFake::start_with(NomadOptions { nodes: vec![small], ..NomadOptions::default() }).await;
    let change = register(&nomad, &slot("a", 1, "1")).await;
    let evaluation = evaluated(&nomad, &change).await;
    let why = &evaluation["FailedTGAllocs"]["slot"];
    assert_eq!(why["NodesEvaluated"], 1);
    assert_eq!(why["DimensionExhausted"], json!({"memory": 1}));
    assert_eq!(evaluation["QueuedAllocations"]["slot"], 1);
    let blocked = get(&nomad, &format!("evaluation/{}", evaluation["BlockedEval"].as_str().unwrap())).await.json();
    assert_eq!(blocked["Status"], "blocked");
    assert_eq!(status(&nomad, "a"), "pending");
    assert_eq!(nomad.allocations("a"), [Value::Null; 0]);
    nomad.add_node(NomadNode::new("large"));
    running(&nomad, "a").await;
    nomad.set_eligible("large", false);
    assert_eq!(get(&nomad, "nodes").await.json()[1]["SchedulingEligibility"], "ineligible");
    nomad.set_eligible("large", true);
    let mut elsewhere = slot("b", 1, "1");
    elsewhere["Datacenters"] = json!(["moon"]);
    let change = register(&nomad, &elsewhere).await;
    let why = evaluated(&nomad, &change).await["FailedTGAllocs"]["slot"].clone();
    assert_eq!((&why["NodesEvaluated"], &why["NodesAvailable"]), (&json!(0), &json!({})));
    let mut other = slot("c", 1, "1");
    other["Constraints"] = json!([{"LTarget": "${attr.kernel.name}", "Operand": "=", "RTarget": "windows"}]);
    let change = register(&nomad, &other).await;
    let why = evaluated(&nomad, &change).await["FailedTGAllocs"]["slot"].clone();
    assert_eq!(why["ConstraintFiltered"], json!({"${attr.kernel.name} = windows": 2}));
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn a_task_that_does_not_start_fails_and_is_not_retried_if_its_policies_say_so() {
    let nomad = NomadFake::start().await;
    nomad.fail_next_allocation("Failed to pull `bot:1`");
    register(&nomad, &slot("a", 1, "1")).await.json();
    becomes(&nomad, "a", &[("run", "failed")]).await;
    let task = nomad.allocations("a")[0]["TaskStates"]["bot"].clone();
    assert_eq!((&task["State"], &task["Failed"]), (&json!("dead"), &json!(true)));
    let events = task["Events"].as_array().unwrap();
    let failure = events.iter().find(|event| event["Type"] == "Driver Failure").unwrap();
    assert_eq!(failure["DisplayMessage"], "Failed to pull `bot:1`");
    assert_eq!(events.last().unwrap()["DisplayMessage"], "Policy allows no restarts");
    assert_eq!(status(&nomad, "a"), "dead");
    let same = register(&nomad, &slot("a", 1, "1")).await;
    evaluated(&nomad, &same).await;
    assert_eq!(statuses(&nomad, "a").len(), 1);
    register(&nomad, &slot("a", 1, "2")).await.json();
    becomes(&nomad, "a", &[("stop", "failed"), ("run", "running")]).await;
}

#[tokio::test]
async fn a_service_that_exits_with_0_has_failed_and_restarts_after_garbage_collection_and_evaluation() {
    let nomad = NomadFake::start().await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    nomad.end_allocation(&running(&nomad, "a").await, 0).await;
    becomes(&nomad, "a", &[("run", "failed")]).await;
    nomad.collect_garbage();
    assert_eq!(nomad.allocations("a"), [Value::Null; 0]);
    register(&nomad, &slot("a", 1, "1")).await.json();
    running(&nomad, "a").await;
}

#[tokio::test]
async fn a_job_without_policies_of_its_own_is_restarted_and_then_rescheduled() {
    let nomad = NomadFake::start().await;
    let mut job = slot("a", 1, "1");
    let group = job["TaskGroups"][0].as_object_mut().unwrap();
    group.remove("RestartPolicy");
    group.remove("ReschedulePolicy");
    (0..3).for_each(|_| nomad.fail_next_allocation("no"));
    register(&nomad, &job).await.json();
    becomes(&nomad, "a", &[("stop", "failed"), ("run", "running")]).await;
    assert_eq!(nomad.allocations("a")[0]["TaskStates"]["bot"]["Restarts"], 2);
    assert_eq!(nomad.allocations("a")[0]["DesiredDescription"], "alloc was rescheduled because it failed");
}

#[tokio::test]
async fn an_allocation_on_a_lost_node_is_placed_on_another_even_without_rescheduling() {
    let nodes = vec![NomadNode::new("one"), NomadNode { memory: 2048, ..NomadNode::new("two") }];
    let nomad = NomadFake::start_with(NomadOptions { nodes, ..NomadOptions::default() }).await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    running(&nomad, "a").await;
    nomad.lose_node("one");
    becomes(&nomad, "a", &[("stop", "lost"), ("run", "running")]).await;
    assert_eq!(nomad.allocations("a")[1]["NodeName"], "two");
    nomad.lose_node("two");
    becomes(&nomad, "a", &[("stop", "lost"), ("stop", "lost")]).await;
    nomad.bring_back_node("one");
    running(&nomad, "a").await;
}

#[tokio::test]
async fn scaling_waits_for_a_deployment_unless_updates_are_without_one() {
    let timing = NomadTiming { healthy: Duration::from_millis(300), ..NomadTiming::default() };
    let nomad = NomadFake::start_with(NomadOptions { timing, ..NomadOptions::default() }).await;
    let mut job = slot("a", 1, "1");
    job.as_object_mut().unwrap().remove("Update");
    register(&nomad, &job).await.json();
    running(&nomad, "a").await;
    let body = json!({"Count": 0, "Target": {"Group": "slot"}});
    let blocked = ask(&nomad, Method::POST, "job/a/scale", Some(&body)).await;
    assert_eq!(blocked.refusal(), (400, "job scaling blocked due to active deployment"));
    until("the deployment is over", async || {
        ask(&nomad, Method::POST, "job/a/scale", Some(&body)).await.status == StatusCode::OK
    })
    .await;
    becomes(&nomad, "a", &[("stop", "complete")]).await;
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn an_allocation_that_is_stopped_by_hand_is_replaced() {
    let nomad = NomadFake::start().await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    let allocation = running(&nomad, "a").await;
    ask(&nomad, Method::POST, &format!("allocation/{allocation}/stop"), None).await.json();
    becomes(&nomad, "a", &[("stop", "complete"), ("run", "running")]).await;
    assert_eq!(get(&nomad, "allocations").await.json().as_array().unwrap().len(), 2);
}
