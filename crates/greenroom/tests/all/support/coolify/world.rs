//! The state of the fake Coolify: applications and their containers.
//! This module does not know HTTP. [`World::pass`] carries out each timed action when it is due.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::queue::{Deployment, DeploymentState};
use super::{CoolifyEvent, CoolifySettings};

pub const PROJECT: &str = "project0project0project0";
pub const ENVIRONMENT: &str = "production00production00";
/// Another environment of the same project, with applications of others.
pub const ELSEWHERE: &str = "staging00000staging00000";
pub const SERVER: &str = "server000server000server";

pub const ENVIRONMENT_ID: i64 = 7;
pub const ELSEWHERE_ID: i64 = 8;

#[derive(Clone, Debug)]
pub struct Variable {
    pub uuid: String,
    pub key: String,
    pub value: Option<String>,
    /// Its flags and its comment.
    pub rest: Map<String, Value>,
    /// Each variable has a copy for previews, which is listed under the same key.
    pub is_preview: bool,
}

#[derive(Clone, Debug)]
pub struct Application {
    pub id: i64,
    pub uuid: String,
    pub environment_id: i64,
    /// The fields that were set or changed, except those that say where the application is.
    pub fields: Map<String, Value>,
    pub domains: Option<String>,
    pub status: String,
    pub variables: Vec<Variable>,
    /// Whether the application was ever deployed. After that, a change of its variables needs another deployment.
    pub deployed: bool,
    pub restarts: i64,
    pub created: String,
    pub(super) container: Option<Container>,
    pub(super) containers: usize,
    /// When the container's state is shown, and which state.
    pub(super) shown_at: Option<(Instant, &'static str)>,
    stops: Vec<Stop>,
    deleted_at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) envs: BTreeMap<String, String>,
    pub(super) healthy_at: Option<Instant>,
    /// When Docker restarts the container, which has ended.
    pub(super) again_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    at: Instant,
    prunes: bool,
    is_deletion: bool,
}

#[derive(Debug)]
pub struct World {
    pub settings: CoolifySettings,
    pub applications: Vec<Application>,
    pub deployments: Vec<Deployment>,
    pub pulls: Vec<String>,
    pub prunes: usize,
    /// How many containers run although their applications were deleted.
    pub orphans: usize,
    pub deleted_volumes: usize,
    pub env_changes_after_deployment: usize,
    pub most_deployments_at_once: usize,
    /// The log lines of the next deployments, which fail.
    pub failing: VecDeque<Vec<String>>,
    /// Deployments in progress do not end.
    pub held: bool,
    events: UnboundedSender<CoolifyEvent>,
    made: i64,
}

/// Coolify's identifiers are 24 small letters and digits.
pub fn new_uuid() -> String {
    uuid::Uuid::new_v4().simple().to_string()[..24].to_owned()
}

pub fn now() -> String {
    jiff::Timestamp::now().to_string()
}

impl Variable {
    /// Whether nothing in the value is replaced. A value with several lines also counts as literal.
    pub fn is_literal(&self) -> bool {
        ["is_literal", "is_multiline"].iter().any(|flag| self.rest[*flag] == json!(true))
    }

    /// The value in the container. In a value that is not literal, a reference to a variable is replaced by that
    /// variable's value, which is empty here.
    fn within(&self) -> String {
        let value = self.value.clone().unwrap_or_default();
        if self.is_literal() {
            return value;
        }
        let mut parts = value.split('$');
        let first = parts.next().unwrap_or_default().to_owned();
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_{}".contains(letter);
        parts.fold(first, |value, part| value + part.trim_start_matches(is_name))
    }
}

impl Application {
    pub fn name(&self) -> &str {
        self.fields.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    pub fn flag(&self, field: &str) -> bool {
        self.fields.get(field).and_then(Value::as_bool).unwrap_or_default()
    }

    pub fn image(&self) -> String {
        let part = |field| self.text(field).unwrap_or_default();
        format!("{}:{}", part("docker_registry_image_name"), part("docker_registry_image_tag"))
    }

    pub fn is_running(&self) -> bool {
        self.container.as_ref().is_some_and(|container| container.again_at.is_none())
    }

    /// The environment of the container.
    pub fn envs(&self) -> BTreeMap<String, String> {
        let is_at_runtime = |variable: &&Variable| !variable.is_preview && variable.rest["is_runtime"] == json!(true);
        let pair = |variable: &Variable| (variable.key.clone(), variable.within());
        self.variables.iter().filter(is_at_runtime).map(pair).collect()
    }
}

impl World {
    pub fn new(settings: CoolifySettings, events: UnboundedSender<CoolifyEvent>) -> Self {
        Self {
            settings,
            applications: Vec::new(),
            deployments: Vec::new(),
            pulls: Vec::new(),
            prunes: 0,
            orphans: 0,
            deleted_volumes: 0,
            env_changes_after_deployment: 0,
            most_deployments_at_once: 0,
            failing: VecDeque::new(),
            held: false,
            events,
            made: 0,
        }
    }

    pub fn application(&mut self, uuid: &str) -> Option<&mut Application> {
        self.applications.iter_mut().find(|application| application.uuid == uuid)
    }

    /// Creates an application. Another application may have the same name.
    pub fn create(&mut self, environment_id: i64, fields: Map<String, Value>) -> &mut Application {
        self.made += 1;
        let application = Application {
            id: self.made,
            uuid: new_uuid(),
            environment_id,
            fields,
            domains: None,
            status: "exited".to_owned(),
            variables: Vec::new(),
            deployed: false,
            restarts: 0,
            created: now(),
            container: None,
            containers: 0,
            shown_at: None,
            stops: Vec::new(),
            deleted_at: None,
        };
        self.applications.push(application);
        self.applications.last_mut().expect("it was just added")
    }

