//! Faults of the fake Coolify, and what a test can observe of them.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::{FakeFixture, application_body};
use crate::support::{CoolifyCall, CoolifyFake, CoolifyFault, CoolifyOperation as Operation, until};

#[tokio::test]
async fn too_many_requests_are_refused_until_the_window_has_passed() {
    let fixture =
        FakeFixture::new(|settings| (settings.limit, settings.window) = (3, Duration::from_millis(1500))).await;
    let begun = Instant::now();
    for left in ["2", "1", "0"] {
        assert_eq!(fixture.get("version").await.headers()["X-RateLimit-Remaining"], left);
    }
    let refused = fixture.get("version").await;
    assert_eq!(refused.status(), 429);
    // The rest of the window, in whole seconds.
    let wait: u64 = refused.headers()["Retry-After"].to_str().unwrap().parse().unwrap();
    assert!([1, 2].contains(&wait), "{wait}");
    assert_eq!(fixture.coolify.throttled(), 1);
    until("it answers again", async || fixture.get("version").await.status() == 200).await;
    assert!(begun.elapsed() >= Duration::from_millis(1500));
}

#[tokio::test]
async fn a_request_can_fail_be_refused_come_late_or_lose_its_answer() {
    let fixture = FakeFixture::plain().await;
    let patience = Duration::from_millis(200);
    let create = || fixture.request(Method::POST, "applications/dockerimage").json(&application_body("bot")).send();
    fixture.coolify.break_next(Operation::Create, CoolifyFault::Fail, 1);
    assert_eq!(create().await.unwrap().status(), 500);
    fixture.coolify.break_next(Operation::Create, CoolifyFault::Throttle(7), 1);
    let refused = create().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["Retry-After"]), (429, &"7".parse().unwrap()));
    fixture.coolify.break_next(Operation::Create, CoolifyFault::Hang, 1);
    assert!(tokio::time::timeout(patience, create()).await.is_err());
    assert_eq!(fixture.coolify.applications(), []);

    fixture.coolify.break_next(Operation::Create, CoolifyFault::Lost, 2);
    assert!(create().await.is_err());
    assert!(create().await.is_err());
    assert_eq!(fixture.coolify.applications().len(), 2);
    fixture.coolify.break_next(Operation::Create, CoolifyFault::Slow(patience), 1);
    let begun = Instant::now();
    assert_eq!(create().await.unwrap().status(), 201);
    assert!(begun.elapsed() >= patience);
    assert_eq!((fixture.coolify.count(Operation::Create), fixture.coolify.throttled()), (6, 1));
    fixture.no_violations();
}

#[tokio::test]
async fn a_token_that_may_not_read_secrets_sees_no_logs_and_no_values() {
    let fixture = FakeFixture::new(|settings| settings.reads_secrets = false).await;
    let uuid = fixture.running("bot").await;
    let page = fixture.read(&format!("deployments/applications/{uuid}")).await;
    assert!(page["deployments"][0].get("logs").is_none());
    fixture.send(Method::POST, &format!("applications/{uuid}/envs"), &json!({ "key": "A", "value": "b" })).await;
    assert!(fixture.read(&format!("applications/{uuid}/envs")).await[0].get("value").is_none());
    assert!(fixture.read("applications").await[0].get("destination").is_none());
}

#[tokio::test]
async fn a_test_sees_every_call_and_may_say_what_the_status_is() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    fixture.coolify.set_status(&uuid, "degraded:unhealthy");
    fixture.coolify.break_next(Operation::ServerResources, CoolifyFault::Fail, 9);
    let path = format!("servers/{}/resources", CoolifyFake::SERVER);
    assert_eq!(fixture.get(&path).await.status(), 500);
    fixture.coolify.mend();
    assert_eq!(fixture.read(&path).await[0]["status"], "degraded:unhealthy");
    let calls: Vec<CoolifyCall> = fixture.coolify.calls();
    let calls_seen: Vec<_> = calls.iter().map(|call| (call.operation, call.method.as_str(), call.status)).collect();
    let resources = Some(Operation::ServerResources);
    assert_eq!(calls_seen, [(Some(Operation::Create), "POST", 201), (resources, "GET", 500), (resources, "GET", 200)]);
    assert_eq!(calls[2].path, format!("/api/v1/{path}"));
    assert!(calls[1].at <= calls[2].at);
}

#[tokio::test]
async fn a_refusal_may_come_from_a_proxy_or_give_no_time() {
    let fixture = FakeFixture::plain().await;
    fixture.coolify.break_next(Operation::Version, CoolifyFault::Page(404), 1);
    let page = fixture.get("version").await;
    assert_eq!(
        (page.status().as_u16(), page.headers()["Content-Type"].to_str().unwrap().contains("html")),
        (404, true)
    );
    fixture.coolify.break_next(Operation::Version, CoolifyFault::Refuse(403, "API is disabled."), 1);
    assert_eq!(fixture.read("version").await["message"], "API is disabled.");
    fixture.coolify.break_next(Operation::Version, CoolifyFault::ThrottleSilently, 1);
    assert_eq!(fixture.get("version").await.headers().get("Retry-After"), None);
    fixture.coolify.break_next(Operation::Version, CoolifyFault::ThrottleUntil(9), 1);
    let moment = fixture.get("version").await.headers()["Retry-After"].to_str().unwrap().to_owned();
    assert!(moment.ends_with("GMT"), "{moment}");
    assert_eq!(fixture.coolify.throttled(), 2);
}
