//! Reads Coolify's answers: the applications of this installation, and deployments.

use domain::SlotName;
use serde_json::Value;

use super::marks::Marks;
use crate::{Found, ProviderError, log_tail};

/// An application of this installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Application {
    pub uuid: String,
    pub slot: SlotName,
    /// In Coolify's words: `running:healthy`, `exited`.
    pub status: String,
    /// All options of `docker run`, which include our marks.
    pub options: String,
    pub marks: Marks,
    description: String,
    created: String,
}

impl Application {
    /// An application that was made just now.
    pub fn made(uuid: String, slot: SlotName, options: String) -> Self {
        let marks = Marks::read(&options).unwrap_or_default();
        let (description, created) = (String::new(), "~".to_owned());
        Self { uuid, slot, status: "exited".to_owned(), options, marks, description, created }
    }

    fn read(value: &Value, installation: &str) -> Result<Option<Self>, ProviderError> {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        if !value.is_object() || text("uuid").is_empty() {
            return Err(ProviderError::transient("Coolify's list of applications has an entry without a uuid"));
        }
        let options = text("custom_docker_run_options");
        let is_ours = |marks: &Marks| marks.installation == installation && marks.are_of(&text("uuid"));
        let Some(marks) = Marks::read(&options).filter(is_ours) else {
            return Ok(None);
        };
        let slot = SlotName::stored(marks.slot.clone());
        let [uuid, status, description, created] = ["uuid", "status", "description", "created_at"].map(text);
        Ok(Some(Self { uuid, slot, status, options, marks, description, created }))
    }

    fn state(&self) -> &str {
        self.status.split(':').next().unwrap_or_default()
    }

    /// Whether Coolify shows it as ended. Every other status counts as running. It proves nothing alone: Coolify also
    /// shows this if it has stopped nothing, or cannot reach the server.
    pub fn has_ended(&self) -> bool {
        self.state() == "exited"
    }

    /// Whether the started application runs.
    pub fn runs(&self) -> bool {
        self.state() == "running"
    }

    pub fn was_started(&self) -> bool {
        self.marks.start.is_some()
    }

    pub fn found(&self) -> Found {
        let unhealthy = self.status.split(':').any(|word| word == "unhealthy");
        let description = Some(self.description.clone());
        Found { unhealthy, description, ..Found::new(self.slot.clone(), !self.has_ended(), self.status.as_str()) }
    }

    /// The order of several applications of one slot; the first one is kept. A started one comes first, then the
    /// oldest. Only a creation whose answer was lost leaves a second application, which was never started.
    pub fn order(&self) -> (bool, &str, &str) {
        (!self.was_started(), &self.created, &self.uuid)
    }
}

/// Reads the applications of this installation from the list of all.
pub fn applications(body: &Value, installation: &str) -> Result<Vec<Application>, ProviderError> {
    let list =
        body.as_array().ok_or_else(|| ProviderError::transient("Coolify's answer is not a list of applications"))?;
    let mut ours = Vec::new();
    for value in list {
        ours.extend(Application::read(value, installation)?);
    }
    ours.sort_by(|one, other| (&one.slot, one.order()).cmp(&(&other.slot, other.order())));
    Ok(ours)
}

/// A deployment that is queued or in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDeployment {
    pub uuid: String,
    /// Its page at Coolify, whose address names its application.
    url: String,
}

impl OpenDeployment {
    pub fn is_of(&self, application: &str) -> bool {
        self.url.split('/').any(|part| part == application)
    }
}

/// Reads the list of deployments. Coolify sometimes answers with an object whose keys are numbers.
pub fn open_deployments(body: &Value) -> Result<Vec<OpenDeployment>, ProviderError> {
    let values: Vec<&Value> = match body {
        Value::Array(list) => list.iter().collect(),
        Value::Object(numbered) if numbered.keys().all(|key| key.parse::<u64>().is_ok()) => numbered.values().collect(),
        _ => return Err(ProviderError::transient("Coolify's answer is not a list of deployments")),
    };
    let read = |value: &Value| {
        let text = |name: &str| Some(value[name].as_str()?.to_owned());
        let (uuid, url) = text("deployment_uuid").zip(text("deployment_url"))?;
        Some(OpenDeployment { uuid, url })
    };
    let all: Option<Vec<OpenDeployment>> = values.into_iter().map(read).collect();
    all.ok_or_else(|| ProviderError::transient("Coolify's list of deployments has an entry without a uuid or a URL"))
}

