//! The environment variables of an application. A request that creates an application cannot set them.

use serde_json::{Map, Value, json};

use super::answers::{Asked, CoolifyFakeResponse};
use super::fields::{self, Errors};
use super::operations::Operation;
use super::view;
use super::world::{self, Application, Variable, World};

const FLAGS: [(&str, bool); 5] = [
    ("is_literal", false),
    ("is_multiline", false),
    ("is_shown_once", false),
    ("is_runtime", true),
    ("is_buildtime", true),
];

pub fn answer(world: &mut World, uuid: &str, asked: &Asked) -> CoolifyFakeResponse {
    let reads_secrets = world.settings.reads_secrets;
    let application = world.application(uuid).expect("the caller has checked that it exists");
    let was_deployed = application.deployed;
    let mut changes = 0;
    let answer = match asked.operation {
        Operation::CreateEnv => create(application, &asked.body, &mut changes),
        Operation::UpdateEnv => update(application, &asked.body, reads_secrets, &mut changes),
        Operation::BulkEnvs => bulk(application, asked, reads_secrets, &mut changes),
        Operation::DeleteEnv => delete(application, asked, &mut changes),
        _ => {
            let (own, previews) = application.variables.iter().partition::<Vec<_>, _>(|one| !one.is_preview);
            let all = own.into_iter().chain(previews);
            CoolifyFakeResponse::json(200, all.map(|one| view::variable(one, reads_secrets)).collect::<Vec<_>>())
        }
    };
    if was_deployed {
        world.env_changes_after_deployment += changes;
    }
    answer
}

fn is_preview(body: &Map<String, Value>) -> bool {
    body.get("is_preview") == Some(&json!(true))
}

fn find<'a>(application: &'a mut Application, body: &Map<String, Value>) -> Option<&'a mut Variable> {
    let same = |one: &&mut Variable| one.is_preview == is_preview(body) && body.get("key") == Some(&json!(one.key));
    application.variables.iter_mut().find(same)
}

/// Creates a variable, and its copy for previews if there is none.
fn make(application: &mut Application, body: &Map<String, Value>) -> Variable {
    let text = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
    let flag = |(name, default): (&str, bool)| (name.to_owned(), body.get(name).cloned().unwrap_or(json!(default)));
    let mut rest: Map<String, Value> = FLAGS.into_iter().map(flag).collect();
    rest.insert("comment".to_owned(), body.get("comment").cloned().unwrap_or_default());
    let key = text("key").unwrap_or_default();
    let is_preview = is_preview(body);
    let variable = Variable { uuid: world::new_uuid(), key, value: text("value"), rest, is_preview };
    let has_twin = application.variables.iter().any(|one| one.is_preview && one.key == variable.key);
    application.variables.push(variable.clone());
    if !is_preview && !has_twin {
        application.variables.push(Variable { uuid: world::new_uuid(), is_preview: true, ..variable.clone() });
    }
    variable
}

/// Changes a variable. A flag that the request does not contain becomes false.
fn change(variable: &mut Variable, body: &Map<String, Value>) -> bool {
    let before = (variable.value.clone(), variable.rest.clone());
    variable.value = body.get("value").and_then(Value::as_str).map(str::to_owned);
    for flag in ["is_literal", "is_multiline", "is_shown_once"] {
        variable.rest.insert(flag.to_owned(), body.get(flag).cloned().unwrap_or(json!(false)));
    }
    for kept in ["is_runtime", "is_buildtime", "comment"] {
        if let Some(value) = body.get(kept) {
            variable.rest.insert(kept.to_owned(), value.clone());
        }
    }
    before != (variable.value.clone(), variable.rest.clone())
}

fn create(application: &mut Application, body: &Map<String, Value>, changes: &mut usize) -> CoolifyFakeResponse {
    if find(application, body).is_some() {
        return CoolifyFakeResponse::message(
            409,
            "Environment variable already exists. Use PATCH request to update it.",
        );
    }
    *changes += 1;
    CoolifyFakeResponse::json(201, json!({ "uuid": make(application, body).uuid }))
}

fn update(
    application: &mut Application,
    body: &Map<String, Value>,
    secrets: bool,
    changes: &mut usize,
) -> CoolifyFakeResponse {
    let Some(variable) = find(application, body) else {
        return CoolifyFakeResponse::message(404, "Environment variable not found.");
    };
    *changes += usize::from(change(variable, body));
    CoolifyFakeResponse::json(201, view::variable(variable, secrets))
}

/// Creates or changes variables one after the other. If one is wrong, the changes before it stay.
fn bulk(application: &mut Application, asked: &Asked, secrets: bool, changes: &mut usize) -> CoolifyFakeResponse {
    let list = asked.body.get("data").and_then(Value::as_array).filter(|list| !list.is_empty());
    let Some(list) = list else { return CoolifyFakeResponse::message(400, "Bulk data is required.") };
    let mut done = Vec::new();
    for item in list.iter().filter_map(Value::as_object) {
        let mut errors = wrong(item);
        // Coolify ignores unknown fields of an item. The fake has already recorded them.
        errors.retain(|_, what| *what != json!(["This field is not allowed."]));
        if !errors.is_empty() {
            return CoolifyFakeResponse::invalid(errors);
        }
        let variable = match find(application, item) {
            Some(variable) => {
                *changes += usize::from(change(variable, item));
                variable.clone()
            }
            None => {
                *changes += 1;
                make(application, item)
            }
        };
        done.push(view::variable(&variable, secrets));
    }
    CoolifyFakeResponse::json(201, done)
}

/// The errors in a variable that a client sent.
pub fn wrong(item: &Map<String, Value>) -> Errors {
    let mut errors = fields::check(fields::VARIABLE, item);
    fields::require(&mut errors, item, &["key"]);
    errors
}

fn delete(application: &mut Application, asked: &Asked, changes: &mut usize) -> CoolifyFakeResponse {
    let before = application.variables.len();
    application.variables.retain(|one| Some(&one.uuid) != asked.path_values.get(1));
    if application.variables.len() == before {
        return CoolifyFakeResponse::message(404, "Environment variable not found.");
    }
    *changes += 1;
    CoolifyFakeResponse::message(200, "Environment variable deleted.")
}
