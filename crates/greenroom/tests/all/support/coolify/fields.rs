//! The request bodies that Coolify accepts: the fields, their types and their allowed values.
//! The fake accepts a field if the published specification has it and the program accepts it. The two differ: for
//! changing an application, the specification has `project_uuid`, `server_uuid`, `environment_name`,
//! `destination_uuid`, `github_app_uuid` and `dockerfile`, which the program refuses. The fake also accepts a few
//! fields that only the objects of the specification have: those of the health check, and the purpose of a variable.

use base64::Engine;
use serde_json::{Map, Value};

use super::operations::Kind;

/// Fields of one type.
#[derive(Debug)]
pub struct Group {
    kind: Kind,
    names: &'static [&'static str],
}

const fn group(kind: Kind, names: &'static [&'static str]) -> Group {
    Group { kind, names }
}

/// Fields that can be set when an application is created, and changed later.
const FLAGS: &[&str] = &[
    "connect_to_docker_network",
    "disable_build_cache",
    "force_domain_override",
    "health_check_enabled",
    "include_source_commit_in_build",
    "inject_build_args_to_dockerfile",
    "instant_deploy",
    "is_consistent_container_name_enabled",
    "is_container_label_escape_enabled",
    "is_env_sorting_enabled",
    "is_force_https_enabled",
    "is_git_lfs_enabled",
    "is_git_shallow_clone_enabled",
    "is_git_submodules_enabled",
    "is_gpu_enabled",
    "is_gzip_enabled",
    "is_log_drain_enabled",
    "is_pr_deployments_public_enabled",
    "is_preview_deployments_enabled",
    "is_raw_compose_deployment_enabled",
    "is_stripprefix_enabled",
    "use_build_secrets",
    "use_build_server",
];
const NUMBERS: &[&str] = &[
    "docker_images_to_keep",
    "health_check_interval",
    "health_check_retries",
    "health_check_return_code",
    "health_check_start_period",
    "health_check_timeout",
    "limits_cpu_shares",
    "limits_memory_swappiness",
    "max_restart_count",
    "stop_grace_period",
];
const TEXTS: &[&str] = &[
    "custom_docker_run_options",
    "custom_internal_name",
    "custom_labels",
    "custom_network_aliases",
    "description",
    "docker_registry_image_name",
    "docker_registry_image_tag",
    "domains",
    "gpu_count",
    "gpu_device_ids",
    "gpu_driver",
    "gpu_options",
    "health_check_command",
    "health_check_host",
    "health_check_method",
    "health_check_path",
    "health_check_port",
    "health_check_response_text",
    "health_check_scheme",
    "health_check_type",
    "limits_cpus",
    "limits_cpuset",
    "limits_memory",
    "limits_memory_reservation",
    "limits_memory_swap",
    "manual_webhook_secret_bitbucket",
    "manual_webhook_secret_gitea",
    "manual_webhook_secret_github",
    "manual_webhook_secret_gitlab",
    "name",
    "ports_exposes",
    "ports_mappings",
    "post_deployment_command",
    "post_deployment_command_container",
    "pre_deployment_command",
    "pre_deployment_command_container",
    "preview_url_template",
    "redirect",
];

pub const CREATE: &[Group] = &[
    group(Kind::Flag, FLAGS),
    group(Kind::Number, NUMBERS),
    group(Kind::Text, TEXTS),
    group(Kind::Texts, &["noindex_domains", "tags"]),
    group(Kind::Flag, &["autogenerate_domain", "is_http_basic_auth_enabled"]),
    group(Kind::Text, &["project_uuid", "server_uuid", "environment_name", "environment_uuid", "destination_uuid"]),
    group(Kind::Text, &["http_basic_auth_password", "http_basic_auth_username"]),
];

pub const DESCRIBE: &[Group] = &[
    group(Kind::Flag, FLAGS),
    group(Kind::Number, NUMBERS),
    group(Kind::Text, TEXTS),
    group(Kind::Texts, &["noindex_domains"]),
    group(Kind::Objects, &["docker_compose_domains"]),
    group(Kind::Flag, &["is_auto_deploy_enabled", "is_preserve_repository_enabled", "is_spa", "is_static"]),
    group(Kind::Text, &["base_directory", "build_command", "build_pack", "dockerfile_location", "git_branch"]),
    group(Kind::Text, &["docker_compose_custom_build_command", "docker_compose_custom_start_command"]),
    group(Kind::Text, &["docker_compose_location", "git_commit_sha", "git_repository", "install_command"]),
    group(Kind::Text, &["publish_directory", "start_command", "watch_paths"]),
];

pub const VARIABLE: &[Group] = &[
    group(Kind::Text, &["key", "value", "comment"]),
    group(Kind::Flag, &["is_preview", "is_literal", "is_multiline", "is_shown_once", "is_runtime", "is_buildtime"]),
];

pub const VARIABLES: &[Group] = &[group(Kind::Objects, &["data"])];

