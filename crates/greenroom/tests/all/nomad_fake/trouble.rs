//! Logs, faults on purpose, changes by others, and encrypted connections.

use std::time::{Duration, Instant};

use reqwest::{Certificate, Identity};

use super::*;
use crate::support::{NomadFault, NomadTls, until};

async fn try_get(nomad: &NomadFake, path: &str) -> Result<StatusCode, reqwest::Error> {
    let client = reqwest::Client::builder().timeout(Duration::from_millis(300)).build().unwrap();
    let request = client.get(format!("{}/v1/{path}", nomad.url())).header("X-Nomad-Token", nomad.token());
    request.send().await.map(|answer| answer.status())
}

#[tokio::test]
async fn logs_are_read_from_either_end_plain_or_in_frames() {
    let nomad = NomadFake::start().await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    let allocation = running(&nomad, "a").await;
    nomad.set_logs("a", "first\nlast\n");
    nomad.set_error_logs("a", "oops\n");
    let logs = async |query: &str| get(&nomad, &format!("client/fs/logs/{allocation}?task=bot&{query}")).await;
    assert_eq!(logs("type=stdout&plain=true").await.text, "first\nlast\n");
    assert_eq!(logs("type=stdout&plain=true&origin=end&offset=5").await.text, "last\n");
    assert_eq!(logs("type=stdout&plain=true&origin=start&offset=6").await.text, "last\n");
    assert_eq!(logs("type=stderr&plain=true").await.text, "oops\n");
    assert_eq!(logs("type=stderr").await.json()["Data"], "b29wcwo=");
    assert_eq!(nomad.violations(), [""; 0]);
    assert_eq!(logs("type=both").await.refusal(), (400, "must provide log type (stdout/stderr)"));
    assert_eq!(nomad.violations().len(), 1);
    let unknown = get(&nomad, "client/fs/logs/none?task=bot&type=stdout").await;
    assert_eq!(unknown.refusal(), (404, "Unknown allocation \"none\""));
}

#[tokio::test]
async fn logs_that_are_followed_end_with_the_task() {
    let nomad = NomadFake::start().await;
    register(&nomad, &slot("a", 1, "1")).await.json();
    let allocation = running(&nomad, "a").await;
    nomad.set_logs("a", "first\n");
    let path = format!("client/fs/logs/{allocation}?task=bot&type=stdout&plain=true&follow=true");
    let (read, ()) = tokio::join!(get(&nomad, &path), async {
        until("a reader is connected", async || nomad.count(NomadOperation::Logs) == 1).await;
        nomad.set_logs("a", "first\nlast\n");
        nomad.end_allocation(&allocation, 0).await;
    });
    assert_eq!(read.text, "first\nlast\n");
}

#[tokio::test]
async fn requests_fail_as_often_as_the_test_says() {
    let nomad = NomadFake::start().await;
    nomad.break_next(NomadOperation::List, NomadFault::NoLeader, 2);
    nomad.break_next(NomadOperation::List, NomadFault::Throttled, 1);
    nomad.break_next(NomadOperation::List, NomadFault::Hanging, 1);
    for _ in 0..2 {
        assert_eq!(get(&nomad, "jobs").await.refusal(), (500, "No cluster leader"));
    }
    assert_eq!(get(&nomad, "jobs").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(try_get(&nomad, "jobs").await.unwrap_err().is_timeout());
    assert_eq!(try_get(&nomad, "jobs").await.unwrap(), StatusCode::OK);
    nomad.break_next(NomadOperation::Read, NomadFault::Slow(Duration::from_millis(50)), 1);
    let begun = Instant::now();
    get(&nomad, "job/a").await;
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(nomad.faults_left(), 0);
    assert_eq!(nomad.count(NomadOperation::List), 5);
}

#[tokio::test]
async fn a_request_is_carried_out_even_if_its_answer_is_lost() {
    let nomad = NomadFake::start().await;
    nomad.break_next(NomadOperation::Register, NomadFault::Lost, 1);
    let request = reqwest::Client::new().post(format!("{}/v1/jobs", nomad.url()));
    let request = request.header("X-Nomad-Token", nomad.token()).json(&json!({"Job": slot("a", 1, "1")}));
    assert!(request.send().await.is_err());
    running(&nomad, "a").await;
    let call = nomad.calls().remove(0);
    assert_eq!((call.operation, call.status), (NomadOperation::Register, Some(200)));
    assert_eq!(call.body["Job"]["ID"], "a");
}

#[tokio::test]
async fn an_invalid_driver_configuration_is_accepted_and_fails_on_its_node() {
    let nomad = NomadFake::start().await;
    let mut job = slot("a", 1, "1");
    job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({"image": ""});
    register(&nomad, &job).await.json();
    assert_eq!(nomad.violations(), ["image name required for docker driver"]);
    until("it failed", async || nomad.allocations("a").iter().any(|one| one["ClientStatus"] == "failed")).await;
}

#[tokio::test]
async fn other_people_can_add_and_remove_jobs() {
    let nomad = NomadFake::start().await;
    nomad.add_job("default", &slot("theirs", 1, "1"));
    let allocation = running(&nomad, "theirs").await;
    nomad.fail_allocation(&allocation, "the disk is full").await;
    until("it failed", async || nomad.running("theirs").is_none()).await;
    nomad.purge("theirs");
    assert_eq!(get(&nomad, "job/theirs").await.status, StatusCode::NOT_FOUND);
    assert_eq!(nomad.violations(), [""; 0]);
}

#[tokio::test]
async fn a_tls_connection_needs_the_certificate_of_the_authority() {
    let nomad = NomadFake::start_with(NomadOptions { tls: NomadTls::On, ..NomadOptions::default() }).await;
    assert!(try_get(&nomad, "jobs").await.is_err());
    let authority = Certificate::from_pem(nomad.certificates().authority.as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([authority]).build().unwrap();
    let request = client.get(format!("{}/v1/jobs", nomad.url())).header("X-Nomad-Token", nomad.token());
    assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn a_mutual_tls_connection_needs_a_client_certificate() {
    let nomad = NomadFake::start_with(NomadOptions { tls: NomadTls::Mutual, ..NomadOptions::default() }).await;
    let certificates = nomad.certificates();
    let authority = Certificate::from_pem(certificates.authority.as_bytes()).unwrap();
    let builder = || reqwest::Client::builder().tls_certs_only([authority.clone()]);
    let request = |client: reqwest::Client| {
        client.get(format!("{}/v1/jobs", nomad.url())).header("X-Nomad-Token", nomad.token()).send()
    };
    assert!(request(builder().build().unwrap()).await.is_err());
    let pem = format!("{}{}", certificates.client, certificates.client_key);
    let identity = Identity::from_pem(pem.as_bytes()).unwrap();
    assert_eq!(request(builder().identity(identity).build().unwrap()).await.unwrap().status(), StatusCode::OK);
}
