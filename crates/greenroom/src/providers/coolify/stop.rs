//! The end of what runs, and of applications. Coolify does both later than it says, so each is followed until it is seen.

use std::collections::HashMap;
use std::sync::Arc;

use domain::SlotName;
use reqwest::Method;
use tokio::time::Instant;

use super::Coolify;
use super::api::Failure;
use super::application::Application;
use super::watch::{Look, Needs};
use crate::providers::ProviderError;
use crate::providers::budget::Urgency;

/// How often within its time an end is asked for again.
const ASKED_AGAIN: u32 = 4;

/// One run of an application: which, and what it was started for.
type Run = (String, Option<String>);

fn run_of(application: &Application) -> Run {
    (application.uuid.clone(), application.marks.start.clone())
}

impl Coolify {
    /// Ends what runs in a slot, and what is about to, and sees that it has.
    pub(super) async fn stop(&self, slot: &SlotName) -> Result<(), ProviderError> {
        // What is known to run is told to stop at once. What else there is of the slot is seen afterwards.
        let known = self.watch.known(slot).filter(Application::runs);
        if let Some(running) = &known
            && !self.ask_to_stop(running).await?
        {
            // There is another by now, or none.
            return self.stop_all(slot, None).await;
        }
        self.stop_all(slot, known.as_ref().map(run_of)).await
    }

    /// `told` is a run that was seen, and was told to stop.
    async fn stop_all(&self, slot: &SlotName, mut told: Option<Run>) -> Result<(), ProviderError> {
        let begun = Instant::now();
        let mut asked: HashMap<String, Instant> = told.iter().map(|(uuid, _)| (uuid.clone(), begun)).collect();
        let mut look = self.first_look(told.is_some()).await;
        loop {
            match look {
                Ok(seen) => {
                    let mut all_ended = true;
                    for application in seen.of(slot) {
                        let open: Vec<_> = seen.open(application).map(|open| open.uuid.clone()).collect();
                        for deployment in &open {
                            // A stop does not end what is still to be started.
                            self.cancel(deployment).await?;
                        }
                        let is_told = told.as_ref() == Some(&run_of(application));
                        let was_asked = asked
                            .get(&application.uuid)
                            .is_some_and(|at| at.elapsed() < self.pace.ended_within / ASKED_AGAIN);
                        if open.is_empty() && application.has_ended() && self.is_still(application, is_told).await? {
                            self.memory().stopped.insert(application.uuid.clone());
                            continue;
                        }
                        all_ended = false;
                        if !open.is_empty() || !was_asked {
                            self.ask_to_stop(application).await?;
                            asked.insert(application.uuid.clone(), Instant::now());
                            // What was seen to run before a deployment was cancelled proves nothing of it.
                            let is_proof = open.is_empty() && application.runs();
                            told = Some(run_of(application)).filter(|_| is_proof || (is_told && open.is_empty()));
                        }
                    }
                    if all_ended {
                        return Ok(());
                    }
                }
                // What frees a slot is not given up for one look that failed.
                Err(error) if !error.may_help => return Err(error),
                Err(_) => {}
            }
            if begun.elapsed() > self.pace.ended_within {
                return Err(ProviderError::again(format!("Coolify has not stopped {slot} in time")));
            }
            look = self.look_after(Needs::Deployments).await;
        }
    }

    async fn first_look(&self, is_told: bool) -> Result<Arc<Look>, ProviderError> {
        if is_told { self.look_after(Needs::Deployments).await } else { self.look(Needs::Deployments).await }
    }

    /// Whether an application that is said to have ended has. Whatever was seen to run, and was told to stop, is shown as
    /// ended when it has; of others Coolify may not have heard yet that they run.
    async fn is_still(&self, application: &Application, is_told: bool) -> Result<bool, ProviderError> {
        if is_told || !application.was_started() {
            return Ok(true);
        }
        Ok(!self.truly_runs(application, Urgency::Free).await?)
    }

    /// False when there is no such application.
    async fn ask_to_stop(&self, application: &Application) -> Result<bool, ProviderError> {
        // Images stay: the next start needs them.
        let path = format!("applications/{}/stop?docker_cleanup=false", application.uuid);
        match self.api.act(Urgency::Free, &path).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.is_absent() => Ok(false),
            // It is seen whether it was done, and asked for again.
            Err(Failure::Lost(_)) => Ok(true),
            Err(failure) => Err(failure.into()),
        }
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

    /// Removes everything that there is of a slot, and sees that it is gone.
    pub(super) async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let begun = Instant::now();
        drop(self.descriptions.take(slot));
        let mut look = self.look(Needs::Deployments).await;
        let mut asked: Option<Instant> = None;
        loop {
            match look {
                Ok(seen) if seen.of(slot).next().is_none() => return Ok(()),
                Ok(seen) => {
                    let again = asked.is_none_or(|at| at.elapsed() > self.pace.ended_within / ASKED_AGAIN);
                    for application in seen.of(slot).filter(|_| again) {
                        for open in seen.open(application) {
                            self.cancel(&open.uuid).await?;
                        }
                        self.ask_to_delete(application).await?;
                        asked = Some(Instant::now());
                    }
                }
                Err(error) if !error.may_help => return Err(error),
                Err(_) => {}
            }
            if begun.elapsed() > self.pace.ended_within {
                return Err(ProviderError::again(format!("Coolify has not deleted {slot} in time")));
            }
            look = self.look_after(Needs::Deployments).await;
        }
    }

    /// Removes one of several that a slot has, and does not wait for its end: nothing runs in it.
    pub(super) async fn remove(&self, application: &Application) -> Result<(), ProviderError> {
        let slot = &application.slot;
        tracing::warn!(%slot, uuid = application.uuid, "a slot has a second application at Coolify; it is deleted");
        self.ask_to_delete(application).await
    }

    async fn ask_to_delete(&self, application: &Application) -> Result<(), ProviderError> {
        let path = format!("applications/{}?docker_cleanup=false", application.uuid);
        match self.api.ask_again(Urgency::Free, Method::DELETE, &path, None).await {
            Ok(_) => {}
            Err(refused) if refused.is_absent() => {}
            Err(failure) => return Err(failure.into()),
        }
        let mut memory = self.memory();
        memory.equipped.remove(&application.uuid);
        memory.stopped.remove(&application.uuid);
        Ok(())
    }
}
