//! The fake of Coolify does what Coolify does, above all where that is not what one would expect.

use std::time::{Duration, Instant};

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    COOLIFY_TOKEN, CoolifyApplication, CoolifyCall, CoolifyEvent, CoolifyFake, CoolifyFault,
    CoolifyOperation as Operation, CoolifySettings, Dialect, until,
};

/// A Coolify, and somebody who asks it.
struct Scene {
    coolify: CoolifyFake,
    client: reqwest::Client,
}

impl Scene {
    async fn new(change: impl FnOnce(&mut CoolifySettings)) -> Self {
        let mut settings = CoolifySettings::default();
        change(&mut settings);
        Self { coolify: CoolifyFake::start(settings).await, client: reqwest::Client::new() }
    }

    async fn plain() -> Self {
        Self::new(|_| {}).await
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}/api/v1/{path}", self.coolify.url);
        self.client.request(method, url).bearer_auth(COOLIFY_TOKEN).header("Accept", "application/json")
    }

    async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    async fn read(&self, path: &str) -> Value {
        self.get(path).await.json().await.unwrap()
    }

    async fn post(&self, path: &str) -> Response {
        self.request(Method::POST, path).send().await.unwrap()
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let answer = self.request(method, path).json(body).send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    async fn create(&self, name: &str) -> String {
        let (status, answer) = self.send(Method::POST, "applications/dockerimage", &wish(name)).await;
        assert_eq!(status, 201, "{answer}");
        answer["uuid"].as_str().unwrap().to_owned()
    }

    /// Starts an application, and says what the answer was.
    async fn start(&self, uuid: &str) -> Value {
        let answer = self.post(&format!("applications/{uuid}/start")).await;
        assert_eq!(answer.status(), 200);
        answer.json().await.unwrap()
    }

    async fn until_status(&self, uuid: &str, status: &str) {
        until(status, async || self.coolify.application(uuid).is_some_and(|seen| seen.status == status)).await;
    }

    async fn running(&self, name: &str) -> String {
        let uuid = self.create(name).await;
        self.start(&uuid).await;
        self.until_status(&uuid, "running:healthy").await;
        uuid
    }

    fn seen(&self, uuid: &str) -> CoolifyApplication {
        self.coolify.application(uuid).unwrap()
    }

    fn no_violations(&self) {
        assert_eq!(self.coolify.violations(), Vec::<String>::new());
    }
}

fn wish(name: &str) -> Value {
    json!({
        "project_uuid": CoolifyFake::PROJECT,
        "server_uuid": CoolifyFake::SERVER,
        "environment_name": "production",
        "docker_registry_image_name": "images.example/greenroom/bot",
        "docker_registry_image_tag": "1",
        "name": name,
        "autogenerate_domain": false,
        "instant_deploy": false,
    })
}

#[tokio::test]
async fn only_health_is_told_without_a_token() {
    let scene = Scene::plain().await;
    let plain = |path: &str| scene.client.get(format!("{}/api/v1/{path}", scene.coolify.url)).send();
    assert_eq!(plain("health").await.unwrap().text().await.unwrap(), "OK");
    assert_eq!(plain("version").await.unwrap().status(), 401);
    assert_eq!(scene.get("version").await.text().await.unwrap(), "4.3.11");
}

#[tokio::test]
async fn since_4_2_things_are_started_by_post_alone() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    for path in [format!("applications/{uuid}/start"), format!("deploy?uuid={uuid}")] {
        let answer = scene.get(&path).await;
        assert_eq!((answer.status().as_u16(), &answer.headers()["Allow"]), (405, &"POST".parse().unwrap()));
        assert_eq!(scene.post(&path).await.status(), 200);
    }
    scene.no_violations();
}

