//! Builds the applications of slots: their settings, their variables and their fingerprints.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::marks::{self, Marks};
use crate::Spec;
use crate::fingerprint::fingerprint;
use config::provider::CoolifyConfig;

const MIB: u64 = 1024 * 1024;
/// How long processes may take to end by themselves before they are killed, in seconds.
const GRACE: u32 = 5;
/// Coolify requires a port, even for an application without one. Without a domain, no traffic reaches it.
const PORT: &str = "80";
/// The longest description that Coolify stores.
const LONGEST_DESCRIPTION: usize = 255;
/// Fields that older versions do not know, and that a slot can work without.
pub const DISPENSABLE: [&str; 3] = ["is_consistent_container_name_enabled", "stop_grace_period", "autogenerate_domain"];

#[derive(Debug)]
pub struct Recipe {
    pub config: CoolifyConfig,
    pub installation: String,
}

impl Recipe {
    /// The fingerprint of an application, including its slot's token. If it changes, the application is made again.
    fn fingerprint(&self, spec: &Spec) -> String {
        let (url, life) = (spec.environment.get("GREENROOM_URL"), marks::life(spec));
        fingerprint(&format!("{}{url:?}{life}", self.text()))
    }

    /// The fingerprint of the settings that all applications of the pool share.
    pub fn own_fingerprint(&self) -> String {
        fingerprint(&self.text())
    }

    fn text(&self) -> String {
        let CoolifyConfig { project_uuid, server_uuid, environment_name, destination_uuid, .. } = &self.config;
        let CoolifyConfig { image, tag, cpus, memory, env, .. } = &self.config;
        let location = format!("{project_uuid:?}{server_uuid:?}{environment_name:?}{destination_uuid:?}");
        format!("{location}{image:?}{tag:?}{cpus:?}{memory:?}{env:?}")
    }

    /// The marks of an application that was never started.
    pub fn marks(&self, spec: &Spec) -> Marks {
        let (installation, slot) = (self.installation.clone(), spec.slot.to_string());
        Marks { installation, slot, recipe: self.fingerprint(spec), own: None, start: None }
    }

    /// The fields of the request that makes an application.
    pub fn body(&self, spec: &Spec, options: &str, description: Option<&str>) -> Map<String, Value> {
        let CoolifyConfig { project_uuid, server_uuid, environment_name, destination_uuid, .. } = &self.config;
        let CoolifyConfig { image, tag, cpus, memory, .. } = &self.config;
        let (image, tag) = reference(image, tag);
        let mut body = json!({
            "project_uuid": project_uuid,
            "server_uuid": server_uuid,
            "environment_name": environment_name,
            "docker_registry_image_name": image,
            "docker_registry_image_tag": tag,
            "name": spec.slot.as_str(),
            "custom_docker_run_options": options,
            "ports_exposes": PORT,
            "instant_deploy": false,
            // A slot serves no requests: it has no address, and Coolify cannot check its health.
            "autogenerate_domain": false,
            "health_check_enabled": false,
            // Two agents of one slot never run at once, not even during a deployment.
            "is_consistent_container_name_enabled": true,
            "stop_grace_period": GRACE,
        });
        let optional_settings = [
            ("destination_uuid", destination_uuid.clone()),
            ("description", description.map(cut)),
            ("limits_memory", memory.map(amount)),
            ("limits_cpus", cpus.map(|cpus| cpus.to_string())),
        ];
        for (name, value) in optional_settings {
            if let Some(value) = value {
                body[name] = value.into();
            }
        }
        match body {
            Value::Object(body) => body,
            _ => Map::new(),
        }
    }

    /// The variables that an application gets before its first start, and keeps.
    pub fn variables(&self, spec: &Spec) -> Value {
        let all: BTreeMap<&String, &String> = self.config.env.iter().chain(&spec.environment).collect();
        let data = all.into_iter().map(|(key, value)| {
            // Literal: Coolify does not replace variables inside a value.
            json!({"key": key, "value": value, "is_preview": false, "is_literal": true, "is_multiline": value.contains('\n')})
        });
        json!({ "data": data.collect::<Vec<_>>() })
    }
}

/// A description, cut to the length that Coolify stores.
pub fn cut(description: &str) -> String {
    description.chars().take(LONGEST_DESCRIPTION).collect()
}

/// The name and the tag of an image. Coolify joins them with a colon. A digest is `name@sha256` and its digits.
fn reference(image: &str, tag: &str) -> (String, String) {
    match tag.strip_prefix("sha256:") {
        Some(digits) => (format!("{image}@sha256"), digits.to_owned()),
        None => (image.to_owned(), tag.to_owned()),
    }
}

/// An amount of memory in Docker's notation.
fn amount(bytes: u64) -> String {
    if bytes.is_multiple_of(MIB) { format!("{}m", bytes / MIB) } else { format!("{bytes}b") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_split_as_coolify_joins_it() {
        let digits = "ab".repeat(32);
        assert_eq!(reference("team/bot", &format!("sha256:{digits}")), ("team/bot@sha256".to_owned(), digits));
        assert_eq!(reference("team/bot", "1.4"), ("team/bot".to_owned(), "1.4".to_owned()));
    }

    #[test]
    fn memory_is_written_as_docker_writes_it() {
        assert_eq!(amount(512 * MIB), "512m");
        assert_eq!(amount(5_000_000), "5000000b");
    }
}
