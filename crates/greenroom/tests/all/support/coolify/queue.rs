//! The queue of deployments. A limited number of a server's deployments are in progress at once, and one of each
//! application. The others wait.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::CoolifyEvent;
use super::world::{Container, World, new_uuid, now, started};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentState {
    Queued,
    InProgress,
    Finished,
    Failed,
    Cancelled,
}

impl DeploymentState {
    pub fn name(self) -> &'static str {
        match self {
            DeploymentState::Queued => "queued",
            DeploymentState::InProgress => "in_progress",
            DeploymentState::Finished => "finished",
            DeploymentState::Failed => "failed",
            DeploymentState::Cancelled => "cancelled-by-user",
        }
    }

    pub fn is_open(self) -> bool {
        matches!(self, DeploymentState::Queued | DeploymentState::InProgress)
    }
}

#[derive(Clone, Debug)]
pub struct Deployment {
    pub id: usize,
    pub uuid: String,
    pub application: String,
    pub application_id: i64,
    pub application_name: String,
    pub state: DeploymentState,
    pub forced: bool,
    pub is_restart: bool,
    pub lines: Vec<String>,
    pub created: String,
    pub(super) ends_at: Option<Instant>,
    /// The variables at the time when the deployment began.
    envs: BTreeMap<String, String>,
    fails: bool,
}

/// The result of a request to deploy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queued {
    As(String),
    /// A deployment of the application is already in progress.
    Skipped,
    /// The server's queue is full, and nothing was queued.
    QueueFull,
}

impl World {
    /// Queues a deployment. With `at_once`, it begins whatever else is in progress, like an instant deployment.
    pub fn deploy(&mut self, uuid: &str, forced: bool, at_once: bool, is_restart: bool) -> Queued {
        let queued = self.deployments.iter().filter(|deployment| deployment.state == DeploymentState::Queued).count();
        if queued >= self.settings.queue {
            return Queued::QueueFull;
        }
        let is_under_way = |deployment: &Deployment| deployment.application == uuid && deployment.state.is_open();
        if self.deployments.iter().any(is_under_way) && !forced && !at_once {
            return Queued::Skipped;
        }
        let Some(application) = self.application(uuid) else { return Queued::Skipped };
        let (application_id, application_name) = (application.id, application.name().to_owned());
        let deployment = Deployment {
            id: self.deployments.len() + 1,
            uuid: new_uuid(),
            application: uuid.to_owned(),
            application_id,
            application_name,
            state: DeploymentState::Queued,
            forced,
            is_restart,
            lines: Vec::new(),
            created: now(),
            ends_at: None,
            envs: BTreeMap::new(),
            fails: false,
        };
        let uuid = deployment.uuid.clone();
        self.deployments.push(deployment);
        let open = self.deployments.iter().filter(|deployment| deployment.state.is_open()).count();
        self.most_deployments_at_once = self.most_deployments_at_once.max(open);
        if at_once {
            self.begin(self.deployments.len() - 1, Instant::now());
        }
        self.pass();
        Queued::As(uuid)
    }

    /// At most one deployment of an application is in progress, and a limited number of the server.
    pub(super) fn may_begin(&self, index: usize) -> bool {
        let in_progress =
            || self.deployments.iter().filter(|deployment| deployment.state == DeploymentState::InProgress);
        let is_same = |other: &Deployment| other.application == self.deployments[index].application;
        in_progress().count() < self.settings.deployments_at_once && !in_progress().any(is_same)
    }

    pub(super) fn begin(&mut self, index: usize, now: Instant) {
        let ends_at = now + self.settings.deployment;
        let uuid = self.deployments[index].application.clone();
        let fails = self.failing.pop_front();
        let Some(application) = self.application(&uuid) else {
            self.deployments[index].state = DeploymentState::Failed;
            return;
        };
        application.deployed = true;
        if application.container.is_none() {
            application.status = "starting:unknown".to_owned();
        }
        let (image, envs) = (application.image(), application.envs());
        let deployment = &mut self.deployments[index];
        deployment.state = DeploymentState::InProgress;
        deployment.ends_at = Some(ends_at);
        deployment.envs = envs;
        deployment.lines.push(format!("Starting deployment of {image} to localhost."));
        deployment.lines.push("Pulling latest images from the registry.".to_owned());
        deployment.fails = fails.is_some();
        deployment.lines.extend(fails.unwrap_or_default());
        self.pulls.push(image);
    }

    /// Ends a deployment. Without a fixed container name or a mapped port, the new container runs before the old one
    /// stops.
    pub(super) fn finish(&mut self, index: usize, now: Instant) {
        let shown_at = now + self.settings.shown_after;
        let healthy_at = self.settings.healthy_after.map(|after| shown_at + after);
        let serves_http = self.settings.serves_http;
        let Deployment { application: uuid, envs, fails, .. } = self.deployments[index].clone();
        let Some(application) = self.application(&uuid).filter(|_| !fails) else {
            return self.fail(index);
        };
        application.containers += 1;
        let is_named = application.flag("is_consistent_container_name_enabled");
        let is_alone = is_named || application.text("ports_mappings").is_some();
        let name = if is_named { uuid.clone() } else { format!("{uuid}-{}", application.containers) };
        let is_unhealthy = application.flag("health_check_enabled") && !serves_http;
        let healthy_at = healthy_at.filter(|_| !is_unhealthy);
        let container = Container { name: name.clone(), envs, healthy_at, again_at: None };
        let started = started(application, &container);
        if is_unhealthy && !is_alone {
            self.emit(started);
            self.emit(CoolifyEvent::Stopped { uuid, container: name });
            let line = "New container is not healthy, rolling back to the old container.";
            self.deployments[index].lines.push(line.to_owned());
            return self.fail(index);
        }
        let old = application.container.replace(container).filter(|old| old.again_at.is_none());
        application.restarts = 0;
        let status = if is_unhealthy { "running:unhealthy" } else { "running:unknown" };
        application.status = if shown_at > now { "exited" } else { status }.to_owned();
        application.shown_at = Some((shown_at, status)).filter(|_| shown_at > now);
        let stopped = old.map(|old| CoolifyEvent::Stopped { uuid, container: old.name });
        let (first, then) = if is_alone { (stopped, Some(started)) } else { (Some(started), stopped) };
        first.into_iter().chain(then).for_each(|event| self.emit(event));
        self.deployments[index].state = DeploymentState::Finished;
        self.deployments[index].lines.push("New container started.".to_owned());
    }

    /// Finishes the deployment of an application at once.
    pub fn finish_now(&mut self, uuid: &str) {
        let is_it =
            |deployment: &Deployment| deployment.application == uuid && deployment.state == DeploymentState::InProgress;
        if let Some(index) = self.deployments.iter().position(is_it) {
            self.finish(index, Instant::now());
        }
    }

    fn fail(&mut self, index: usize) {
        self.deployments[index].state = DeploymentState::Failed;
        self.settle(index);
    }

    pub fn cancel(&mut self, index: usize) {
        self.deployments[index].state = DeploymentState::Cancelled;
        self.deployments[index].lines.push("Deployment cancelled by user via API.".to_owned());
        self.settle(index);
        self.pass();
    }

    /// An application whose deployment failed or was cancelled is not starting any more.
    fn settle(&mut self, index: usize) {
        let uuid = self.deployments[index].application.clone();
        if let Some(application) = self.application(&uuid).filter(|application| application.container.is_none()) {
            application.status = "exited".to_owned();
        }
    }
}