#[tokio::test]
async fn before_4_2_things_are_started_by_get() {
    let scene = Scene::new(|settings| settings.dialect = Dialect::Gets).await;
    let uuid = scene.create("bot").await;
    let path = format!("applications/{uuid}/stop");
    let answer = scene.post(&path).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["Allow"]), (405, &"GET, HEAD".parse().unwrap()));
    assert_eq!(scene.get(&path).await.status(), 200);
    let both = Scene::new(|settings| settings.dialect = Dialect::Both).await;
    let path = format!("applications/{}/start", both.create("bot").await);
    assert_eq!([both.get(&path).await.status(), both.post(&path).await.status()], [200, 200]);
}

#[tokio::test]
async fn what_the_specification_does_not_have_is_refused_and_written_down() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    let path = format!("applications/{uuid}");
    let refused = [
        scene.send(Method::PATCH, &path, &json!({ "environment_variables": [] })).await,
        scene.send(Method::PATCH, &path, &json!({ "project_uuid": CoolifyFake::PROJECT })).await,
        scene.send(Method::PATCH, &path, &json!({ "health_check_enabled": "no" })).await,
        scene.send(Method::PATCH, &path, &json!({ "name": "" })).await,
        scene.send(Method::POST, &format!("{path}/envs"), &json!({ "key": "not a key" })).await,
        scene.send(Method::POST, "applications/dockerimage", &json!({ "name": "bot" })).await,
    ];
    for (number, (status, answer)) in refused.iter().enumerate() {
        assert_eq!(status.as_u16(), 422, "{answer}");
        assert!(answer["errors"].as_object().is_some_and(|errors| !errors.is_empty()), "{answer}");
        assert!(scene.coolify.violations().len() > number);
    }
    assert_eq!(refused[0].1["errors"], json!({ "environment_variables": ["This field is not allowed."] }));
    assert_eq!(refused[5].1["errors"]["server_uuid"], json!(["This field is required."]));

    let before = scene.coolify.violations().len();
    let plain = scene.request(Method::PATCH, &path).body(r#"{"name":"bot"}"#).send().await.unwrap();
    assert_eq!(plain.status(), 400);
    assert_eq!(scene.get("applications?page=1").await.status(), 200);
    assert_eq!(scene.get(&format!("deployments/applications/{uuid}?take=0")).await.status(), 422);
    assert_eq!(scene.post(&format!("{path}/deploy")).await.status(), 404);
    assert_eq!(scene.coolify.violations().len(), before + 4);
}

#[tokio::test]
async fn an_application_needs_a_project_an_environment_and_a_server_that_are_there() {
    let scene = Scene::plain().await;
    for (field, message) in [
        ("project_uuid", "Project not found."),
        ("environment_name", "Environment not found."),
        ("server_uuid", "Server not found."),
    ] {
        let mut body = wish("bot");
        body[field] = "unknown".into();
        let (status, answer) = scene.send(Method::POST, "applications/dockerimage", &body).await;
        assert_eq!((status.as_u16(), &answer["message"]), (404, &json!(message)));
    }
    let mut body = wish("bot");
    body.as_object_mut().unwrap().remove("environment_name");
    assert_eq!(scene.send(Method::POST, "applications/dockerimage", &body).await.0, 422);
    body["environment_uuid"] = CoolifyFake::ENVIRONMENT.into();
    assert_eq!(scene.send(Method::POST, "applications/dockerimage", &body).await.0, 201);
    scene.no_violations();
}

#[tokio::test]
async fn two_creations_with_one_name_make_two_applications() {
    let scene = Scene::plain().await;
    assert_ne!(scene.create("bot").await, scene.create("bot").await);
    let foreign = scene.coolify.add_foreign("database", true);
    let all = scene.read("applications").await;
    assert_eq!(all.as_array().unwrap().len(), 3);
    let ours = scene.read(&format!("projects/{}/production", CoolifyFake::PROJECT)).await;
    assert_eq!(ours["applications"].as_array().unwrap().len(), 2);
    assert_eq!(ours["id"], CoolifyFake::ENVIRONMENT_ID);
    scene.coolify.remove(&foreign);
    assert_eq!(scene.get(&format!("applications/{foreign}")).await.status(), 404);
}

