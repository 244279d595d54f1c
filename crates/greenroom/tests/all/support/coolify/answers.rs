//! Coolify's answers to valid requests: its texts, its status codes, and the effect of each request.

use serde_json::{Map, Value, json};

use super::fields::{self, Errors};
use super::operations::Operation;
use super::queue::{Deployment, Queued};
use super::view;
use super::world::{self, ELSEWHERE, ELSEWHERE_ID, ENVIRONMENT, ENVIRONMENT_ID, World};

/// An HTTP response of the fake.
#[derive(Clone, Debug)]
pub struct CoolifyFakeResponse {
    pub status: u16,
    pub body: String,
    pub is_json: bool,
    pub headers: Vec<(&'static str, String)>,
}

impl CoolifyFakeResponse {
    pub fn json(status: u16, body: impl Into<Value>) -> Self {
        Self { status, body: body.into().to_string(), is_json: true, headers: Vec::new() }
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self { status, body: body.to_owned(), is_json: false, headers: Vec::new() }
    }

    pub fn message(status: u16, message: &str) -> Self {
        Self::json(status, json!({ "message": message }))
    }

    pub fn invalid(errors: Errors) -> Self {
        Self::json(422, json!({ "message": "Validation failed.", "errors": errors }))
    }

    pub fn header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// A request that has passed the checks.
#[derive(Debug)]
pub struct Asked {
    pub operation: Operation,
    /// The values of the wildcards in the path.
    pub path_values: Vec<String>,
    pub query: Map<String, Value>,
    /// The body after Coolify has trimmed it.
    pub body: Map<String, Value>,
}

impl Asked {
    fn index(&self, number: usize) -> &str {
        self.path_values.get(number).map(String::as_str).unwrap_or_default()
    }

    /// A boolean parameter. Any value that is not a boolean counts as false.
    fn flag(&self, name: &str, default: bool) -> bool {
        let on = |value: &Value| ["1", "true", "on", "yes"].contains(&value.as_str().unwrap_or_default());
        self.query.get(name).map_or(default, on)
    }