/// Fields that may be null. An empty text counts as null, see [`trimmed`].
const NULLABLE: &[&str] = &[
    "comment",
    "custom_internal_name",
    "custom_labels",
    "custom_network_aliases",
    "description",
    "environment_name",
    "environment_uuid",
    "gpu_count",
    "gpu_device_ids",
    "gpu_driver",
    "gpu_options",
    "health_check_command",
    "health_check_port",
    "health_check_response_text",
    "http_basic_auth_password",
    "http_basic_auth_username",
    "limits_cpuset",
    "manual_webhook_secret_bitbucket",
    "manual_webhook_secret_gitea",
    "manual_webhook_secret_github",
    "manual_webhook_secret_gitlab",
    "noindex_domains",
    "ports_mappings",
    "post_deployment_command",
    "pre_deployment_command",
    "stop_grace_period",
    "tags",
    "value",
    "watch_paths",
];

/// The errors of each field.
pub type Errors = Map<String, Value>;

pub fn add(errors: &mut Errors, field: &str, what: &str) {
    let list = errors.entry(field).or_insert_with(|| Value::Array(Vec::new()));
    if let Some(list) = list.as_array_mut() {
        list.push(what.into());
    }
}

/// Changes a body as Coolify does before it checks it: removes the blanks around texts, and replaces empty texts by
/// null.
pub fn trimmed(value: Value) -> Value {
    match value {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => Value::String(text.trim().to_owned()),
        Value::Array(list) => list.into_iter().map(trimmed).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, trimmed(value))).collect(),
        other => other,
    }
}

/// Checks every field of a body, trimmed or not.
pub fn check(groups: &[Group], body: &Map<String, Value>) -> Errors {
    let mut errors = Errors::new();
    for (name, value) in body {
        let Some(group) = groups.iter().find(|group| group.names.contains(&name.as_str())) else {
            add(&mut errors, name, "This field is not allowed.");
            continue;
        };
        if value.is_null() && NULLABLE.contains(&name.as_str()) {
            continue;
        }
        let said = name.replace('_', " ");
        if let Some(type_of) = wrong_type(group.kind, value) {
            add(&mut errors, name, &format!("The {said} field must be {type_of}."));
        } else if !may_be(name, value) {
            add(&mut errors, name, &format!("The {said} field format is invalid."));
        }
    }
    errors
}

/// Adds an error for each of these fields that is missing.
pub fn require(errors: &mut Errors, body: &Map<String, Value>, names: &[&str]) {
    for name in names {
        if body.get(*name).is_none_or(Value::is_null) {
            errors.remove(*name);
            add(errors, name, "This field is required.");
        }
    }
}

fn wrong_type(kind: Kind, value: &Value) -> Option<&'static str> {
    let (fits, type_of) = match kind {
        Kind::Text => (value.is_string(), "a string"),
        Kind::Flag => (value.is_boolean(), "true or false"),
        Kind::Number => (value.is_i64(), "an integer"),
        Kind::Texts => (value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "an array"),
        Kind::Objects => (value.as_array().is_some_and(|list| list.iter().all(Value::is_object)), "an array"),
    };
    (!fits).then_some(type_of)
}

/// The rules of a field in addition to its type.
fn may_be(name: &str, value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    let number = value.as_i64().unwrap_or_default();
    let is_list_of_numbers = |text: &str| text.split(',').all(|port| port.parse::<u16>().is_ok());
    match name {
        "name" => text.chars().count() <= 255,
        "comment" => text.chars().count() <= 256,
        "key" => is_key(text),
        "ports_exposes" => is_list_of_numbers(text),
        "ports_mappings" => {
            text.split(',').all(|pair| pair.split_once(':').is_some() && is_list_of_numbers(&pair.replace(':', ",")))
        }
        "health_check_method" => ["GET", "HEAD", "POST", "OPTIONS"].contains(&text),
        "health_check_scheme" => ["http", "https"].contains(&text),
        "health_check_type" => ["http", "cmd"].contains(&text),
        "health_check_port" => text.parse::<u16>().is_ok_and(|port| port > 0),
        "redirect" => ["www", "non-www", "both"].contains(&text),
        "custom_labels" => {
            base64::prelude::BASE64_STANDARD.decode(text).is_ok_and(|text| str::from_utf8(&text).is_ok())
        }
        "docker_registry_image_name" => is_image(text),
        "docker_registry_image_tag" => is_tag(text),
        "stop_grace_period" => (1..=3600).contains(&number),
        "docker_images_to_keep" => (0..=100).contains(&number),
        "max_restart_count" => number >= 0,
        _ => true,
    }
}

fn is_key(text: &str) -> bool {
    let may_begin = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
    text.starts_with(may_begin)
        && text.chars().all(|letter| may_begin(letter) || letter.is_ascii_digit() || letter == '.')
}

/// A tag has its own field. The name may contain the tag only if that field is empty.
fn is_image(text: &str) -> bool {
    let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._-/:@".contains(letter);
    (1..=255).contains(&text.len()) && text.chars().all(may_be)
}

fn is_tag(text: &str) -> bool {
    let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    (1..=128).contains(&text.len()) && !text.starts_with(['.', '-']) && text.chars().all(may_be)
}
