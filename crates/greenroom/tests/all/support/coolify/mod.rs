//! Coolify 4, as far as a provider needs it: an HTTP server of its own that knows its interface strictly.
//!
//! It refuses what Coolify refuses, in Coolify's words, and writes down whatever is not in the published specification:
//! a test asserts that [`CoolifyFake::violations`] is empty. It has Coolify's limit of requests, its queue of
//! deployments, and its habit of doing things later than it says. All its times can be set, so that a minute may last
//! two seconds.

mod answers;
mod fields;
mod operations;
mod queue;
mod server;
mod shown;
mod variables;
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

/// The token that it takes, of a user who may do everything.
pub const COOLIFY_TOKEN: &str = "1|coolify-token";

/// With which method things are started, stopped and deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Since 4.2: POST alone.
    Posts,
    /// GET alone, as the specifications before 4.2 have it.
    Gets,
    /// Both: what 4.0 and 4.1 really serve.
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

/// How it is set up, and how long everything takes.
#[derive(Clone, Debug)]
pub struct CoolifySettings {
    pub dialect: Dialect,
    /// So many requests are answered in a window, which begins with its first request.
    pub limit: u32,
    pub window: Duration,
    /// How long a deployment is in progress.
    pub deployment: Duration,
    /// So many deployments are in progress at once, and so many wait behind them.
    pub deployments_at_once: usize,
    pub queue: usize,
    /// When a container is healthy. Without it its image has no health check, and its health stays unknown.
    pub healthy_after: Option<Duration>,
    pub stop: Duration,
    pub delete: Duration,
    /// How long Docker waits before it starts again what has ended by itself.
    pub restart: Duration,
    /// Whether Coolify's own health check, where an application has it on, finds an HTTP server. Otherwise such a
    /// deployment fails.
    pub serves_http: bool,
    /// Whether the token may read secrets: values of variables and logs of deployments are left out otherwise.
    pub reads_secrets: bool,
    /// How long a container runs before its application is shown as running.
    pub shown_after: Duration,
    /// A stop ends nothing, and the application is shown as exited all the same: what Docker said to it is not looked at.
    pub stop_only_shows: bool,
    /// A deletion forgets the application, and its container runs on: the server could not be reached just then.
    pub delete_leaves: bool,
    /// Coolify does not reach the server: a stop does nothing, and what runs there cannot be asked for.
    pub server_is_down: bool,
    /// Whether the list of deployments is an object whose names are numbers, as it is now and then.
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

/// How a request goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoolifyFault {
    /// It is done, and answered this much later.
    Slow(Duration),
    /// It is done, and the connection closes without an answer.
    Lost,
    /// It is answered with an error of the server, and not done.
    Fail,
    /// It is refused for so many seconds, and not done.
    Throttle(u64),
    /// The same, and it is told as the moment at which it may be asked again.
    ThrottleUntil(u64),
    /// The same, and it is not told for how long.
    ThrottleSilently,
    /// Something between answers with a page of its own, and it is not done.
    Page(u16),
    /// It is refused in these words, and not done.
    Refuse(u16, &'static str),
    /// It is never answered, and not done.
    Hang,
}

/// A request, and what was answered.
#[derive(Clone, Debug)]
pub struct CoolifyCall {
    /// None where there is no such operation.
    pub operation: Option<Operation>,
    pub method: String,
    pub path: String,
    pub at: Instant,
    /// 0 where it hangs.
    pub status: u16,
}

/// What happens to the containers, for whoever plays what runs in them. An application that is deployed again has two
/// for a moment, the new one before the old one ends, unless its container has a consistent name or a mapped port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoolifyEvent {
    Started { uuid: String, name: String, container: String, envs: BTreeMap<String, String> },
    Stopped { uuid: String, container: String },
}

/// What it has of an application.
#[derive(Clone, Debug, PartialEq)]
pub struct CoolifyApplication {
    pub uuid: String,
    pub name: String,
    pub description: Option<String>,
    pub status: String,
    pub domains: Option<String>,
    pub environment_id: i64,
    pub envs: BTreeMap<String, String>,
    /// Everything that it was created with or changed to.
    pub fields: Map<String, Value>,
}

#[derive(Debug)]
pub struct CoolifyFake {
    /// Where it is, without the path of its interface.
    pub url: String,
    state: Shared,
    events: Mutex<Option<UnboundedReceiver<CoolifyEvent>>>,
    _ending: DropGuard,
}

impl CoolifyFake {
    pub const PROJECT: &'static str = world::PROJECT;
    pub const SERVER: &'static str = world::SERVER;
    /// The environment named "production". There is another one, "staging", for the applications of others.
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