#[tokio::test]
async fn an_application_gets_a_domain_unless_it_is_told_not_to() {
    let scene = Scene::plain().await;
    let mut body = wish("bot");
    body.as_object_mut().unwrap().remove("autogenerate_domain");
    let (_, answer) = scene.send(Method::POST, "applications/dockerimage", &body).await;
    let public = scene.coolify.application(answer["uuid"].as_str().unwrap()).unwrap();
    assert!(public.domains.is_some());
    assert_eq!(answer["domains"], json!(public.domains));
    let private = scene.create("bot").await;
    assert_eq!(scene.seen(&private).domains, None);
}

#[tokio::test]
async fn a_start_is_a_deployment_that_pulls_and_then_runs() {
    let scene = Scene::plain().await;
    let mut events = scene.coolify.events();
    let uuid = scene.create("bot").await;
    assert_eq!(scene.read(&format!("applications/{uuid}")).await["status"], "exited");
    let variable = json!({ "key": "GREENROOM_SLOT", "value": " bot-1 ", "is_literal": true });
    assert_eq!(scene.send(Method::POST, &format!("applications/{uuid}/envs"), &variable).await.0, 201);
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    let CoolifyEvent::Started { name, envs, container, .. } = events.recv().await.unwrap() else {
        panic!("it starts first")
    };
    assert_eq!((name.as_str(), envs["GREENROOM_SLOT"].as_str()), ("bot", "bot-1"));
    scene.until_status(&uuid, "running:healthy").await;
    let deployment = scene.read(&format!("deployments/{deployment}")).await;
    assert_eq!(deployment["status"], "finished");
    let lines: Vec<Value> = serde_json::from_str(deployment["logs"].as_str().unwrap()).unwrap();
    assert_eq!(lines[1]["output"], "Pulling latest images from the registry.");
    let page = scene.read(&format!("deployments/applications/{uuid}?skip=0&take=1")).await;
    assert_eq!((&page["count"], &page["deployments"][0]["status"]), (&json!(1), &json!("finished")));
    assert_eq!(scene.coolify.pulls(), ["images.example/greenroom/bot:1"]);

    scene.start(&uuid).await;
    let CoolifyEvent::Started { container: next, .. } = events.recv().await.unwrap() else {
        panic!("the new one starts before the old one is stopped")
    };
    assert_ne!(next, container);
    assert_eq!(events.recv().await.unwrap(), CoolifyEvent::Stopped { uuid, container });
    scene.no_violations();
}

#[tokio::test]
async fn a_start_while_one_is_under_way_has_no_deployment_of_its_own() {
    let scene = Scene::plain().await;
    scene.coolify.hold_deployments(true);
    let uuid = scene.create("bot").await;
    assert!(scene.start(&uuid).await["deployment_uuid"].is_string());
    assert_eq!(scene.start(&uuid).await, json!({ "message": "Deployment already queued for this commit." }));
    assert_eq!(scene.read("deployments").await.as_array().unwrap().len(), 1);
    assert_eq!(scene.coolify.deployments(), ["in_progress"]);
}

#[tokio::test]
async fn a_full_queue_answers_with_a_deployment_that_does_not_exist() {
    let scene = Scene::new(|settings| settings.queue = 1).await;
    scene.coolify.hold_deployments(true);
    for name in ["a", "b", "c"] {
        let uuid = scene.create(name).await;
        scene.start(&uuid).await;
    }
    assert_eq!(scene.coolify.deployments(), ["in_progress", "in_progress", "queued"]);
    let uuid = scene.create("d").await;
    let answer = scene.start(&uuid).await;
    let phantom = answer["deployment_uuid"].as_str().unwrap();
    assert_eq!(scene.get(&format!("deployments/{phantom}")).await.status(), 404);
    let told = scene.post(&format!("deploy?uuid={uuid}")).await;
    assert_eq!((told.status().as_u16(), &told.headers()["Retry-After"]), (429, &"60".parse().unwrap()));
    assert_eq!(scene.coolify.most_deployments_at_once(), 3);
    scene.coolify.hold_deployments(false);
    until("all have run", async || scene.coolify.deployments() == ["finished"; 3]).await;
}

