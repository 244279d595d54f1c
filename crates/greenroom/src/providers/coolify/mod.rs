//! Slots as applications of Coolify, each made from a docker image and named as its slot. Its variables are set once,
//! before its first start, because every change of them would be a deployment; the agent inside fetches its bot.
//!
//! - this file: the provider
//! - [`start`]: from an application to what runs in it
//! - [`stop`]: the end of what runs, and of the application, proven
//! - [`watch`]: the shared look, which serves everyone who waits
//! - [`descriptions`]: what a person sees
//! - [`check`]: what Coolify says of itself
//! - [`recipe`]: what an application of ours is made of
//! - [`marks`]: how an application says whose it is and what it was started for
//! - [`application`]: what is read of Coolify's answers
//! - [`api`]: requests and answers
//!
//! A bot's life costs five requests of its own: its slot is marked for it and described, started, stopped, seen on its
//! server to have stopped, and described again. Everything else is in looks that all slots share.

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
use super::{Found, LogLine, Provider, ProviderError, Spec, Stopped, last};
use crate::config::provider::CoolifyConfig;

/// The part of the budget that looks may use: one of so many.
const LISTINGS_SHARE: u32 = 5;
/// The requests that a look makes at most.
const LISTING_COST: u32 = 2;
/// So many looks may follow on each other before their share of the budget is used: it is given out evenly, because a pause
/// in the looks is one in all that waits for them.
const LISTINGS_AT_ONCE: u32 = 2;
const MINUTE: Duration = Duration::from_secs(60);
/// What Coolify calls an application when there is none.
const APPLICATION: &str = "Application";
/// How many lines of a log are asked for.
const LINES: u32 = 100;
/// So many lines are asked for a bot's log.
const LOG_LINES: u32 = 1_000;

/// How long to wait between questions.
#[derive(Clone, Debug)]
pub struct Pace {
    /// No two looks begin within this.
    pub list_every: Duration,
    /// How long after an act the first look is taken that could see it.
    pub list_after: Duration,
    /// Before something is asked again whose answer was lost.
    pub try_again: Duration,
    /// Before a start is asked for again that was not queued.
    pub queue_again: Duration,
    /// How long what was deployed may take to be shown as running.
    pub shown_within: Duration,
    /// How long a stop or a deletion may take to be seen, and after which part of it is asked for again.
    pub ended_within: Duration,
    /// How long Coolify may take to do what it has queued: a stop that is carried out later would end the next bot.
    pub settled_after: Duration,
    /// How long who only looks waits for an answer.
    pub listed_within: Duration,
    /// How long nobody asks when Coolify has had enough and does not say for how long.
    pub enough: Duration,
    /// How long a description waits for a start that takes it along.
    pub describe_after: Duration,
    /// Before a description is sent again.
    pub describe_again: Duration,
    /// How old an answer may be that proves that Coolify is there.
    pub ping_every: Duration,
}

impl Pace {
    /// As fast as a budget of so many requests in so long allows. All waits are parts of that time, so that a test can
    /// have a short minute.
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

/// One Coolify, as one token sees it: all pools on it share what is known of it, and the requests that it takes.
#[derive(Debug)]
pub struct Coolify {
    api: Arc<Api>,
    watch: Arc<Watch>,
    descriptions: Descriptions,
    installation: String,
    pace: Pace,
    /// What came of the last ping, and when.
    pinged: tokio::sync::Mutex<Option<(Instant, Result<(), ProviderError>)>>,
    memory: Mutex<Memory>,
}

/// What this process has done, by the applications' own names. Without it nothing is wrong, and more is asked.
#[derive(Debug, Default)]
struct Memory {
    /// Those that got their variables.
    equipped: HashSet<String>,
    /// Those that were seen to have stopped, and what they had been started for: another process may have started them for
    /// something else since, and its mark says so.
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

    /// The application of a slot whose log is to be read; `None` when there is none, or when others need the requests: it
    /// costs up to two before the one that frees the slot.
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

    /// The applications as they are now, for whoever does nothing about them.
    async fn applications(&self) -> Result<Arc<Listing>, ProviderError> {
        let late = "Coolify's list of applications could not be had in time";
        self.in_time(self.pace.listed_within, late, self.listing(Needs::Applications)).await
    }

    /// A look that can see what was just done.
    async fn later_listing(&self, needs: Needs) -> Result<Arc<Listing>, ProviderError> {
        self.watch.listing(Instant::now() + self.pace.list_after, needs).await
    }

    /// Whether something runs in an application, by what its server says and not by what Coolify remembers: that may be
    /// a while behind, or never have been true. What Docker is about to start again does not run, so this alone is no
    /// proof of an end where nobody has asked for one.
    async fn truly_runs(&self, application: &Application, urgency: Urgency) -> Result<bool, ProviderError> {
        match self.api.get(urgency, &format!("applications/{}/logs?lines=1", application.uuid)).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.is_not_running() || refused.is_absent(APPLICATION) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether this process has seen that an application stopped, and nobody has started it since.
    fn is_known_to_be_stopped(&self, application: &Application) -> bool {
        self.memory().stopped.get(&application.uuid) == Some(&application.marks.start)
    }

    /// What comes of it in this time; otherwise `late` says what did not, and whether that is because Coolify holds us back.
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
            Some(wait) => format!("{late}: it takes no more requests for another {} s", wait.as_secs() + 1),
            None => late.to_owned(),
        }))
    }

    /// Asks for something that needs the token, unless Coolify has answered within the last minute. That it has had enough
    /// is an answer too: it is there.
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
        let answer = self.in_time(self.pace.listed_within, "no request could be made in time", asked).await;
        // Another replica may have been told, and the wait for a turn has shown it.
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
    /// A Coolify for this pool alone.
    pub fn new(config: CoolifyConfig, installation: String, budget: Budget) -> Self {
        let pace = Pace::of(config.requests_per_minute, MINUTE);
        Self::on(Coolify::new(&config, installation, budget, pace), config)
    }

    /// A pool on a Coolify that others may be on as well.
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

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let listing = self.coolify.listing(Needs::Applications).await?;
        let mut application = self.there(spec, &listing).await?;
        // A start would say it along with what it is for.
        if application.marks.own.is_none() {
            self.mark(&mut application, None).await?;
        }
        Ok(application.uuid)
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        self.bring_to_run(spec).await
    }

    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        // Nothing of what ran is left: each start is a container of its own.
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
                // The first of several is the one that is kept, and what runs in the others runs in the slot.
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
                return Ok(body["logs"].as_str().and_then(last::lines));
            }
            // Nothing runs: why is in the log of its last deployment.
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
            Ok(answer) => Ok(answer.json()?["logs"].as_str().map(last::untimed).unwrap_or_default()),
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

    /// Returns at once: it is sent when there is nothing better to do.
    async fn describe(&self, slot: &SlotName, description: &str) {
        self.coolify.describe(slot, description.to_owned());
    }
}
