//! The Coolify provider. A slot is an application that is made from a docker image and has the slot's name. Its
//! variables are set once, before its first start, because each change of them needs a deployment. The agent inside
//! fetches its bot.
//!
//! - this file: the provider
//! - [`start`]: starts applications
//! - [`stop`]: stops and deletes applications, and proves it
//! - [`watch`]: the shared list, which serves all callers that wait
//! - [`descriptions`]: the descriptions for people
//! - [`check`]: checks Coolify for the operator
//! - [`recipe`]: builds applications
//! - [`marks`]: the labels that record the owner and the start of an application
//! - [`application`]: reads Coolify's answers
//! - [`api`]: requests and answers
//!
//! Each bot costs five requests of its own. They mark and describe its slot, start it, stop it, check on the server
//! that it has stopped, and describe it again. All other requests are lists that all slots share.

mod api;
mod application;
mod check;
mod descriptions;
mod marks;
mod recipe;
mod start;
mod stop;
mod watch;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use tokio::time::Instant;

pub use self::api::address;

use self::api::Api;
use self::application::Application;
use self::descriptions::Descriptions;
use self::recipe::Recipe;
use self::watch::{Listing, Needs, Watch};
use super::budget::{Budget, Urgency};
use super::check::Check;
use super::{Found, LogLine, Provider, ProviderError, Spec, Stopped, log_tail};
use config::provider::CoolifyConfig;

/// The part of the budget for lists: one part of this number.
const LISTINGS_SHARE: u32 = 5;
/// The most requests that one list needs.
const LISTING_COST: u32 = 2;
/// How many lists may follow each other at once before their part of the budget is used. It is spread evenly, because a
/// pause between lists delays every caller that waits for one.
const LISTINGS_AT_ONCE: u32 = 2;
const MINUTE: Duration = Duration::from_secs(60);
/// Coolify's name for an application in its "not found" errors.
const APPLICATION: &str = "Application";
/// How many lines of a log are requested.
const LINES: u32 = 100;
/// How many lines are requested for a bot's log.
const LOG_LINES: u32 = 1_000;

/// The delays between requests.
#[derive(Clone, Debug)]
pub struct Pace {
    /// The shortest time between the beginnings of two lists.
    pub list_every: Duration,
    /// How long after an action the first list that can show it begins.
    pub list_after: Duration,
    /// The pause before a request is repeated whose answer was lost.
    pub try_again: Duration,
    /// The pause before a start is requested again that was not queued.
    pub queue_again: Duration,
    /// How long a deployed application may take to be shown as running.
    pub shown_within: Duration,
    /// How long a stop or a deletion may take to be seen. It is requested again after a part of this time.
    pub ended_within: Duration,
    /// How long Coolify may take to execute a queued action. A stop that it executes later would end the next bot.
    pub settled_after: Duration,
    /// How long a caller that only reads waits for an answer.
    pub listed_within: Duration,
    /// How long all requests pause if Coolify asks for a pause without a time.
    pub enough: Duration,
    /// How long a description waits for a start that can include it.
    pub describe_after: Duration,
    /// The pause before a description is sent again.
    pub describe_again: Duration,
    /// How old an answer may be to prove that Coolify is reachable.
    pub ping_every: Duration,
}

impl Pace {
    /// The delays for a budget of this number of requests per period. All delays are parts of the period, so that a
    /// test can use a short period.
    pub fn of(most: u32, time: Duration) -> Self {
        let list_every = (time * LISTING_COST * LISTINGS_SHARE / most.max(1)).max(time / 60);
        Self {
            list_every,
            list_after: list_every / 3,
            try_again: time / 120,
            queue_again: time / 12,
            shown_within: time * 2,
            ended_within: time * 11 / 6,
            settled_after: time / 12,
            listed_within: time * 5 / 12,
            enough: time,
            describe_after: list_every * 2,
            describe_again: time / 6,
            ping_every: time,
        }
    }
}

/// One Coolify, as one token sees it. All its pools share its state and its budget.
#[derive(Debug)]
pub struct Coolify {
    api: Arc<Api>,
    watch: Arc<Watch>,
    descriptions: Descriptions,
    installation: String,
    pace: Pace,
    /// The result of the last ping, and its time.
    pinged: tokio::sync::Mutex<Option<(Instant, Result<(), ProviderError>)>>,
    memory: Mutex<Memory>,
}

