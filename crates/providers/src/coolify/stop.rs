//! Stops and deletes applications. Coolify answers before it has done either, so the provider checks until it sees the
//! result.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SlotName;
use reqwest::Method;
use tokio::time::Instant;

use super::api::Failure;
use super::application::Application;
use super::watch::{Listing, Needs};
use super::{APPLICATION, Coolify};
use crate::ProviderError;
use crate::budget::Urgency;

/// How often a stop is requested again within its time limit.
const ASKED_AGAIN: u32 = 4;

/// A stop that was requested, and what is known about it.
#[derive(Clone, Copy, Debug)]
struct Ask {
    at: Instant,
    /// Whether the request reached Coolify is unknown.
    is_lost: bool,
    /// It was requested once, while the application was shown as running. When the application is shown as ended, the
    /// stop is done.
    is_shown: bool,
}

/// The requested stops, by application.
type Asks = HashMap<String, Ask>;

impl Coolify {
    /// Stops everything that runs or is about to run in a slot, and waits until it has ended.
    pub(super) async fn stop(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let late = format!("Coolify did not stop {slot} in time");
        self.in_time(self.pace.ended_within, &late, self.end(slot)).await.map(drop)
    }

    /// Like `stop`, without a time limit. Returns the list that showed the end.
    async fn end(&self, slot: &SlotName) -> Result<Arc<Listing>, ProviderError> {
        let mut asks = Asks::new();
        // Stops the known running application at once. Other applications of the slot are found afterwards.
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
                // One failed request does not end the attempt to free a slot.
                Err(error) if !error.retryable => return Err(error),
                Err(_) => {}
            }
            listing = self.later_listing(Needs::Deployments).await;
        }
    }

    /// Whether an application has certainly ended. If not, does the next step towards it. It has ended if Coolify shows
    /// it as ended after a completed stop, and its server confirms it. One alone proves nothing: Coolify also shows an
    /// application as ended if it could not stop it, and the server also reports a container as ended that restarts in
    /// a moment.
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
            // A stop does not end a deployment that is still queued. So it is requested after the deployments are gone.
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
                match self.runs_on_server(application, Urgency::Free).await {
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
            // If a stop were queued twice, Coolify could execute the second one when the next bot runs.
            Some(ask) => ask.is_lost || (!is_shown && self.is_overdue(ask)),
        };
        if ask_again {
            self.ask_to_stop(application, asks).await?;
        }
        Ok(false)
    }

    /// Whether Coolify should have executed the stop long ago.
    fn is_overdue(&self, ask: &Ask) -> bool {
        ask.at.elapsed() > self.pace.ended_within / ASKED_AGAIN
    }

    /// Requests a stop. A missing application is no error: the next list shows that it is gone.
    async fn ask_to_stop(&self, application: &Application, asks: &mut Asks) -> Result<(), ProviderError> {
        // Images stay, because the next start needs them.
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
            // The deployment has ended meanwhile, or this version cannot cancel it: then the started application is
            // stopped.
            Err(Failure::Refused { .. }) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Removes everything of a slot and waits until it is gone. It stops the slot first: Coolify forgets an application
    /// even if it could not stop its container, and then no list shows that container.
    pub(super) async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        drop(self.descriptions.take(slot));
        let late = format!("Coolify did not delete {slot} in time");
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

    /// Removes one of several applications of a slot. It does not stop it first, because it was never started.
    pub(super) async fn remove(&self, application: &Application) -> Result<(), ProviderError> {
        let slot = &application.slot;
        tracing::warn!(%slot, uuid = application.uuid, "second application at Coolify found; deleting it");
        self.ask_to_delete(application).await
    }

    async fn ask_to_delete(&self, application: &Application) -> Result<(), ProviderError> {
        // A slot has no volumes. If there are any, a person has added them.
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
