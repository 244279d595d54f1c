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
//! A bot's life costs four requests of its own: its slot is marked for it and described, started, stopped, and described
//! again. Everything else is in looks that all slots share.

mod api;
mod application;
mod check;
mod descriptions;
mod marks;
mod recipe;
mod start;
mod stop;
mod watch;

use std::collections::HashSet;
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
use self::watch::{Look, Needs, Watch};
use super::budget::{Budget, Urgency};
use super::check::Check;
use super::{Found, Provider, ProviderError, Spec, Stopped, last};
use crate::config::provider::CoolifyConfig;

/// The part of the budget that looks may use: one of so many.
const LOOKS_SHARE: u32 = 5;
/// The requests that a look makes at most.
const LOOK_COSTS: u32 = 2;
const MINUTE: Duration = Duration::from_secs(60);
/// How many lines of a log are asked for.
const LINES: u32 = 100;

/// How long to wait between questions.
#[derive(Clone, Debug)]
pub struct Pace {
    /// No two looks begin within this.
    pub look_every: Duration,
    /// How long after an act the first look is taken that could see it.
    pub look_after: Duration,
    /// Before something is asked again whose answer was lost.
    pub try_again: Duration,
    /// Before a start is asked for again that was not queued.
    pub queue_again: Duration,
    /// How long what was deployed may take to be shown as running.
    pub shown_within: Duration,
    /// How long a stop or a deletion may take to be seen, and after which part of it is asked for again.
    pub ended_within: Duration,
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
        let look_every = (time * LOOK_COSTS * LOOKS_SHARE / most.max(1)).max(time / 60);
        Self {
            look_every,
            look_after: look_every / 3,
            try_again: time / 120,
            queue_again: time / 12,
            shown_within: time * 2,
            ended_within: time * 11 / 6,
            describe_after: look_every * 2,
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
    /// Those that were seen to have stopped, and were not started since.
    stopped: HashSet<String>,
}

impl Coolify {
    pub fn new(config: &CoolifyConfig, installation: String, budget: Budget, pace: Pace) -> Arc<Self> {
        let api = Arc::new(Api::new(&config.api_url, config.api_token.clone(), budget, pace.try_again));
        let watch = Arc::new(Watch::new(api.clone(), installation.clone(), pace.look_every));
        let (descriptions, pinged, memory) = Default::default();
        Arc::new(Self { api, watch, descriptions, installation, pace, pinged, memory })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, needs: Needs) -> Result<Arc<Look>, ProviderError> {
        self.watch.look(Instant::now(), needs).await
    }

    /// A look that can see what was just done.
    async fn look_after(&self, needs: Needs) -> Result<Arc<Look>, ProviderError> {
        self.watch.look(Instant::now() + self.pace.look_after, needs).await
    }

    /// Whether something runs in an application, by what its server says and not by what Coolify remembers: that may be
    /// a while behind.
    async fn truly_runs(&self, application: &Application, urgency: Urgency) -> Result<bool, ProviderError> {
        match self.api.get(urgency, &format!("applications/{}/logs?lines=1", application.uuid)).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.is(reqwest::StatusCode::BAD_REQUEST) || refused.is_absent() => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Asks for something that needs the token, unless Coolify has answered within the last minute.
    async fn ping(&self) -> Result<(), ProviderError> {
        let mut pinged = self.pinged.lock().await;
        let is_recent = |at: Instant| at.elapsed() < self.pace.ping_every;
        if self.api.heard().is_some_and(is_recent) {
            return Ok(());
        }
        if let Some((_, answer)) = pinged.as_ref().filter(|(at, _)| is_recent(*at)) {
            return answer.clone();
        }
        let answer = self.api.get(Urgency::Wanted, "version").await;
        let answer = answer.map(drop).map_err(ProviderError::from);
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
    fn keeps_environment(&self) -> bool {
        true
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let look = self.coolify.look(Needs::Applications).await?;
        Ok(self.there(spec, &look).await?.uuid)
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
        let look = self.coolify.look(Needs::Applications).await?;
        let mut found: Vec<Found> = Vec::new();
        for application in &look.applications {
            match found.last_mut().filter(|last| last.slot == application.slot) {
                // The first of several is the one that is kept, and what runs in the others runs in the slot.
                Some(kept) => kept.running |= !application.has_ended(),
                None => found.push(application.found()),
            }
        }
        Ok(found)
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let look = self.coolify.look(Needs::Applications).await?;
        let mut found = look.of(slot).next().map(Application::found);
        if let Some(found) = &mut found {
            found.running |= look.of(slot).any(|application| !application.has_ended());
        }
        Ok(found)
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let application = match self.coolify.watch.known(slot) {
            Some(application) => application,
            None => match self.coolify.look(Needs::Applications).await?.of(slot).next() {
                Some(application) => application.clone(),
                None => return Ok(None),
            },
        };
        let (api, uuid) = (&self.coolify.api, application.uuid);
        match api.get(Urgency::Wanted, &format!("applications/{uuid}/logs?lines={LINES}")).await {
            Ok(answer) => {
                let body = answer.json()?;
                return Ok(body["logs"].as_str().and_then(last::lines));
            }
            // Nothing runs: why is in the log of its last deployment.
            Err(refused) if refused.is(reqwest::StatusCode::BAD_REQUEST) => {}
            Err(refused) if refused.is_absent() => return Ok(None),
            Err(failure) => return Err(failure.into()),
        }
        let answer = api.get(Urgency::Wanted, &format!("deployments/applications/{uuid}?take=1")).await?.json()?;
        let deployments = answer.get("deployments").unwrap_or(&answer);
        Ok(deployments.get(0).and_then(application::log))
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