    /// What happens to the containers from the beginning on. There is one listener.
    pub fn events(&self) -> UnboundedReceiver<CoolifyEvent> {
        self.events.lock().unwrap().take().expect("somebody listens already")
    }

    /// Makes the next so many requests for something go wrong.
    pub fn break_next(&self, operation: Operation, fault: CoolifyFault, times: usize) {
        if times > 0 {
            self.state().faults.push((operation, fault, times));
        }
    }

    /// Nothing goes wrong any more.
    pub fn mend(&self) {
        self.state().faults.clear();
    }

    /// The next deployment that begins fails, with these lines in its log.
    pub fn fail_next_deployment(&self, lines: &[&str]) {
        let lines = lines.iter().map(|&line| line.to_owned()).collect();
        self.state().world.failing.push_back(lines);
    }

    /// Deployments that are in progress stay so until they are let go.
    pub fn hold_deployments(&self, held: bool) {
        self.state().world.held = held;
    }

    pub fn set_settings(&self, change: impl FnOnce(&mut CoolifySettings)) {
        change(&mut self.state().world.settings);
    }

    /// Somebody takes an application away.
    pub fn remove(&self, uuid: &str) {
        self.state().world.remove(uuid);
    }

    /// A container is gone, and nothing starts it again.
    pub fn crash(&self, uuid: &str) {
        self.state().world.crash(uuid);
    }

    /// What runs in a container ends by itself, with whatever exit code: Docker starts it again.
    pub fn exit(&self, uuid: &str) {
        self.state().world.exit(uuid);
    }

    /// A person has an application copied, with all that it was made with.
    pub fn clone_application(&self, uuid: &str) -> String {
        let mut state = self.state();
        let source = state.world.application(uuid).expect("it is there").clone();
        let mut fields = source.fields;
        fields.insert("name".to_owned(), format!("clone-of-{uuid}").into());
        let clone = state.world.create(source.environment_id, fields);
        clone.variables = source.variables;
        clone.uuid.clone()
    }

    /// Somebody has an application run.
    pub fn run(&self, uuid: &str) {
        self.state().world.deploy(uuid, true, true, false);
        self.state().world.finish_now(uuid);
    }

    pub fn set_field(&self, uuid: &str, field: &str, value: &str) {
        let mut state = self.state();
        let application = state.world.application(uuid).expect("it is there");
        application.fields.insert(field.to_owned(), value.into());
    }

    /// How many deletions were to take the volumes along.
    pub fn deleted_volumes(&self) -> usize {
        self.state().world.deleted_volumes
    }

    /// Whether a container of an application runs, whatever its status says.
    pub fn runs(&self, uuid: &str) -> bool {
        self.state().world.application(uuid).is_some_and(|application| application.is_running())
    }

    /// How many containers run whose applications are forgotten.
    pub fn orphans(&self) -> usize {
        self.state().world.orphans
    }

    pub fn set_status(&self, uuid: &str, status: &str) {
        if let Some(application) = self.state().world.application(uuid) {
            application.status = status.to_owned();
        }
    }

    /// Somebody else makes an application, in the other environment or beside ours.
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
        self.state().world.applications.iter().map(shown::seen).collect()
    }

    pub fn application(&self, uuid: &str) -> Option<CoolifyApplication> {
        self.applications().into_iter().find(|application| application.uuid == uuid)
    }

    pub fn calls(&self) -> Vec<CoolifyCall> {
        self.state().calls.clone()
    }

    /// How often something was asked for, whatever was answered.
    pub fn count(&self, operation: Operation) -> usize {
        self.state().calls.iter().filter(|call| call.operation == Some(operation)).count()
    }

    /// What was asked that the specification does not have.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    /// How many requests were answered with 429.
    pub fn throttled(&self) -> usize {
        self.state().throttled
    }

    /// How many deployments were ever queued or in progress at once.
    pub fn most_deployments_at_once(&self) -> usize {
        self.state().world.most_deployments_at_once
    }

    /// The status of each deployment that there was, in the order in which they were queued.
    pub fn deployments(&self) -> Vec<&'static str> {
        self.state().world.deployments.iter().map(|deployment| deployment.state.name()).collect()
    }

    /// The images that were pulled, one for each deployment that began.
    pub fn pulls(&self) -> Vec<String> {
        self.state().world.pulls.clone()
    }

    /// How often the server's unused images were thrown away.
    pub fn prunes(&self) -> usize {
        self.state().world.prunes
    }

    /// How many variables of applications were changed that had been deployed: each makes a deployment necessary.
    pub fn env_changes_after_deployment(&self) -> usize {
        self.state().world.env_changes_after_deployment
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}
