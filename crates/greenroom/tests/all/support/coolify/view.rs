//! The JSON that Coolify returns for applications and deployments.

use serde_json::{Map, Value, json};

use super::answers::CoolifyFakeResponse;
use super::queue::Deployment;
use super::world::{self, Application, ELSEWHERE, ENVIRONMENT, ENVIRONMENT_ID, PROJECT, SERVER, Variable, World};
use super::{CoolifyApplication, CoolifySettings};

pub fn server(settings: &CoolifySettings) -> Value {
    json!({
        "uuid": SERVER,
        "name": "localhost",
        "description": "The server that Coolify runs on",
        "ip": "host.docker.internal",
        "user": "root",
        "port": 22,
        "is_reachable": true,
        "is_usable": true,
        "settings": {
            "concurrent_builds": settings.deployments_at_once,
            "deployment_queue_limit": settings.queue,
            "is_reachable": true,
            "is_usable": true,
        },
    })
}

pub fn project() -> Value {
    json!({ "id": 3, "uuid": PROJECT, "name": "bots", "description": null })
}

pub fn environment(id: i64) -> Value {
    let (uuid, name) = if id == ENVIRONMENT_ID { (ENVIRONMENT, "production") } else { (ELSEWHERE, "staging") };
    json!({ "id": id, "uuid": uuid, "name": name, "project_id": 3, "description": null })
}

pub fn resource(application: &Application) -> Value {
    json!({
        "id": application.id,
        "uuid": application.uuid,
        "name": application.name(),
        "type": "application",
        "status": application.status,
        "created_at": application.created,
        "updated_at": application.created,
    })
}

/// Settings are separate from the other fields of an application, and only a request for a single application returns
/// them.
fn is_setting(field: &str) -> bool {
    let others = ["docker_images_to_keep", "stop_grace_period", "custom_internal_name", "use_build_secrets"];
    others.contains(&field) || field.starts_with("gpu_") || (field.starts_with("is_") && !field.contains("http_basic"))
}

const SECRETS: [&str; 6] = [
    "custom_labels",
    "http_basic_auth_password",
    "manual_webhook_secret_bitbucket",
    "manual_webhook_secret_gitea",
    "manual_webhook_secret_github",
    "manual_webhook_secret_gitlab",
];

/// The answer has the number of the environment, but not the number, project or server of the application.
fn application(application: &Application, settings: &CoolifySettings) -> Map<String, Value> {
    let fixed = json!({
        "uuid": application.uuid,
        "description": null,
        "fqdn": application.domains,
        "status": application.status,
        "build_pack": "dockerimage",
        "git_repository": "coollabsio/coolify",
        "git_branch": "main",
        "ports_exposes": null,
        "ports_mappings": null,
        "environment_id": application.environment_id,
        "destination_id": 0,
        "destination_type": "App\\Models\\StandaloneDocker",
        "health_check_enabled": false,
        "limits_memory": "0",
        "limits_cpus": "0",
        "restart_count": application.restarts,
        "max_restart_count": 10,
        "server_status": true,
        "created_at": application.created,
        "updated_at": application.created,
        "deleted_at": null,
    });
    let Value::Object(mut shown) = fixed else { unreachable!() };
    let is_shown = |name: &str| !is_setting(name) && (settings.reads_secrets || !SECRETS.contains(&name));
    let own = application.fields.iter().filter(|(name, _)| is_shown(name));
    shown.extend(own.map(|(name, value)| (name.clone(), value.clone())));
    shown
}

/// Every application of the team, in any environment. With permission to read secrets, the answer includes the server.
pub fn list(world: &World) -> Value {
    let all = world.applications.iter().map(|one| {
        let mut shown = application(one, &world.settings);
        if world.settings.reads_secrets {
            let destination = json!({ "id": 0, "network": "coolify", "server": server(&world.settings) });
            shown.insert("destination".to_owned(), destination);
        }
        shown
    });
    all.collect()
}

