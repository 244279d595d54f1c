//! The end of what runs, and of applications. Coolify does both later than it says, so each is followed until it is seen.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SlotName;
use reqwest::Method;
use tokio::time::Instant;

use super::api::Failure;
use super::application::Application;
use super::watch::{Listing, Needs};
use super::{APPLICATION, Coolify};
use crate::providers::ProviderError;
use crate::providers::budget::Urgency;

/// How often within its time an end is asked for again.
const ASKED_AGAIN: u32 = 4;

/// When a stop was asked for, and what is known of that.
#[derive(Clone, Copy, Debug)]
struct Ask {
    at: Instant,
    /// Nobody knows whether it was asked.
    is_lost: bool,
    /// It was asked once, of what was shown to run: when that is shown as ended, the stop was carried out.
    is_shown: bool,
}

/// The stops that were asked for, by application.
type Asks = HashMap<String, Ask>;

impl Coolify {
    /// Ends what runs in a slot, and what is about to, and sees that it has.
    pub(super) async fn stop(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let late = format!("Coolify has not stopped {slot} in time");
        self.in_time(self.pace.ended_within, &late, self.end(slot)).await.map(drop)
    }

    /// The same, with the look that saw it, and for as long as it takes.
    async fn end(&self, slot: &SlotName) -> Result<Arc<Listing>, ProviderError> {
        let mut asks = Asks::new();
        // What is known to run is told to stop at once. What else there is of the slot is seen afterwards.
        let known = self.watch.known(slot).filter(Application::runs);
        if let Some(running) = &known {
            self.ask_to_stop(running, &mut asks).await?;
        }
        let mut listing = match known {
            Some(_) => self.later_listing(Needs::Deployments).await,
            None => self.listing(Needs::Deployments).await,
        };
        loop {
            match listing {
                Ok(seen) => {
                    let mut all_ended = true;
                    for application in seen.of(slot) {
                        all_ended &= self.has_ended(application, &seen, &mut asks).await?;
                    }
                    if all_ended {
                        return Ok(seen);
                    }
                }
                // What frees a slot is not given up for one look that failed.
                Err(error) if !error.retryable => return Err(error),
                Err(_) => {}
            }
            listing = self.later_listing(Needs::Deployments).await;
        }
    }

    /// Whether an application has ended, for certain; otherwise does what is to be done about it next. It has where it is
    /// shown as ended after a stop that was carried out, and its server says so too: Coolify writes the one also where
    /// it could not stop anything, and the other is true also of what is about to start again.
    async fn has_ended(
        &self,
        application: &Application,
        seen: &Listing,
        asks: &mut Asks,
    ) -> Result<bool, ProviderError> {
        let (uuid, is_shown) = (&application.uuid, application.has_ended());
        let mut is_open = false;
        for open in seen.open(application) {
            self.cancel(&open.uuid).await?;
            is_open = true;
        }
        if is_open {
            // A stop does not end what is still to be started: it is asked for when there is nothing of that any more.
            asks.remove(uuid);
            return Ok(false);
        }
        if is_shown && (!application.was_started() || self.is_known_to_be_stopped(application)) {
            return Ok(true);
        }
        if !is_shown {
            self.memory().stopped.remove(uuid);
        }
        let ask_again = match asks.get(uuid) {
            None => true,
            Some(ask)
                if is_shown && (ask.is_shown || (!ask.is_lost && ask.at.elapsed() >= self.pace.settled_after)) =>
            {
                match self.truly_runs(application, Urgency::Free).await {
                    Ok(false) => {
                        self.memory().stopped.insert(uuid.clone(), application.marks.start.clone());
                        return Ok(true);
                    }
                    Ok(true) => self.is_overdue(ask),
                    Err(error) if !error.retryable => return Err(error),
                    // The server may come back in time.
                    Err(_) => false,
                }
            }
            // Queued twice, a stop could be carried out the second time when the next bot runs.
            Some(ask) => ask.is_lost || (!is_shown && self.is_overdue(ask)),
        };
        if ask_again {
            self.ask_to_stop(application, asks).await?;
        }
        Ok(false)
    }

    /// Whether a stop would have been carried out long ago.
    fn is_overdue(&self, ask: &Ask) -> bool {
        ask.at.elapsed() > self.pace.ended_within / ASKED_AGAIN
    }

    /// What is not there any more is seen by the next look.
    async fn ask_to_stop(&self, application: &Application, asks: &mut Asks) -> Result<(), ProviderError> {
        // Images stay: the next start needs them.
        let path = format!("applications/{}/stop?docker_cleanup=false", application.uuid);
        let is_lost = match self.api.act(Urgency::Free, &path).await {
            Ok(_) => false,
            Err(refused) if refused.is_absent(APPLICATION) => return Ok(()),
            Err(Failure::Lost(_) | Failure::Away(_)) => true,
            Err(failure) => return Err(failure.into()),
        };
        let is_shown = !application.has_ended() && !asks.contains_key(&application.uuid);
        asks.insert(application.uuid.clone(), Ask { at: Instant::now(), is_lost, is_shown });
        Ok(())
    }

    async fn cancel(&self, deployment: &str) -> Result<(), ProviderError> {
        let path = format!("deployments/{deployment}/cancel");
        match self.api.ask_again(Urgency::Free, Method::POST, &path, None).await {
            Ok(_) => Ok(()),
            // It has come to its end meanwhile, or this version cannot: what it started is stopped then.
            Err(Failure::Refused { .. }) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Removes everything that there is of a slot, and sees that it is gone. What runs is ended first: Coolify forgets an
    /// application also when it could not end what runs in it, and nobody would know of that any more.
    pub(super) async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        drop(self.descriptions.take(slot));
        let late = format!("Coolify has not deleted {slot} in time");
        self.in_time(self.pace.ended_within, &late, self.end_and_delete(slot)).await
    }

    async fn end_and_delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let mut listing: Result<Arc<Listing>, ProviderError> = Ok(self.end(slot).await?);
        let mut asked: Option<Instant> = None;
        loop {
            match listing {
                Ok(seen) if seen.of(slot).next().is_none() => return Ok(()),
                Ok(seen) => {
                    let ask_again = asked.is_none_or(|at| at.elapsed() > self.pace.ended_within / ASKED_AGAIN);
                    for application in seen.of(slot).filter(|_| ask_again) {
                        self.ask_to_delete(application).await?;
                        asked = Some(Instant::now());
                    }
                }
                Err(error) if !error.retryable => return Err(error),
                Err(_) => {}
            }
            listing = self.later_listing(Needs::Deployments).await;
        }
    }

    /// Removes one of several that a slot has, and does not wait for its end: it was never started.
    pub(super) async fn remove(&self, application: &Application) -> Result<(), ProviderError> {
        let slot = &application.slot;
        tracing::warn!(%slot, uuid = application.uuid, "slot has a second application at Coolify; deleting it");
        self.ask_to_delete(application).await
    }

    async fn ask_to_delete(&self, application: &Application) -> Result<(), ProviderError> {
        // A slot has no volumes: what there is a person has put there.
        let path = format!("applications/{}?docker_cleanup=false&delete_volumes=false", application.uuid);
        match self.api.ask_again(Urgency::Free, Method::DELETE, &path, None).await {
            Ok(_) => {}
            Err(refused) if refused.is_absent(APPLICATION) => {}
            Err(failure) => return Err(failure.into()),
        }
        let mut memory = self.memory();
        memory.equipped.remove(&application.uuid);
        memory.stopped.remove(&application.uuid);
        Ok(())
    }
}
