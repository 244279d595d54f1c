//! A fake of Coolify 4, as far as a provider needs it: an HTTP server that checks requests strictly.
//! It refuses requests that Coolify refuses, with Coolify's texts. It records each request that does not follow the
//! published specification, and a test asserts that [`CoolifyFake::violations`] is empty. Like Coolify, it limits the
//! rate of requests, queues deployments, and finishes some actions after it has answered. A test can set all its times,
//! so that a minute may last two seconds.

mod answers;
mod fields;
mod operations;
mod queue;
mod server;
mod variables;
mod view;
mod world;

pub use operations::Operation;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use server::{Shared, State};
use world::World;

/// The only token that the fake accepts. Its user has all permissions.
pub const COOLIFY_TOKEN: &str = "1|coolify-token";

/// The HTTP method of start, stop and deploy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Since 4.2: only POST.
    Posts,
    /// Only GET, as in the specifications before 4.2.
    Gets,
    /// Both, as 4.0 and 4.1 really serve.
    Both,
}

impl Dialect {
    pub fn version(self) -> &'static str {
        match self {
            Dialect::Posts => "4.3.11",
            Dialect::Gets => "4.0.0",
            Dialect::Both => "4.1.2",
        }
    }
}

/// The settings of the fake, and the duration of each action.
#[derive(Clone, Debug)]
pub struct CoolifySettings {
    pub dialect: Dialect,
    /// The number of requests that are answered in a window. A window begins with its first request.
    pub limit: u32,
    pub window: Duration,
    /// How long a deployment is in progress.
    pub deployment: Duration,
    /// How many deployments are in progress at once, and how many wait behind them.
    pub deployments_at_once: usize,
    pub queue: usize,
    /// How long a container takes to become healthy. With `None`, the image has no health check, and its health stays
    /// unknown.
    pub healthy_after: Option<Duration>,
    pub stop: Duration,
    pub delete: Duration,
    /// How long Docker waits before it restarts a container that has ended by itself.
    pub restart: Duration,
    /// Whether Coolify's own health check, if an application has it on, finds an HTTP server. If not, such a deployment
    /// fails.
    pub serves_http: bool,
    /// Whether the token may read secrets. If not, values of variables and logs of deployments are left out.
    pub reads_secrets: bool,
    /// How long a container runs before its application is shown as running.
    pub shown_after: Duration,
    /// A stop ends nothing, but the application is shown as exited: Coolify ignores Docker's answer.
    pub stop_only_shows: bool,
    /// A deletion removes the application, but its container keeps running, because Coolify could not reach the server.
    pub delete_leaves: bool,
    /// Coolify cannot reach the server: a stop does nothing, and Coolify cannot find out what runs there.
    pub server_is_down: bool,
    /// Whether the list of deployments is an object with numbers as keys, which Coolify sometimes returns.
    pub deployments_as_object: bool,
}

impl Default for CoolifySettings {
    fn default() -> Self {
        Self {
            dialect: Dialect::Posts,
            limit: 200,
            window: Duration::from_secs(60),
            deployment: Duration::from_millis(50),
            deployments_at_once: 2,
            queue: 25,
            healthy_after: Some(Duration::from_millis(20)),
            stop: Duration::from_millis(30),
            delete: Duration::from_millis(30),
            restart: Duration::from_millis(20),
            serves_http: false,
            reads_secrets: true,
            shown_after: Duration::ZERO,
            stop_only_shows: false,
            delete_leaves: false,
            server_is_down: false,
            deployments_as_object: false,
        }
    }
}

/// How a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoolifyFault {
    /// The fake carries out the request, and answers this much later.
    Slow(Duration),
    /// The fake carries out the request, and closes the connection without an answer.
    Lost,
    /// The fake answers with a server error, and does not carry out the request.
    Fail,
    /// The fake refuses requests for this many seconds, and does not carry out the request.
    Throttle(u64),
    /// Like `Throttle`, but the answer has the time at which the client may retry.
    ThrottleUntil(u64),
    /// Like `Throttle`, but the answer does not say for how long.
    ThrottleSilently,
    /// A proxy in between answers with its own page, and the fake does not carry out the request.
    Page(u16),
    /// The fake refuses the request with this text, and does not carry it out.
    Refuse(u16, &'static str),
    /// The fake never answers, and does not carry out the request.
    Hang,
}