pub fn within(world: &World, environment: i64) -> Value {
    let inside = world.applications.iter().filter(|one| one.environment_id == environment);
    let all = inside.map(|one| {
        let mut shown = application(one, &world.settings);
        shown.insert("id".to_owned(), json!(one.id));
        shown
    });
    all.collect()
}

pub fn inspected(world: &World, uuid: &str) -> Value {
    let one = world.applications.iter().find(|one| one.uuid == uuid).expect("the caller has checked that it exists");
    let mut shown = application(one, &world.settings);
    let settings = one.fields.iter().filter(|(name, _)| is_setting(name));
    let settings: Map<String, Value> = settings.map(|(name, value)| (name.clone(), value.clone())).collect();
    shown.insert("settings".to_owned(), settings.into());
    shown.into()
}

pub fn variable(variable: &Variable, reads_secrets: bool) -> Value {
    let mut shown = variable.rest.clone();
    shown.insert("uuid".to_owned(), json!(variable.uuid));
    shown.insert("key".to_owned(), json!(variable.key));
    shown.insert("is_preview".to_owned(), json!(variable.is_preview));
    shown.insert("is_shared".to_owned(), json!(false));
    if reads_secrets && variable.rest["is_shown_once"] != json!(true) {
        shown.insert("value".to_owned(), json!(variable.value));
        let quoted = variable.value.as_ref().filter(|_| variable.is_literal()).map(|value| format!("'{value}'"));
        shown.insert("real_value".to_owned(), json!(quoted.or_else(|| variable.value.clone())));
    }
    shown.into()
}

/// The log of a deployment is a secret too. It is a text that contains JSON.
pub fn deployment(world: &World, deployment: &Deployment) -> Value {
    let url = format!(
        "/project/{PROJECT}/environment/{ENVIRONMENT}/application/{}/deployment/{}",
        deployment.application, deployment.uuid
    );
    let mut shown = json!({
        "id": deployment.id,
        "application_id": deployment.application_id.to_string(),
        "application_name": deployment.application_name,
        "deployment_uuid": deployment.uuid,
        "deployment_url": url,
        "pull_request_id": 0,
        "force_rebuild": deployment.forced,
        "restart_only": deployment.is_restart,
        "commit": "HEAD",
        "status": deployment.state.name(),
        "is_webhook": false,
        "is_api": true,
        "server_id": 0,
        "server_name": "localhost",
        "destination_id": "0",
        "only_this_server": false,
        "rollback": false,
        "created_at": deployment.created,
        "updated_at": world::now(),
    });
    if world.settings.reads_secrets {
        let line = |(order, text): (usize, &String)| {
            json!({
                "command": null, "output": text, "type": "stdout", "timestamp": deployment.created,
                "hidden": false, "batch": 1, "order": order + 1,
            })
        };
        let lines: Vec<Value> = deployment.lines.iter().enumerate().map(line).collect();
        let text = (!lines.is_empty()).then(|| Value::from(lines).to_string());
        shown["logs"] = json!(text);
    }
    shown
}

/// The deployments that are queued or in progress. Coolify sorts them and keeps their old positions as keys. If the
/// database returns them in another order, the list becomes an object.
pub fn open_deployments(world: &World) -> CoolifyFakeResponse {
    let open = world.deployments.iter().filter(|deployment| deployment.state.is_open());
    let open: Vec<Value> = open.map(|open| deployment(world, open)).collect();
    if !world.settings.deployments_as_object {
        return CoolifyFakeResponse::json(200, open);
    }
    let count = open.len();
    let numbered = open.into_iter().enumerate().map(|(index, open)| ((count - 1 - index).to_string(), open));
    CoolifyFakeResponse::json(200, Value::Object(numbered.collect()))
}

pub fn seen(application: &Application) -> CoolifyApplication {
    CoolifyApplication {
        uuid: application.uuid.clone(),
        name: application.name().to_owned(),
        description: application.text("description").map(str::to_owned),
        status: application.status.clone(),
        domains: application.domains.clone(),
        environment_id: application.environment_id,
        envs: application.envs(),
        fields: application.fields.clone(),
    }
}