#[tokio::test]
async fn a_deployment_can_fail_and_can_be_cancelled() {
    let scene = Scene::plain().await;
    scene.coolify.fail_next_deployment(&["manifest unknown"]);
    let uuid = scene.create("bot").await;
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    until("it has failed", async || scene.coolify.deployments() == ["failed"]).await;
    let failed = scene.read(&format!("deployments/{deployment}")).await;
    assert!(failed["logs"].as_str().unwrap().contains("manifest unknown"));
    assert_eq!(scene.seen(&uuid).status, "exited");

    scene.coolify.hold_deployments(true);
    let deployment = scene.start(&uuid).await["deployment_uuid"].as_str().unwrap().to_owned();
    assert_eq!(scene.seen(&uuid).status, "starting:unknown");
    let cancel = format!("deployments/{deployment}/cancel");
    let cancelled: Value = scene.post(&cancel).await.json().await.unwrap();
    assert_eq!(cancelled["status"], "cancelled-by-user");
    assert_eq!(scene.post(&cancel).await.status(), 400);
    assert_eq!(scene.seen(&uuid).status, "exited");
}

#[tokio::test]
async fn coolifys_own_health_check_fails_a_container_that_serves_nothing() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    let path = format!("applications/{uuid}");
    scene.send(Method::PATCH, &path, &json!({ "health_check_enabled": true })).await;
    scene.start(&uuid).await;
    until("it has failed", async || scene.coolify.deployments() == ["failed"]).await;
    assert_eq!(scene.seen(&uuid).status, "exited");
    scene.no_violations();
}

#[tokio::test]
async fn a_stop_takes_its_time_and_throws_images_away_unless_told_not_to() {
    let scene = Scene::new(|settings| settings.stop = Duration::from_millis(300)).await;
    let uuid = scene.running("bot").await;
    let logs = format!("applications/{uuid}/logs?lines=1");
    assert_eq!(scene.read(&logs).await["logs"], "waiting for work");
    scene.post(&format!("applications/{uuid}/stop?docker_cleanup=false")).await;
    assert_eq!(scene.seen(&uuid).status, "running:healthy");
    scene.until_status(&uuid, "exited").await;
    assert_eq!(scene.coolify.prunes(), 0);
    let answer = scene.get(&logs).await;
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.json::<Value>().await.unwrap()["message"], "Application is not running.");
    scene.post(&format!("applications/{uuid}/stop")).await;
    until("images are gone", async || scene.coolify.prunes() == 1).await;
    scene.no_violations();
}

#[tokio::test]
async fn a_deleted_application_is_listed_for_a_while() {
    let scene = Scene::new(|settings| settings.delete = Duration::from_millis(300)).await;
    let uuid = scene.running("bot").await;
    let path = format!("applications/{uuid}");
    let answer = scene.request(Method::DELETE, &format!("{path}?docker_cleanup=false&delete_volumes=true")).send();
    assert_eq!(answer.await.unwrap().status(), 200);
    assert_eq!(scene.get(&path).await.status(), 200);
    until("it is gone", async || scene.get(&path).await.status() == 404).await;
    assert_eq!(scene.coolify.prunes(), 0);
    scene.no_violations();
}