/// The state of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeploymentState {
    Unfinished,
    Finished,
    /// It failed, with its status and log.
    Ended {
        status: String,
        lines: Option<String>,
    },
}

impl DeploymentState {
    pub fn read(body: &Value) -> Self {
        match body["status"].as_str().unwrap_or_default() {
            "queued" | "in_progress" => DeploymentState::Unfinished,
            "finished" => DeploymentState::Finished,
            other => DeploymentState::Ended { status: other.to_owned(), lines: log(body) },
        }
    }
}

/// The log of a deployment. It is a text that contains a JSON list. A token without the right to read secrets gets
/// none.
pub fn log(deployment: &Value) -> Option<String> {
    let entries: Value = serde_json::from_str(deployment["logs"].as_str()?).ok()?;
    let shown = entries.as_array()?.iter().filter(|entry| entry["hidden"] != Value::Bool(true));
    let lines: Vec<&str> = shown.filter_map(|entry| entry["output"].as_str()).collect();
    log_tail::lines(&lines.join("\n"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(status: &str, start: &str, created: &str) -> Value {
        let options = format!("--label greenroom.installation=i --label greenroom.slot=pool-a-001{start}");
        json!({"uuid": "u", "status": status, "custom_docker_run_options": options, "created_at": created})
    }

    #[test]
    fn an_application_counts_as_running_unless_it_has_certainly_ended() {
        let found = |status| applications(&json!([one(status, "", "1")]), "i").unwrap()[0].found();
        for running in ["running:healthy", "running:unknown", "starting:unknown", "restarting:unknown", "degraded", ""]
        {
            assert!(found(running).running, "{running}");
        }
        assert!(!found("exited").running && !found("exited:unhealthy").running);
        assert!(found("running:unhealthy").unhealthy && !found("running:unknown").unhealthy);
    }

    #[test]
    fn of_two_applications_the_started_one_is_kept_or_else_the_first() {
        let started = " --label greenroom.start=1/a";
        let list = |all: [Value; 2]| applications(&json!(all), "i").unwrap().remove(0).created;
        assert_eq!(list([one("exited", "", "2"), one("exited", "", "1")]), "1");
        assert_eq!(list([one("exited", "", "1"), one("running", started, "2")]), "2");
    }

    #[test]
    fn a_cloned_application_belongs_to_no_slot() {
        let own = |uuid: &str| one("running", &format!(" --label greenroom.application={uuid}"), "1");
        assert_eq!(applications(&json!([own("u")]), "i").unwrap().len(), 1);
        assert_eq!(applications(&json!([own("v")]), "i").unwrap(), []);
    }

    #[test]
    fn an_answer_that_is_no_list_is_an_error_and_never_empty() {
        assert!(applications(&json!({"message": "no"}), "i").is_err());
        assert!(applications(&json!([{"name": "no uuid"}]), "i").is_err());
        assert!(open_deployments(&json!({"message": "no"})).is_err());
        let open =
            json!({"deployment_uuid": "d", "deployment_url": "/project/p/environment/e/application/u/deployment/d"});
        for body in [json!([open]), json!({"3": open})] {
            assert!(open_deployments(&body).unwrap()[0].is_of("u"));
        }
    }

    #[test]
    fn the_log_of_a_deployment_is_what_a_person_is_shown() {
        let entries = json!([{"output": "Pulling", "hidden": false}, {"output": "secret", "hidden": true}]).to_string();
        assert_eq!(log(&json!({"logs": entries})).as_deref(), Some("Pulling"));
        assert_eq!(log(&json!({})), None);
    }
}