    /// Schedules a stop. It ends the container that runs then, but no deployment.
    pub fn stop(&mut self, uuid: &str, prunes: bool) {
        let at = Instant::now() + self.settings.stop;
        if let Some(application) = self.application(uuid) {
            application.stops.push(Stop { at, prunes, is_deletion: false });
        }
    }

    pub fn delete(&mut self, uuid: &str, prunes: bool) {
        let at = Instant::now() + self.settings.delete;
        if let Some(application) = self.application(uuid) {
            application.deleted_at.get_or_insert(at);
            application.stops.push(Stop { at, prunes, is_deletion: true });
        }
    }

    /// Removes an application and its container.
    pub fn remove(&mut self, uuid: &str) {
        self.end_container(uuid);
        self.applications.retain(|application| application.uuid != uuid);
    }

    pub fn crash(&mut self, uuid: &str) {
        self.end_container(uuid);
        if let Some(application) = self.application(uuid) {
            application.status = "exited:unhealthy".to_owned();
        }
    }

    /// The process in a container ends by itself. Docker restarts it after any exit code, because Coolify's containers
    /// restart "unless stopped". After a number of restarts, Coolify stops it.
    pub fn exit(&mut self, uuid: &str) {
        let again_at = Instant::now() + self.settings.restart;
        let Some(application) = self.application(uuid) else { return };
        let most = application.fields.get("max_restart_count").and_then(Value::as_i64).unwrap_or(10);
        let Some(container) = application.container.as_mut().filter(|container| container.again_at.is_none()) else {
            return;
        };
        container.again_at = Some(again_at);
        container.healthy_at = None;
        let name = container.name.clone();
        application.restarts += 1;
        application.status = "restarting:unknown".to_owned();
        let is_enough = most > 0 && application.restarts >= most;
        self.emit(CoolifyEvent::Stopped { uuid: uuid.to_owned(), container: name });
        if is_enough {
            self.stop(uuid, true);
        }
    }

    /// Carries out every timed action that is due.
    pub fn pass(&mut self) {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        for index in 0..self.deployments.len() {
            let deployment = &self.deployments[index];
            if deployment.state == DeploymentState::InProgress && is_due(deployment.ends_at) && !self.held {
                self.finish(index, now);
            }
        }
        for uuid in self.applications.iter().map(|application| application.uuid.clone()).collect::<Vec<_>>() {
            self.pass_in(&uuid, now);
        }
        for index in 0..self.deployments.len() {
            if self.deployments[index].state == DeploymentState::Queued && self.may_begin(index) {
                self.begin(index, now);
            }
        }
    }

    fn pass_in(&mut self, uuid: &str, now: Instant) {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let healthy_after = self.settings.healthy_after;
        let Some(application) = self.application(uuid) else { return };
        if let Some(container) = &mut application.container {
            if let Some((_, status)) = application.shown_at.take_if(|(at, _)| *at <= now) {
                application.status = status.to_owned();
            }
            if is_due(container.healthy_at) {
                container.healthy_at = None;
                application.status = "running:healthy".to_owned();
            }
            if is_due(container.again_at) && application.stops.is_empty() {
                container.again_at = None;
                container.healthy_at = healthy_after.map(|after| now + after);
                application.status = "running:unknown".to_owned();
                let container = container.clone();
                let started = started(application, &container);
                self.emit(started);
            }
        }
        let Some(application) = self.application(uuid) else { return };
        let is_deleted = is_due(application.deleted_at);
        let due: Vec<Stop> = application.stops.extract_if(.., |stop| stop.at <= now).collect();
        self.prunes += due.iter().filter(|stop| stop.prunes).count();
        for stop in due {
            self.carry_out(uuid, stop);
        }
        if is_deleted {
            self.forget(uuid);
        }
    }

    fn carry_out(&mut self, uuid: &str, stop: Stop) {
        if self.settings.server_is_down || (stop.is_deletion && self.settings.delete_leaves) {
            return;
        }
        if !self.settings.stop_only_shows {
            return self.end_container(uuid);
        }
        if let Some(application) = self.application(uuid) {
            application.status = "exited".to_owned();
        }
    }

    /// Deletes an application, whether or not its container could be ended.
    fn forget(&mut self, uuid: &str) {
        self.orphans += usize::from(self.application(uuid).is_some_and(|application| application.is_running()));
        self.applications.retain(|application| application.uuid != uuid);
    }

    fn end_container(&mut self, uuid: &str) {
        let Some(application) = self.application(uuid) else { return };
        application.status = "exited".to_owned();
        application.shown_at = None;
        // For a container that has ended by itself, the event was already sent.
        let ended = application.container.take().filter(|container| container.again_at.is_none());
        if let Some(Container { name, .. }) = ended {
            self.emit(CoolifyEvent::Stopped { uuid: uuid.to_owned(), container: name });
        }
    }

    pub(super) fn emit(&self, event: CoolifyEvent) {
        // A test need not listen.
        let _ = self.events.send(event);
    }
}

pub(super) fn started(application: &Application, container: &Container) -> CoolifyEvent {
    CoolifyEvent::Started {
        uuid: application.uuid.clone(),
        name: application.name().to_owned(),
        container: container.name.clone(),
        envs: container.envs.clone(),
    }
}
