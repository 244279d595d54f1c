//! The fake Coolify behaves like Coolify, above all in its surprising behaviours.

mod deployments;
mod errors;

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::{COOLIFY_TOKEN, CoolifyApplication, CoolifyFake, CoolifySettings, Dialect, until};

/// A fake Coolify and a client.
struct FakeFixture {
    coolify: CoolifyFake,
    client: reqwest::Client,
}

impl FakeFixture {
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
        let (status, answer) = self.send(Method::POST, "applications/dockerimage", &application_body(name)).await;
        assert_eq!(status, 201, "{answer}");
        answer["uuid"].as_str().unwrap().to_owned()
    }

    /// Starts an application, and returns the answer.
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

fn application_body(name: &str) -> Value {
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
async fn only_health_is_available_without_a_token() {
    let fixture = FakeFixture::plain().await;
    let plain = |path: &str| fixture.client.get(format!("{}/api/v1/{path}", fixture.coolify.url)).send();
    assert_eq!(plain("health").await.unwrap().text().await.unwrap(), "OK");
    assert_eq!(plain("version").await.unwrap().status(), 401);
    assert_eq!(fixture.get("version").await.text().await.unwrap(), "4.3.11");
}

#[tokio::test]
async fn since_4_2_things_are_started_by_post_alone() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    for path in [format!("applications/{uuid}/start"), format!("deploy?uuid={uuid}")] {
        let answer = fixture.get(&path).await;
        assert_eq!((answer.status().as_u16(), &answer.headers()["Allow"]), (405, &"POST".parse().unwrap()));
        assert_eq!(fixture.post(&path).await.status(), 200);
    }
    fixture.no_violations();
}

#[tokio::test]
async fn before_4_2_things_are_started_by_get() {
    let fixture = FakeFixture::new(|settings| settings.dialect = Dialect::Gets).await;
    let uuid = fixture.create("bot").await;
    let path = format!("applications/{uuid}/stop");
    let answer = fixture.post(&path).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["Allow"]), (405, &"GET, HEAD".parse().unwrap()));
    assert_eq!(fixture.get(&path).await.status(), 200);
    let both = FakeFixture::new(|settings| settings.dialect = Dialect::Both).await;
    let path = format!("applications/{}/start", both.create("bot").await);
    assert_eq!([both.get(&path).await.status(), both.post(&path).await.status()], [200, 200]);
}

#[tokio::test]
async fn requests_outside_the_specification_are_refused_and_recorded() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    let path = format!("applications/{uuid}");
    let refused = [
        fixture.send(Method::PATCH, &path, &json!({ "environment_variables": [] })).await,
        fixture.send(Method::PATCH, &path, &json!({ "project_uuid": CoolifyFake::PROJECT })).await,
        fixture.send(Method::PATCH, &path, &json!({ "health_check_enabled": "no" })).await,
        fixture.send(Method::PATCH, &path, &json!({ "name": "" })).await,
        fixture.send(Method::POST, &format!("{path}/envs"), &json!({ "key": "not a key" })).await,
        fixture.send(Method::POST, "applications/dockerimage", &json!({ "name": "bot" })).await,
    ];
    for (number, (status, answer)) in refused.iter().enumerate() {
        assert_eq!(status.as_u16(), 422, "{answer}");
        assert!(answer["errors"].as_object().is_some_and(|errors| !errors.is_empty()), "{answer}");
        assert!(fixture.coolify.violations().len() > number);
    }
    assert_eq!(refused[0].1["errors"], json!({ "environment_variables": ["This field is not allowed."] }));
    assert_eq!(refused[5].1["errors"]["server_uuid"], json!(["This field is required."]));

    let before = fixture.coolify.violations().len();
    let plain = fixture.request(Method::PATCH, &path).body(r#"{"name":"bot"}"#).send().await.unwrap();
    assert_eq!(plain.status(), 400);
    assert_eq!(fixture.get("applications?page=1").await.status(), 200);
    assert_eq!(fixture.get(&format!("deployments/applications/{uuid}?take=0")).await.status(), 422);
    assert_eq!(fixture.post(&format!("{path}/deploy")).await.status(), 404);
    assert_eq!(fixture.coolify.violations().len(), before + 4);
}