    fn number(&self, name: &str, default: usize) -> usize {
        self.query.get(name).and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }
}

/// Carries out a request, and returns the response.
pub fn answer(world: &mut World, asked: &Asked) -> CoolifyFakeResponse {
    world.pass();
    match asked.operation {
        Operation::Version => CoolifyFakeResponse::text(200, world.settings.dialect.version()),
        Operation::Health => CoolifyFakeResponse::text(200, "OK"),
        Operation::Servers => CoolifyFakeResponse::json(200, vec![view::server(&world.settings)]),
        Operation::Server | Operation::ServerResources => server(world, asked),
        Operation::Projects => CoolifyFakeResponse::json(200, vec![view::project()]),
        Operation::Project | Operation::Environment => project(world, asked),
        Operation::List => CoolifyFakeResponse::json(200, view::list(world)),
        Operation::Create => create(world, asked),
        Operation::Deployments => view::open_deployments(world),
        Operation::Deployment | Operation::Cancel => deployment(world, asked),
        Operation::Deploy => deploy(world, asked),
        _ => match world.applications.iter().any(|application| application.uuid == asked.index(0)) {
            true => of_application(world, asked),
            false => CoolifyFakeResponse::message(404, "Application not found."),
        },
    }
}

fn server(world: &World, asked: &Asked) -> CoolifyFakeResponse {
    match asked.operation {
        _ if asked.index(0) != world::SERVER => CoolifyFakeResponse::message(404, "Server not found."),
        Operation::Server => CoolifyFakeResponse::json(200, view::server(&world.settings)),
        _ => CoolifyFakeResponse::json(200, world.applications.iter().map(view::resource).collect::<Vec<_>>()),
    }
}

fn environment_id(name: &str) -> Option<i64> {
    match name {
        "production" | ENVIRONMENT => Some(ENVIRONMENT_ID),
        "staging" | ELSEWHERE => Some(ELSEWHERE_ID),
        _ => None,
    }
}

fn project(world: &World, asked: &Asked) -> CoolifyFakeResponse {
    if asked.index(0) != world::PROJECT {
        return CoolifyFakeResponse::message(404, "Project not found.");
    }
    if asked.operation == Operation::Project {
        let mut project = view::project();
        project["environments"] = json!([view::environment(ENVIRONMENT_ID), view::environment(ELSEWHERE_ID)]);
        return CoolifyFakeResponse::json(200, project);
    }
    let Some(id) = environment_id(asked.index(1)) else {
        return CoolifyFakeResponse::message(404, "Environment not found.");
    };
    let mut environment = view::environment(id);
    environment["applications"] = view::within(world, id);
    CoolifyFakeResponse::json(200, environment)
}

/// The order of the checks is Coolify's: a request that names no environment gets no error about an unknown project.
fn create(world: &mut World, asked: &Asked) -> CoolifyFakeResponse {
    let names = [asked.text("environment_name"), asked.text("environment_uuid")];
    if names == [None, None] {
        let message = "You need to provide at least one of environment_name or environment_uuid.";
        return CoolifyFakeResponse::message(422, message);
    }
    if asked.text("project_uuid") != Some(world::PROJECT) {
        return CoolifyFakeResponse::message(404, "Project not found.");
    }
    let Some(environment) = names.into_iter().flatten().find_map(environment_id) else {
        return CoolifyFakeResponse::message(404, "Environment not found.");
    };
    if asked.text("server_uuid") != Some(world::SERVER) {
        return CoolifyFakeResponse::message(404, "Server not found.");
    }
    let mut errors = Errors::new();
    fields::require(&mut errors, &asked.body, &["docker_registry_image_name"]);
    if !errors.is_empty() {
        return CoolifyFakeResponse::invalid(errors);
    }
    let mut fields = asked.body.clone();
    let location_fields = ["project_uuid", "server_uuid", "environment_name", "environment_uuid", "destination_uuid"];
    let action_fields = ["instant_deploy", "autogenerate_domain", "force_domain_override", "domains"];
    for gone in location_fields.into_iter().chain(action_fields) {
        fields.remove(gone);
    }
    fields.entry("name").or_insert_with(|| format!("docker-image-{}", world::new_uuid()).into());
    tag(&mut fields);
    let application = world.create(environment, fields);
    application.domains = asked.text("domains").map(str::to_owned);
    if application.domains.is_none() && asked.body.get("autogenerate_domain") != Some(&json!(false)) {
        application.domains = Some(format!("http://{}.127.0.0.1.sslip.io", application.uuid));
    }
    let answer = json!({ "uuid": application.uuid, "domains": application.domains });
    if asked.body.get("instant_deploy") == Some(&json!(true)) {
        let uuid = application.uuid.clone();
        world.deploy(&uuid, false, true, false);
    }
    CoolifyFakeResponse::json(201, answer)
}

/// Stores the tag of an image in its own field. The default is "latest".
fn tag(fields: &mut Map<String, Value>) {
    let name = fields.get("docker_registry_image_name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let has_tag = fields.get("docker_registry_image_tag").is_some_and(Value::is_string);
    let parts = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/') && !has_tag);
    if let Some((name, tag)) = parts {
        fields.insert("docker_registry_image_name".to_owned(), name.into());
        fields.insert("docker_registry_image_tag".to_owned(), tag.into());
    } else if !has_tag {
        fields.insert("docker_registry_image_tag".to_owned(), "latest".into());
    }
}

fn of_application(world: &mut World, asked: &Asked) -> CoolifyFakeResponse {
    let uuid = asked.index(0).to_owned();
    match asked.operation {
        Operation::Start => {
            let queued = world.deploy(&uuid, asked.flag("force", false), asked.flag("instant_deploy", false), false);
            started(queued, "Deployment request queued.")
        }
        Operation::Restart => started(world.deploy(&uuid, false, false, true), "Restart request queued."),
        Operation::Stop => {
            world.stop(&uuid, asked.flag("docker_cleanup", true));
            CoolifyFakeResponse::message(200, "Application stopping request queued.")
        }
        Operation::Delete => {
            world.deleted_volumes += usize::from(asked.flag("delete_volumes", true));
            world.delete(&uuid, asked.flag("docker_cleanup", true));
            CoolifyFakeResponse::message(200, "Application deletion request queued.")
        }
        Operation::Describe => describe(world, &uuid, asked),
        Operation::DeploymentsOf => deployments_of(world, &uuid, asked),
        Operation::Inspect => CoolifyFakeResponse::json(200, view::inspected(world, &uuid)),
        Operation::Logs => logs(world, &uuid, asked),
        _ => super::variables::answer(world, &uuid, asked),
    }
}

/// The response does not say that the queue is full. Its deployment identifier then belongs to no deployment.
fn started(queued: Queued, message: &str) -> CoolifyFakeResponse {
    match queued {
        Queued::As(uuid) => CoolifyFakeResponse::json(200, json!({ "message": message, "deployment_uuid": uuid })),
        Queued::QueueFull => {
            CoolifyFakeResponse::json(200, json!({ "message": message, "deployment_uuid": world::new_uuid() }))
        }
        Queued::Skipped => CoolifyFakeResponse::message(200, "Deployment already queued for this commit."),
    }
}

fn describe(world: &mut World, uuid: &str, asked: &Asked) -> CoolifyFakeResponse {
    let application = world.application(uuid).expect("the caller has checked that it exists");
    for (name, value) in &asked.body {
        match name.as_str() {
            "domains" => application.domains = value.as_str().map(str::to_owned),
            "instant_deploy" | "force_domain_override" => {}
            _ => drop(application.fields.insert(name.clone(), value.clone())),
        }
    }
    let is_instant = asked.body.get("instant_deploy") == Some(&json!(true));
    if is_instant && world.deploy(uuid, false, false, false) == Queued::Skipped {
        return CoolifyFakeResponse::message(200, "Deployment already queued for this commit.");
    }
    CoolifyFakeResponse::json(200, json!({ "uuid": uuid }))
}

/// The specification has a list here. Coolify answers with the total count and the requested page.
fn deployments_of(world: &World, uuid: &str, asked: &Asked) -> CoolifyFakeResponse {
    let all = || world.deployments.iter().rev().filter(|deployment| deployment.application == uuid);
    let page = all().skip(asked.number("skip", 0)).take(asked.number("take", 10));
    let page: Vec<Value> = page.map(|deployment| view::deployment(world, deployment)).collect();
    CoolifyFakeResponse::json(200, json!({ "count": all().count(), "deployments": page }))
}

fn logs(world: &mut World, uuid: &str, asked: &Asked) -> CoolifyFakeResponse {
    if world.settings.server_is_down {
        return CoolifyFakeResponse::message(500, "Server Error");
    }
    let application = world.application(uuid).expect("the caller has checked that it exists");
    if !application.is_running() {
        return CoolifyFakeResponse::message(400, "Application is not running.");
    }
    let said = format!("{} has started", application.name());
    let lines = [said.as_str(), "waiting for work"];
    let from = lines.len().saturating_sub(asked.number("lines", 100));
    CoolifyFakeResponse::json(200, json!({ "logs": lines[from..].join("\n") }))
}

fn deployment(world: &mut World, asked: &Asked) -> CoolifyFakeResponse {
    let is_it = |deployment: &Deployment| deployment.uuid == asked.index(0);
    let has_application = |deployment: &Deployment| {
        world.applications.iter().any(|application| application.uuid == deployment.application)
    };
    let found = world.deployments.iter().position(|deployment| is_it(deployment) && has_application(deployment));
    let Some(index) = found else { return CoolifyFakeResponse::message(404, "Deployment not found.") };
    if asked.operation == Operation::Deployment {
        return CoolifyFakeResponse::json(200, view::deployment(world, &world.deployments[index]));
    }
    let state = world.deployments[index].state;
    if !state.is_open() {
        let message = format!("Deployment cannot be cancelled. Current status: {}", state.name());
        return CoolifyFakeResponse::message(400, &message);
    }
    world.cancel(index);
    let cancelled = &world.deployments[index];
    let message = "Deployment cancelled successfully.";
    let answer = json!({
        "message": message, "deployment_uuid": cancelled.uuid, "status": cancelled.state.name(),
    });
    CoolifyFakeResponse::json(200, answer)
}

/// Deploys by identifiers or by a tag. Unlike a start, it says when the queue is full. If a deployment is already in
/// progress, the response has the identifier of a deployment that does not exist.
fn deploy(world: &mut World, asked: &Asked) -> CoolifyFakeResponse {
    let text = |name: &str| asked.query.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let uuids: Vec<String> = match (text("uuid"), text("tag")) {
        (Some(_), Some(_)) => return CoolifyFakeResponse::message(400, "You can only use uuid or tag, not both."),
        (None, None) => return CoolifyFakeResponse::message(400, "You must provide uuid or tag."),
        (Some(uuids), None) => uuids.split(',').map(str::to_owned).collect(),
        (None, Some(_)) => return CoolifyFakeResponse::message(404, "No resources found with this tag."),
    };
    let mut deployments = Vec::new();
    for uuid in uuids {
        let Some(name) = world.application(&uuid).map(|application| application.name().to_owned()) else { continue };
        let (message, deployment) = match world.deploy(&uuid, asked.flag("force", false), false, false) {
            Queued::As(deployment) => (format!("Application {name} deployment queued."), deployment),
            Queued::Skipped => ("Deployment already queued for this commit.".to_owned(), world::new_uuid()),
            Queued::QueueFull => {
                let message = "Deployment queue is full. Please wait for existing deployments to complete.";
                return CoolifyFakeResponse::message(429, message).header("Retry-After", 60);
            }
        };
        deployments.push(json!({ "message": message, "resource_uuid": uuid, "deployment_uuid": deployment }));
    }
    if deployments.is_empty() {
        return CoolifyFakeResponse::message(404, "No resources found.");
    }
    CoolifyFakeResponse::json(200, json!({ "deployments": deployments }))
}