/// A request and the status of its answer.
#[derive(Clone, Debug)]
pub struct CoolifyCall {
    /// `None` if there is no such operation.
    pub operation: Option<Operation>,
    pub method: String,
    pub path: String,
    pub at: Instant,
    /// 0 if the request hangs.
    pub status: u16,
}

/// An event of a container, for a test that plays the container's process. An application that is deployed again has
/// two containers for a moment: the new one starts before the old one ends. This is not so if its container has a fixed
/// name or a mapped port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoolifyEvent {
    Started { uuid: String, name: String, container: String, envs: BTreeMap<String, String> },
    Stopped { uuid: String, container: String },
}

/// An application as the fake stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct CoolifyApplication {
    pub uuid: String,
    pub name: String,
    pub description: Option<String>,
    pub status: String,
    pub domains: Option<String>,
    pub environment_id: i64,
    pub envs: BTreeMap<String, String>,
    /// Every field that was set when the application was created, or changed later.
    pub fields: Map<String, Value>,
}

#[derive(Debug)]
pub struct CoolifyFake {
    /// The address of the fake, without the path of the API.
    pub url: String,
    state: Shared,
    events: Mutex<Option<UnboundedReceiver<CoolifyEvent>>>,
    _ending: DropGuard,
}

impl CoolifyFake {
    pub const PROJECT: &'static str = world::PROJECT;
    pub const SERVER: &'static str = world::SERVER;
    /// The environment named "production". Another one, "staging", holds applications of others.
    pub const ENVIRONMENT: &'static str = world::ENVIRONMENT;
    pub const ENVIRONMENT_ID: i64 = world::ENVIRONMENT_ID;

