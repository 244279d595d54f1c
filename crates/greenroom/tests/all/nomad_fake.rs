//! The fake Nomad is as strict as the real one, and stricter where only a client with a bug would notice.

mod placement;
mod trouble;

use std::sync::LazyLock;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{NomadFake, NomadOperation, NomadOptions, found};

const SECOND: i64 = 1_000_000_000;

/// A request to the fake, and the answer.
struct Asked {
    status: StatusCode,
    headers: reqwest::header::HeaderMap,
    text: String,
}

impl Asked {
    fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        serde_json::from_str(&self.text).unwrap()
    }

    fn refusal(&self) -> (u16, &str) {
        (self.status.as_u16(), &self.text)
    }
}

/// Making a client is slow. It keeps no connections, because those belong to one test.
static CLIENT: LazyLock<reqwest::Client> =
    LazyLock::new(|| reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap());

async fn ask(nomad: &NomadFake, method: Method, path: &str, body: Option<&Value>) -> Asked {
    let request = CLIENT.request(method, format!("{}/v1/{path}", nomad.url()));
    let request = request.header("X-Nomad-Token", nomad.token());
    let request = if let Some(body) = body { request.json(body) } else { request };
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    Asked { status, headers, text: response.text().await.unwrap() }
}

async fn get(nomad: &NomadFake, path: &str) -> Asked {
    ask(nomad, Method::GET, path, None).await
}

async fn register(nomad: &NomadFake, job: &Value) -> Asked {
    ask(nomad, Method::POST, "jobs", Some(&json!({"Job": job}))).await
}

/// A slot as a provider would have it: no restarts on its node, moved when its node is lost, without deployments.
fn slot(id: &str, count: i64, generation: &str) -> Value {
    json!({
        "ID": id, "Name": id, "Type": "service", "Datacenters": ["dc1"], "Meta": {"greenroom": "pool"},
        "Update": {"MaxParallel": 0},
        "TaskGroups": [{
            "Name": "slot", "Count": count,
            "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 30 * SECOND, "Delay": 5 * SECOND},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": false},
            "Tasks": [{
                "Name": "bot", "Driver": "docker", "Config": {"image": "bot:1"}, "Env": {"GENERATION": generation},
                "Resources": {"CPU": 1000, "MemoryMB": 1024}, "KillTimeout": 10 * SECOND,
            }],
        }],
    })
}

/// The running allocation of a job.
async fn running(nomad: &NomadFake, job: &str) -> String {
    found("something runs", async || nomad.running(job)).await
}

/// Waits until the evaluation of a change is processed, and returns it.
async fn evaluated(nomad: &NomadFake, change: &Asked) -> Value {
    let path = format!("evaluation/{}", change.json()["EvalID"].as_str().unwrap());
    found("an evaluation is complete", async || {
        let evaluation = get(nomad, &path).await.json();
        (evaluation["Status"] == "complete").then_some(evaluation)
    })
    .await
}

#[tokio::test]
async fn a_job_that_nomad_would_refuse_is_refused_in_its_words_and_remembered() {
    let nomad = NomadFake::start().await;
    let mut refused = 0;
    let mut refuses = async |change: fn(&mut Value), message: &str| {
        let mut job = slot("a", 1, "1");
        change(&mut job);
        let answer = register(&nomad, &job).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR, "{message}");
        assert!(answer.text.contains(message), "{message:?} is not in {:?}", answer.text);
        refused += 1;
        assert_eq!(nomad.violations().len(), refused);
    };
    refuses(|job| job["ID"] = json!("a b"), "Job ID contains a space").await;
    refuses(|job| job["Type"] = json!("demon"), "Invalid job type: \"demon\"").await;
    refuses(|job| job["TaskGroups"] = json!([]), "Missing job task groups").await;
    refuses(|job| job["TaskGroups"][0]["Count"] = json!(-1), "Task group count can't be negative").await;
    refuses(|job| job["TaskGroups"][0]["Tasks"][0]["Driver"] = json!(""), "Missing task driver").await;
    let memory = "minimum MemoryMB value is 10; got 9";
    refuses(|job| job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = json!(9), memory).await;
    let processor = "minimum CPU value is 1; got 0";
    refuses(|job| job["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = json!(0), processor).await;
    let interval = "Interval can not be less than 5s (got 4s)";
    refuses(|job| job["TaskGroups"][0]["RestartPolicy"]["Interval"] = json!(4 * SECOND), interval).await;
    let mode = "Restart policy \"delay\" with 0 attempts is ambiguous";
    refuses(|job| job["TaskGroups"][0]["RestartPolicy"]["Mode"] = json!("delay"), mode).await;
    let twice = "Job task group 2 redefines 'slot' from group 1";
    refuses(|job| job["TaskGroups"].as_array_mut().unwrap().push(slot("b", 1, "1")["TaskGroups"][0].clone()), twice)
        .await;
    assert!(nomad.jobs().is_empty());
}

#[tokio::test]
async fn a_field_or_a_parameter_that_does_not_exist_is_refused_though_nomad_ignores_it() {
    let nomad = NomadFake::start().await;
    let mut job = slot("a", 1, "1");
    job["TaskGroups"][0]["Restart"] = json!({});
    let unknown = "json: unknown field \"JobRegisterRequest.Job.TaskGroups.Restart\"";
    assert_eq!(register(&nomad, &job).await.refusal(), (400, unknown));
    let mut job = slot("a", 1, "1");
    job["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = json!("10s");
    assert_eq!(register(&nomad, &job).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&nomad, "jobs?metadata=true").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&nomad, "job/a?purge=true").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&nomad, "jobs?per_page=many").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(get(&nomad, "job").await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&nomad, Method::DELETE, "jobs", None).await.refusal(), (405, "Invalid method"));
    assert_eq!(ask(&nomad, Method::POST, "jobs", None).await.refusal(), (400, "Request body is empty"));
    assert_eq!(nomad.violations().len(), 8);
}