#[tokio::test]
async fn an_application_needs_an_existing_project_environment_and_server() {
    let fixture = FakeFixture::plain().await;
    for (field, message) in [
        ("project_uuid", "Project not found."),
        ("environment_name", "Environment not found."),
        ("server_uuid", "Server not found."),
    ] {
        let mut body = application_body("bot");
        body[field] = "unknown".into();
        let (status, answer) = fixture.send(Method::POST, "applications/dockerimage", &body).await;
        assert_eq!((status.as_u16(), &answer["message"]), (404, &json!(message)));
    }
    let mut body = application_body("bot");
    body.as_object_mut().unwrap().remove("environment_name");
    assert_eq!(fixture.send(Method::POST, "applications/dockerimage", &body).await.0, 422);
    body["environment_uuid"] = CoolifyFake::ENVIRONMENT.into();
    assert_eq!(fixture.send(Method::POST, "applications/dockerimage", &body).await.0, 201);
    fixture.no_violations();
}

#[tokio::test]
async fn two_creations_with_one_name_make_two_applications() {
    let fixture = FakeFixture::plain().await;
    assert_ne!(fixture.create("bot").await, fixture.create("bot").await);
    let foreign = fixture.coolify.add_foreign("database", true);
    let all = fixture.read("applications").await;
    assert_eq!(all.as_array().unwrap().len(), 3);
    let ours = fixture.read(&format!("projects/{}/production", CoolifyFake::PROJECT)).await;
    assert_eq!(ours["applications"].as_array().unwrap().len(), 2);
    assert_eq!(ours["id"], CoolifyFake::ENVIRONMENT_ID);
    fixture.coolify.remove(&foreign);
    assert_eq!(fixture.get(&format!("applications/{foreign}")).await.status(), 404);
}

#[tokio::test]
async fn an_application_gets_a_domain_unless_the_request_disables_it() {
    let fixture = FakeFixture::plain().await;
    let mut body = application_body("bot");
    body.as_object_mut().unwrap().remove("autogenerate_domain");
    let (_, answer) = fixture.send(Method::POST, "applications/dockerimage", &body).await;
    let public = fixture.coolify.application(answer["uuid"].as_str().unwrap()).unwrap();
    assert!(public.domains.is_some());
    assert_eq!(answer["domains"], json!(public.domains));
    let private = fixture.create("bot").await;
    assert_eq!(fixture.seen(&private).domains, None);
}

#[tokio::test]
async fn variables_are_created_once_and_changed_afterwards() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    let path = format!("applications/{uuid}/envs");
    let variable = json!({ "key": "TOKEN", "value": "one" });
    assert_eq!(fixture.send(Method::POST, &path, &variable).await.0, 201);
    assert_eq!(fixture.send(Method::POST, &path, &variable).await.0, 409);
    let bulk = json!({ "data": [{ "key": "TOKEN", "value": "two" }, { "key": "EMPTY", "value": "" }] });
    let (status, answer) = fixture.send(Method::PATCH, &format!("{path}/bulk"), &bulk).await;
    assert_eq!((status.as_u16(), answer.as_array().unwrap().len()), (201, 2));
    let listed = fixture.read(&path).await;
    let shown: Vec<_> = listed.as_array().unwrap().iter().map(|one| (&one["key"], &one["is_preview"])).collect();
    let own = |key| (json!(key), json!(false));
    assert_eq!(shown.len(), 4, "each variable has a copy for previews");
    assert_eq!(shown[..2], [own("TOKEN"), own("EMPTY")].each_ref().map(|(key, flag)| (key, flag)));
    assert_eq!(fixture.coolify.env_changes_after_deployment(), 0);

    fixture.start(&uuid).await;
    fixture.until_status(&uuid, "running:healthy").await;
    assert_eq!(fixture.send(Method::PATCH, &path, &json!({ "key": "TOKEN", "value": "three" })).await.0, 201);
    assert_eq!(fixture.send(Method::PATCH, &path, &json!({ "key": "OTHER", "value": "one" })).await.0, 404);
    let one = listed[0]["uuid"].as_str().unwrap();
    let deleted = fixture.request(Method::DELETE, &format!("{path}/{one}")).send().await.unwrap();
    assert_eq!(deleted.status(), 200);
    assert_eq!(fixture.coolify.env_changes_after_deployment(), 2);
    fixture.no_violations();
}

#[tokio::test]
async fn a_variable_reference_in_a_value_is_replaced_unless_the_value_is_literal() {
    let fixture = FakeFixture::plain().await;
    let uuid = fixture.create("bot").await;
    let data = json!([
        { "key": "LITERAL", "value": "a$b-c", "is_literal": true },
        { "key": "REPLACED", "value": "a$b-c", "is_literal": false },
    ]);
    let path = format!("applications/{uuid}/envs/bulk");
    assert_eq!(fixture.send(Method::PATCH, &path, &json!({ "data": data })).await.0, 201);
    let envs = fixture.seen(&uuid).envs;
    assert_eq!((envs["LITERAL"].as_str(), envs["REPLACED"].as_str()), ("a$b-c", "a-c"));
    fixture.no_violations();
}