#[tokio::test]
async fn variables_are_made_once_and_changed_afterwards() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    let path = format!("applications/{uuid}/envs");
    let variable = json!({ "key": "TOKEN", "value": "one" });
    assert_eq!(scene.send(Method::POST, &path, &variable).await.0, 201);
    assert_eq!(scene.send(Method::POST, &path, &variable).await.0, 409);
    let bulk = json!({ "data": [{ "key": "TOKEN", "value": "two" }, { "key": "EMPTY", "value": "" }] });
    let (status, answer) = scene.send(Method::PATCH, &format!("{path}/bulk"), &bulk).await;
    assert_eq!((status.as_u16(), answer.as_array().unwrap().len()), (201, 2));
    let listed = scene.read(&path).await;
    let shown: Vec<_> = listed.as_array().unwrap().iter().map(|one| (&one["key"], &one["is_preview"])).collect();
    let own = |key| (json!(key), json!(false));
    assert_eq!(shown.len(), 4, "each has a twin for previews");
    assert_eq!(shown[..2], [own("TOKEN"), own("EMPTY")].each_ref().map(|(key, flag)| (key, flag)));
    assert_eq!(scene.coolify.env_changes_after_deployment(), 0);

    scene.start(&uuid).await;
    scene.until_status(&uuid, "running:healthy").await;
    assert_eq!(scene.send(Method::PATCH, &path, &json!({ "key": "TOKEN", "value": "three" })).await.0, 201);
    assert_eq!(scene.send(Method::PATCH, &path, &json!({ "key": "OTHER", "value": "one" })).await.0, 404);
    let one = listed[0]["uuid"].as_str().unwrap();
    let deleted = scene.request(Method::DELETE, &format!("{path}/{one}")).send().await.unwrap();
    assert_eq!(deleted.status(), 200);
    assert_eq!(scene.coolify.env_changes_after_deployment(), 2);
    scene.no_violations();
}

#[tokio::test]
async fn too_many_requests_are_refused_until_the_window_has_passed() {
    let scene = Scene::new(|settings| (settings.limit, settings.window) = (3, Duration::from_millis(1500))).await;
    let begun = Instant::now();
    for left in ["2", "1", "0"] {
        assert_eq!(scene.get("version").await.headers()["X-RateLimit-Remaining"], left);
    }
    let refused = scene.get("version").await;
    assert_eq!(refused.status(), 429);
    // What is left of the window, in whole seconds.
    let wait: u64 = refused.headers()["Retry-After"].to_str().unwrap().parse().unwrap();
    assert!([1, 2].contains(&wait), "{wait}");
    assert_eq!(scene.coolify.throttled(), 1);
    until("it answers again", async || scene.get("version").await.status() == 200).await;
    assert!(begun.elapsed() >= Duration::from_millis(1500));
}

#[tokio::test]
async fn a_request_can_fail_be_refused_come_late_or_lose_its_answer() {
    let scene = Scene::plain().await;
    let patience = Duration::from_millis(200);
    let create = || scene.request(Method::POST, "applications/dockerimage").json(&wish("bot")).send();
    scene.coolify.break_next(Operation::Create, CoolifyFault::Fail, 1);
    assert_eq!(create().await.unwrap().status(), 500);
    scene.coolify.break_next(Operation::Create, CoolifyFault::Throttle(7), 1);
    let refused = create().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["Retry-After"]), (429, &"7".parse().unwrap()));
    scene.coolify.break_next(Operation::Create, CoolifyFault::Hang, 1);
    assert!(tokio::time::timeout(patience, create()).await.is_err());
    assert_eq!(scene.coolify.applications(), []);

    scene.coolify.break_next(Operation::Create, CoolifyFault::Lost, 2);
    assert!(create().await.is_err());
    assert!(create().await.is_err());
    assert_eq!(scene.coolify.applications().len(), 2);
    scene.coolify.break_next(Operation::Create, CoolifyFault::Slow(patience), 1);
    let begun = Instant::now();
    assert_eq!(create().await.unwrap().status(), 201);
    assert!(begun.elapsed() >= patience);
    assert_eq!((scene.coolify.count(Operation::Create), scene.coolify.throttled()), (6, 1));
    scene.no_violations();
}