/// What this process has done, by the applications' own names. It only saves requests: without it nothing is wrong.
#[derive(Debug, Default)]
struct Memory {
    /// The applications that have their variables.
    equipped: HashSet<String>,
    /// The applications that were seen to have stopped, with the start that they had. Another process may have started
    /// them again since, which their mark shows.
    stopped: HashMap<String, Option<String>>,
}

impl Coolify {
    pub fn new(config: &CoolifyConfig, installation: String, budget: Budget, pace: Pace) -> Arc<Self> {
        let listing_budget = budget.part("looks", LISTINGS_AT_ONCE * LISTING_COST, pace.list_every * LISTINGS_AT_ONCE);
        let api = Arc::new(Api::new(&config.api_url, config.api_token.clone(), budget, listing_budget, &pace));
        let watch = Arc::new(Watch::new(api.clone(), installation.clone(), pace.list_every));
        let (descriptions, pinged, memory) = Default::default();
        Arc::new(Self { api, watch, descriptions, installation, pace, pinged, memory })
    }

    /// The slot's application, to read its log. `None` if there is none, or if other callers need the requests: it
    /// costs up to two requests before the one that frees the slot.
    async fn application_for_log(&self, slot: &SlotName) -> Result<Option<Application>, ProviderError> {
        let budget = self.api.budget();
        if budget.waiting() > 0 || budget.held().is_some() {
            return Ok(None);
        }
        if let Some(application) = self.watch.known(slot) {
            return Ok(Some(application));
        }
        Ok(self.listing(Needs::Applications).await?.of(slot).next().cloned())
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn listing(&self, needs: Needs) -> Result<Arc<Listing>, ProviderError> {
        self.watch.listing(Instant::now(), needs).await
    }

    /// The current applications, for a caller that only reads.
    async fn applications(&self) -> Result<Arc<Listing>, ProviderError> {
        let late = "Coolify did not return its list of applications in time";
        self.in_time(self.pace.listed_within, late, self.listing(Needs::Applications)).await
    }

    /// A list that shows the effect of an action that was just done.
    async fn later_listing(&self, needs: Needs) -> Result<Arc<Listing>, ProviderError> {
        self.watch.listing(Instant::now() + self.pace.list_after, needs).await
    }

    /// Whether something runs in an application, according to its server. Coolify's own status may be late, or wrong. A
    /// container that Docker is about to restart does not run, so this alone proves no end without a stop.
    async fn runs_on_server(&self, application: &Application, urgency: Urgency) -> Result<bool, ProviderError> {
        match self.api.get(urgency, &format!("applications/{}/logs?lines=1", application.uuid)).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.is_not_running() || refused.is_absent(APPLICATION) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether this process has seen that an application stopped, and no process has started it since.
    fn is_known_to_be_stopped(&self, application: &Application) -> bool {
        self.memory().stopped.get(&application.uuid) == Some(&application.marks.start)
    }

    /// The result of `work` within this time. After it, the error says what is late, and whether Coolify has asked for
    /// a pause.
    async fn in_time<T>(
        &self,
        time: Duration,
        late: &str,
        work: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        if let Ok(done) = tokio::time::timeout(time, work).await {
            return done;
        }
        Err(ProviderError::transient(match self.api.budget().held() {
            Some(wait) => format!("{late}: it accepts no requests for another {} s", wait.as_secs() + 1),
            None => late.to_owned(),
        }))
    }

    /// Sends a request that needs the token, unless Coolify has answered within the last minute. A "too many requests"
    /// also proves that Coolify is reachable.
    async fn ping(&self) -> Result<(), ProviderError> {
        let is_recent = |at: Instant| at.elapsed() < self.pace.ping_every;
        let is_there = || self.api.heard().is_some_and(is_recent) || self.api.budget().held().is_some();
        if is_there() {
            return Ok(());
        }
        let mut pinged = self.pinged.lock().await;
        if is_there() {
            return Ok(());
        }
        if let Some((_, answer)) = pinged.as_ref().filter(|(at, _)| is_recent(*at)) {
            return answer.clone();
        }
        let asked = async { self.api.is_there().await.map_err(ProviderError::from) };
        let answer = self.in_time(self.pace.listed_within, "Coolify did not answer a request in time", asked).await;
        // Another replica may have received the request to pause, which the wait for a turn shows.
        let answer = if self.api.budget().held().is_some() { Ok(()) } else { answer };
        *pinged = Some((Instant::now(), answer.clone()));
        answer
    }
}

#[derive(Debug)]
pub struct CoolifyProvider {
    coolify: Arc<Coolify>,
    recipe: Recipe,
}

impl CoolifyProvider {
    /// A provider whose Coolify serves this pool alone.
    pub fn new(config: CoolifyConfig, installation: String, budget: Budget) -> Self {
        let pace = Pace::of(config.requests_per_minute, MINUTE);
        Self::on(Coolify::new(&config, installation, budget, pace), config)
    }

    /// A provider for a pool on a Coolify that other pools may share.
    pub fn on(coolify: Arc<Coolify>, config: CoolifyConfig) -> Self {
        let installation = coolify.installation.clone();
        Self { coolify, recipe: Recipe { config, installation } }
    }
}

#[async_trait]
impl Provider for CoolifyProvider {
    fn restarts_slots(&self) -> bool {
        true
    }

    fn recipe(&self) -> Option<String> {
        Some(self.recipe.own_fingerprint())
    }

    fn keeps_environment(&self) -> bool {
        true
    }

    fn budgets(&self) -> Vec<Budget> {
        vec![self.coolify.api.budget().clone()]
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let listing = self.coolify.listing(Needs::Applications).await?;
        let mut application = self.ensure_application(spec, &listing).await?;
        // A start would write this together with its own mark.
        if application.marks.own.is_none() {
            self.mark(&mut application, None).await?;
        }
        Ok(application.uuid)
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        self.ensure_running(spec).await
    }

    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        // Every start has a new container, so no files remain.
        self.coolify.stop(slot).await.map(|()| Stopped::Seen)
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.coolify.delete(slot).await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let listing = self.coolify.applications().await?;
        let mut found: Vec<Found> = Vec::new();
        for application in &listing.applications {
            match found.last_mut().filter(|last| last.slot == application.slot) {
                // The first of several applications is kept. If any of them runs, the slot runs.
                Some(kept) => kept.running |= !application.has_ended(),
                None => found.push(application.found()),
            }
        }
        Ok(found)
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let listing = self.coolify.applications().await?;
        let mut found = listing.of(slot).next().map(Application::found);
        if let Some(found) = &mut found {
            found.running |= listing.of(slot).any(|application| !application.has_ended());
        }
        Ok(found)
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let Some(application) = self.coolify.application_for_log(slot).await? else { return Ok(None) };
        let (api, uuid) = (&self.coolify.api, application.uuid);
        match api.get(Urgency::Wanted, &format!("applications/{uuid}/logs?lines={LINES}")).await {
            Ok(answer) => {
                let body = answer.json()?;
                return Ok(body["logs"].as_str().and_then(log_tail::lines));
            }
            // Nothing runs. The reason is in the log of the last deployment.
            Err(refused) if refused.is_not_running() => {}
            Err(refused) if refused.is_absent(APPLICATION) => return Ok(None),
            Err(failure) => return Err(failure.into()),
        }
        let answer = api.get(Urgency::Wanted, &format!("deployments/applications/{uuid}?take=1")).await?.json()?;
        let deployments = answer.get("deployments").unwrap_or(&answer);
        Ok(deployments.get(0).and_then(application::log))
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let Some(application) = self.coolify.application_for_log(slot).await? else { return Ok(Vec::new()) };
        let path = format!("applications/{}/logs?lines={LOG_LINES}", application.uuid);
        match self.coolify.api.get(Urgency::Wanted, &path).await {
            Ok(answer) => Ok(answer.json()?["logs"].as_str().map(log_tail::untimed).unwrap_or_default()),
            Err(refused) if refused.is_not_running() || refused.is_absent(APPLICATION) => Ok(Vec::new()),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.coolify.ping().await
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        self.examine(slots).await
    }

    /// Returns at once. The description is sent when no other request waits.
    async fn describe(&self, slot: &SlotName, description: &str) {
        self.coolify.describe(slot, description.to_owned());
    }
}