#[tokio::test]
async fn validation_returns_the_errors_of_a_job_and_records_no_violation() {
    let nomad = NomadFake::start().await;
    let mut job = slot("a", 1, "1");
    job["TaskGroups"][0]["Tasks"][0]["Name"] = json!("alloc");
    let answer = ask(&nomad, Method::POST, "validate/job", Some(&json!({"Job": job}))).await.json();
    assert!(answer["Error"].as_str().unwrap().contains("Task cannot be named \"alloc\""));
    let good = ask(&nomad, Method::POST, "validate/job", Some(&json!({"Job": slot("a", 1, "1")}))).await.json();
    assert_eq!(good["ValidationErrors"], Value::Null);
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn without_the_token_every_request_is_refused() {
    let nomad = NomadFake::start().await;
    let client = &CLIENT;
    let jobs = format!("{}/v1/jobs", nomad.url());
    for token in [None, Some("wrong")] {
        let request = client.get(&jobs);
        let request = if let Some(token) = token { request.header("X-Nomad-Token", token) } else { request };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
        assert_eq!(answer.text().await.unwrap(), "Permission denied");
    }
    assert_eq!(client.get(&jobs).bearer_auth(nomad.token()).send().await.unwrap().status(), StatusCode::OK);
    assert_eq!(get(&nomad, "agent/self").await.refusal(), (403, "Permission denied"));
    assert_eq!(get(&nomad, "acl/token/self").await.json()["Type"], "client");
    let leader = client.get(format!("{}/v1/status/leader", nomad.url())).send().await.unwrap();
    assert_eq!(leader.status(), StatusCode::OK);
    let may = NomadFake::start_with(NomadOptions { may_read_agent: true, ..NomadOptions::default() }).await;
    assert_eq!(get(&may, "agent/self").await.json()["config"]["Region"], "global");
}

#[tokio::test]
async fn jobs_of_different_namespaces_do_not_see_each_other() {
    let namespaces = vec!["default".to_owned(), "bots".to_owned()];
    let nomad = NomadFake::start_with(NomadOptions { namespaces, ..NomadOptions::default() }).await;
    let body = json!({"Job": slot("a", 0, "1")});
    ask(&nomad, Method::POST, "jobs?namespace=bots", Some(&body)).await.json();
    assert_eq!(get(&nomad, "jobs").await.json(), json!([]));
    assert_eq!(get(&nomad, "job/a").await.refusal(), (404, "job not found"));
    assert_eq!(get(&nomad, "job/a?namespace=bots").await.json()["Namespace"], "bots");
    assert_eq!(get(&nomad, "jobs?namespace=*").await.json().as_array().unwrap().len(), 1);
    assert_eq!(get(&nomad, "namespace/bots").await.json()["Name"], "bots");
    assert_eq!(nomad.violations(), [""; 0]);
    let mut elsewhere = body.clone();
    elsewhere["Job"]["Namespace"] = json!("default");
    let mismatch = ask(&nomad, Method::POST, "jobs?namespace=bots", Some(&elsewhere)).await;
    assert!(mismatch.text.starts_with("mismatched request namespace"));
    assert_eq!(nomad.violations().len(), 1);
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_forbidden_unless_the_token_may_do_everything() {
    let nomad = NomadFake::start().await;
    assert_eq!(get(&nomad, "jobs?namespace=none").await.refusal(), (403, "Permission denied"));
    let open = NomadFake::start_with(NomadOptions { is_management: true, ..NomadOptions::default() }).await;
    assert_eq!(get(&open, "jobs?namespace=none").await.json(), json!([]));
    let answer = ask(&open, Method::POST, "jobs?namespace=none", Some(&json!({"Job": slot("a", 0, "1")}))).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text.contains("job \"a\" is in nonexistent namespace \"none\""));
}

#[tokio::test]
async fn with_check_and_set_a_job_is_registered_only_at_the_given_index() {
    let nomad = NomadFake::start().await;
    let enforce = async |index: u64, job: Value| {
        let body = json!({"Job": job, "EnforceIndex": true, "JobModifyIndex": index});
        ask(&nomad, Method::POST, "jobs", Some(&body)).await
    };
    let missing = (500, "Enforcing job modify index 5: job does not exist");
    assert_eq!(enforce(5, slot("a", 0, "1")).await.refusal(), missing);
    let first = enforce(0, slot("a", 0, "1")).await.json()["JobModifyIndex"].as_u64().unwrap();
    let exists = (500, "Enforcing job modify index 0: job already exists");
    assert_eq!(enforce(0, slot("a", 0, "2")).await.refusal(), exists);
    let second = enforce(first, slot("a", 0, "2")).await.json()["JobModifyIndex"].as_u64().unwrap();
    assert!(second > first);
    let stale = enforce(first, slot("a", 0, "3")).await;
    let message = format!("Enforcing job modify index {first}: job exists with conflicting job modify index: {second}");
    assert_eq!(stale.refusal(), (500, message.as_str()));
    assert_eq!(get(&nomad, "job/a").await.json()["JobModifyIndex"], second);
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn a_job_is_updated_under_its_own_name_only() {
    let nomad = NomadFake::start().await;
    ask(&nomad, Method::POST, "job/a", Some(&json!({"Job": slot("a", 0, "1")}))).await.json();
    ask(&nomad, Method::PUT, "job/a", Some(&json!({"Job": slot("a", 0, "2")}))).await.json();
    // A client can send back what it has read: fields about the state are ignored.
    let read = get(&nomad, "job/a").await.json();
    assert_eq!((&read["Version"], &read["TaskGroups"][0]["Count"]), (&json!(1), &json!(0)));
    ask(&nomad, Method::POST, "job/a", Some(&json!({"Job": read}))).await.json();
    assert_eq!(nomad.jobs()["a"]["Version"], 1);
    assert_eq!(nomad.violations(), [""; 0]);
    let other = ask(&nomad, Method::POST, "job/a", Some(&json!({"Job": slot("b", 0, "1")}))).await;
    assert_eq!(other.refusal(), (400, "Job ID does not match name"));
    assert_eq!(ask(&nomad, Method::POST, "jobs", Some(&json!({}))).await.refusal(), (400, "Job must be specified"));
    assert_eq!(nomad.violations().len(), 2);
}

#[tokio::test]
async fn jobs_are_listed_by_prefix_and_page_by_page_with_their_meta_on_request() {
    let nomad = NomadFake::start().await;
    for name in ["slot-a", "slot-b", "slot-c", "other"] {
        register(&nomad, &slot(name, 0, "1")).await.json();
    }
    let first = get(&nomad, "jobs?prefix=slot-&per_page=2&meta=true").await;
    let names: Vec<Value> = first.json().as_array().unwrap().iter().map(|job| job["ID"].clone()).collect();
    assert_eq!(names, ["slot-a", "slot-b"]);
    assert_eq!(first.json()[0]["Meta"], json!({"greenroom": "pool"}));
    assert!(first.headers.contains_key("X-Nomad-Index"));
    let token = first.headers["X-Nomad-NextToken"].to_str().unwrap();
    let rest = get(&nomad, &format!("jobs?prefix=slot-&per_page=2&next_token={token}")).await;
    assert_eq!(rest.json().as_array().unwrap().len(), 1);
    assert_eq!(rest.json()[0]["Meta"], Value::Null);
    assert!(!rest.headers.contains_key("X-Nomad-NextToken"));
    assert_eq!(nomad.count(NomadOperation::List), 2);
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn a_query_with_an_index_waits_until_something_changes() {
    let nomad = NomadFake::start().await;
    let index = get(&nomad, "jobs").await.headers["X-Nomad-Index"].to_str().unwrap().to_owned();
    let path = format!("jobs?index={index}&wait=60s");
    let (seen, _) = tokio::join!(get(&nomad, &path), async {
        found("the query waits", async || (nomad.count(NomadOperation::List) == 2).then_some(())).await;
        register(&nomad, &slot("a", 0, "1")).await.json();
    });
    assert_eq!(seen.json()[0]["ID"], "a");
    assert_eq!(get(&nomad, "jobs?index=100000&wait=10ms").await.json()[0]["ID"], "a");
}