    pub async fn start(settings: CoolifySettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, events) = unbounded_channel();
        let state = Arc::new(Mutex::new(State {
            world: World::new(settings, sender),
            calls: Vec::new(),
            violations: Vec::new(),
            throttled: 0,
            faults: Vec::new(),
            window: None,
        }));
        let ending = CancellationToken::new();
        tokio::spawn(ending.clone().run_until_cancelled_owned(server::accept(listener, state.clone())));
        tokio::spawn(ending.clone().run_until_cancelled_owned(server::beat(state.clone())));
        Self { url, state, events: Mutex::new(Some(events)), _ending: ending.drop_guard() }
    }

    /// The events of containers since the start of the fake. There can be only one listener.
    pub fn events(&self) -> UnboundedReceiver<CoolifyEvent> {
        self.events.lock().unwrap().take().expect("there is already a listener")
    }

    /// Makes the next `times` requests of an operation fail.
    pub fn break_next(&self, operation: Operation, fault: CoolifyFault, times: usize) {
        if times > 0 {
            self.state().faults.push((operation, fault, times));
        }
    }

    /// Removes all faults that were set.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// Makes the next deployment that begins fail, with these lines in its log.
    pub fn fail_next_deployment(&self, lines: &[&str]) {
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        self.state().world.failing.push_back(lines);
    }

    /// Keeps deployments in progress until this is called with `false`.
    pub fn hold_deployments(&self, held: bool) {
        self.state().world.held = held;
    }

    pub fn set_settings(&self, change: impl FnOnce(&mut CoolifySettings)) {
        change(&mut self.state().world.settings);
    }

    /// Removes an application, as another person would.
    pub fn remove(&self, uuid: &str) {
        self.state().world.remove(uuid);
    }

    /// Ends a container for good: Docker does not restart it.
    pub fn crash(&self, uuid: &str) {
        self.state().world.crash(uuid);
    }

    /// Ends the process in a container with any exit code. Docker restarts it.
    pub fn exit(&self, uuid: &str) {
        self.state().world.exit(uuid);
    }

    /// Copies an application with all its fields, as a person can do in Coolify.
    pub fn clone_application(&self, uuid: &str) -> String {
        let mut state = self.state();
        let source = state.world.application(uuid).expect("the application exists").clone();
        let mut fields = source.fields;
        fields.insert("name".to_owned(), format!("clone-of-{uuid}").into());
        let clone = state.world.create(source.environment_id, fields);
        clone.variables = source.variables;
        clone.uuid.clone()
    }

    /// Starts an application, as another person would.
    pub fn run(&self, uuid: &str) {
        self.state().world.deploy(uuid, true, true, false);
        self.state().world.finish_now(uuid);
    }

    pub fn set_field(&self, uuid: &str, field: &str, value: &str) {
        let mut state = self.state();
        let application = state.world.application(uuid).expect("the application exists");
        application.fields.insert(field.to_owned(), value.into());
    }

    /// How many deletions also requested the deletion of volumes.
    pub fn deleted_volumes(&self) -> usize {
        self.state().world.deleted_volumes
    }

    /// Whether a container of an application runs, whatever status Coolify shows.
    pub fn runs(&self, uuid: &str) -> bool {
        self.state().world.application(uuid).is_some_and(|application| application.is_running())
    }

    /// How many containers run although their application was deleted.
    pub fn orphans(&self) -> usize {
        self.state().world.orphans
    }

    pub fn set_status(&self, uuid: &str, status: &str) {
        if let Some(application) = self.state().world.application(uuid) {
            application.status = status.to_owned();
        }
    }

    /// Creates an application of somebody else: in the other environment, or in ours.
    pub fn add_foreign(&self, name: &str, is_elsewhere: bool) -> String {
        let environment = if is_elsewhere { world::ELSEWHERE_ID } else { world::ENVIRONMENT_ID };
        let fields =
            json!({ "name": name, "docker_registry_image_name": "postgres", "docker_registry_image_tag": "17" });
        let fields = fields.as_object().cloned().unwrap_or_default();
        let mut state = self.state();
        let application = state.world.create(environment, fields);
        application.status = "running:healthy".to_owned();
        application.uuid.clone()
    }

    pub fn applications(&self) -> Vec<CoolifyApplication> {
        self.state().world.applications.iter().map(view::seen).collect()
    }

    pub fn application(&self, uuid: &str) -> Option<CoolifyApplication> {
        self.applications().into_iter().find(|application| application.uuid == uuid)
    }

    pub fn calls(&self) -> Vec<CoolifyCall> {
        self.state().calls.clone()
    }

    /// How often an operation was requested, whatever the answer was.
    pub fn count(&self, operation: Operation) -> usize {
        self.state().calls.iter().filter(|call| call.operation == Some(operation)).count()
    }

    /// The requests that do not follow the specification.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// How many requests were answered with 429.
    pub fn throttled(&self) -> usize {
        self.state().throttled
    }

    /// The highest number of deployments that were queued or in progress at once.
    pub fn most_deployments_at_once(&self) -> usize {
        self.state().world.most_deployments_at_once
    }

    /// The status of each deployment, in the order in which they were queued.
    pub fn deployments(&self) -> Vec<&'static str> {
        self.state().world.deployments.iter().map(|deployment| deployment.state.name()).collect()
    }

    /// The images that were pulled, one for each deployment that began.
    pub fn pulls(&self) -> Vec<String> {
        self.state().world.pulls.clone()
    }

    /// How often unused images of the server were removed.
    pub fn prunes(&self) -> usize {
        self.state().world.prunes
    }

    /// How many variables were changed in applications that had been deployed. Each change makes a new deployment
    /// necessary.
    pub fn env_changes_after_deployment(&self) -> usize {
        self.state().world.env_changes_after_deployment
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}
