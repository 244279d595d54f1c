//! Checks Coolify for the operator: the connection, the token, the project, the environment and the server.

use reqwest::StatusCode;
use serde_json::Value;

use super::CoolifyProvider;
use super::api::Failure;
use super::watch::Needs;
use crate::ProviderError;
use crate::budget::Urgency;
use crate::check::Check;

impl CoolifyProvider {
    pub(super) async fn examine(&self, slots: u32) -> Vec<Check> {
        let config = &self.recipe.config;
        let version = match self.coolify.api.get(Urgency::Wanted, "version").await {
            Ok(answer) => answer.text.trim().trim_matches('"').to_owned(),
            Err(Failure::Refused { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, text, .. }) => {
                let there = Check::good("reachable", format!("Coolify answers at {}", config.api_url));
                return vec![there, Check::bad("token", text)];
            }
            Err(failure) => return vec![Check::bad("reachable", ProviderError::from(failure).message)],
        };
        let mut checks = vec![
            Check::good("reachable", format!("Coolify {version} at {}", config.api_url)),
            Check::good("token", "Coolify accepts the token"),
        ];
        checks.extend(self.check_project().await);
        checks.push(self.check_server().await);
        checks.push(self.check_applications(slots).await);
        checks
    }

    async fn read(&self, path: &str) -> Result<Value, Failure> {
        self.coolify.api.get(Urgency::Wanted, path).await?.json()
    }

    async fn check_project(&self) -> Vec<Check> {
        let (project, environment) = (&self.recipe.config.project_uuid, &self.recipe.config.environment_name);
        let found = match self.read(&format!("projects/{project}")).await {
            Ok(found) => found,
            Err(refused) if refused.is_absent("Project") => {
                return vec![Check::bad("project", format!("there is no project {project}"))];
            }
            Err(failure) => return vec![Check::bad("project", ProviderError::from(failure).message)],
        };
        let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
        let there = Check::good("project", format!("{} exists", name(&found)));
        let names: Option<Vec<String>> = found["environments"].as_array().map(|all| all.iter().map(name).collect());
        let environment = match names {
            Some(names) if names.contains(environment) => Check::good("environment", format!("{environment} exists")),
            Some(names) => {
                let text = format!("the project has no environment {environment}; it has {}", names.join(", "));
                Check::bad("environment", text)
            }
            None => {
                let found = self.read(&format!("projects/{project}/{environment}")).await;
                Check::of("environment", found.map(|_| format!("{environment} exists")).map_err(Into::into))
            }
        };
        vec![there, environment]
    }

    async fn check_server(&self) -> Check {
        let server = &self.recipe.config.server_uuid;
        let found = match self.read(&format!("servers/{server}")).await {
            Ok(found) => found,
            Err(refused) if refused.is_absent("Server") => {
                return Check::bad("server", format!("there is no server {server}"));
            }
            Err(failure) => return Check::bad("server", ProviderError::from(failure).message),
        };
        let name = found["name"].as_str().unwrap_or(server);
        // Their place depends on the version.
        let is = |flag: &str| [&found[flag], &found["settings"][flag]].into_iter().find_map(Value::as_bool);
        match (is("is_reachable"), is("is_usable")) {
            (Some(false), _) => Check::bad("server", format!("Coolify cannot reach the server {name}")),
            (_, Some(false)) => Check::bad("server", format!("Coolify cannot use the server {name}")),
            (Some(true), Some(true)) => Check::good("server", format!("{name} is reachable and usable")),
            _ => Check::doubtful("server", format!("{name} exists; Coolify does not report whether it is usable")),
        }
    }

    async fn check_applications(&self, slots: u32) -> Check {
        let found = self.coolify.listing(Needs::Applications).await;
        let counts = found.map(|listing| {
            let (all, running) =
                (listing.applications.len(), listing.applications.iter().filter(|one| !one.has_ended()).count());
            format!("{all} belong to this installation, and {running} of them run; this pool may have {slots}")
        });
        Check::of("applications", counts)
    }
}