#[tokio::test]
async fn what_ends_by_itself_is_started_again_until_it_was_too_often() {
    let scene = Scene::new(|settings| settings.restart = Duration::from_millis(200)).await;
    let uuid = scene.create("bot").await;
    scene.send(Method::PATCH, &format!("applications/{uuid}"), &json!({ "max_restart_count": 2 })).await;
    scene.start(&uuid).await;
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.exit(&uuid);
    assert_eq!(scene.seen(&uuid).status, "restarting:unknown");
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.exit(&uuid);
    scene.until_status(&uuid, "exited").await;
    scene.start(&uuid).await;
    scene.until_status(&uuid, "running:healthy").await;
    scene.coolify.crash(&uuid);
    assert_eq!(scene.read(&format!("applications/{uuid}")).await["status"], "exited:unhealthy");
}

#[tokio::test]
async fn a_token_that_may_not_read_secrets_sees_no_logs_and_no_values() {
    let scene = Scene::new(|settings| settings.reads_secrets = false).await;
    let uuid = scene.running("bot").await;
    let page = scene.read(&format!("deployments/applications/{uuid}")).await;
    assert!(page["deployments"][0].get("logs").is_none());
    scene.send(Method::POST, &format!("applications/{uuid}/envs"), &json!({ "key": "A", "value": "b" })).await;
    assert!(scene.read(&format!("applications/{uuid}/envs")).await[0].get("value").is_none());
    assert!(scene.read("applications").await[0].get("destination").is_none());
}

#[tokio::test]
async fn the_list_of_deployments_may_be_an_object() {
    let scene = Scene::new(|settings| settings.deployments_as_object = true).await;
    scene.coolify.hold_deployments(true);
    for name in ["a", "b"] {
        let uuid = scene.create(name).await;
        scene.start(&uuid).await;
    }
    let listed = scene.read("deployments").await;
    assert_eq!((&listed["1"]["application_name"], &listed["0"]["application_name"]), (&json!("a"), &json!("b")));
    scene.coolify.set_settings(|settings| settings.deployments_as_object = false);
    assert_eq!(scene.read("deployments").await[0]["status"], "in_progress");
}

#[tokio::test]
async fn a_test_sees_every_call_and_may_say_what_the_status_is() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    scene.coolify.set_status(&uuid, "degraded:unhealthy");
    scene.coolify.break_next(Operation::ServerResources, CoolifyFault::Fail, 9);
    let path = format!("servers/{}/resources", CoolifyFake::SERVER);
    assert_eq!(scene.get(&path).await.status(), 500);
    scene.coolify.mend();
    assert_eq!(scene.read(&path).await[0]["status"], "degraded:unhealthy");
    let calls: Vec<CoolifyCall> = scene.coolify.calls();
    let told: Vec<_> = calls.iter().map(|call| (call.operation, call.method.as_str(), call.status)).collect();
    let resources = Some(Operation::ServerResources);
    assert_eq!(told, [(Some(Operation::Create), "POST", 201), (resources, "GET", 500), (resources, "GET", 200)]);
    assert_eq!(calls[2].path, format!("/api/v1/{path}"));
    assert!(calls[1].at <= calls[2].at);
}

#[tokio::test]
async fn what_looks_like_a_variable_in_a_value_is_lost_unless_the_value_is_literal() {
    let scene = Scene::plain().await;
    let uuid = scene.create("bot").await;
    let data = json!([
        { "key": "LITERAL", "value": "a$b-c", "is_literal": true },
        { "key": "REPLACED", "value": "a$b-c", "is_literal": false },
    ]);
    let path = format!("applications/{uuid}/envs/bulk");
    assert_eq!(scene.send(Method::PATCH, &path, &json!({ "data": data })).await.0, 201);
    let envs = scene.seen(&uuid).envs;
    assert_eq!((envs["LITERAL"].as_str(), envs["REPLACED"].as_str()), ("a$b-c", "a-c"));
    scene.no_violations();
}
