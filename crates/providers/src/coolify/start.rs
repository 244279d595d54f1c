//! Starts the application of a slot. Before each start the provider records at Coolify what the start is for. So after
//! a crash, another process knows whether the running application, or its deployment, is the wanted one.

use std::sync::Arc;

use domain::SlotName;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::api::Failure;
use super::application::{Application, DeploymentState};
use super::marks::{self, Marks};
use super::recipe::{DISPENSABLE, cut};
use super::watch::{Listing, Needs};
use super::{APPLICATION, CoolifyProvider};
use crate::budget::Urgency;
use crate::{ProviderError, Spec};

/// How often a start is requested when no deployment appears.
const STARTED_AGAIN: u32 = 3;
/// Texts in the log of a deployment that failed for a transient reason.
const TRANSIENT: [&str; 12] = [
    "timeout",
    "timed out",
    "temporar",
    "try again",
    "connection reset",
    "connection refused",
    "toomanyrequests",
    "too many requests",
    "rate limit",
    "unexpected eof",
    "unreachable",
    "no route to host",
];

impl CoolifyProvider {
    /// The slot's application. Makes it with its variables if it does not exist.
    pub(super) async fn ensure_application(
        &self,
        spec: &Spec,
        listing: &Listing,
    ) -> Result<Application, ProviderError> {
        let mut all = listing.of(&spec.slot);
        let Some(kept) = all.next().cloned() else { return self.make(spec).await };
        for other in all {
            if other.was_started() {
                let (slot, uuid) = (&other.slot, &other.uuid);
                tracing::warn!(%slot, uuid, "second application at Coolify kept: it was started");
            } else {
                // An earlier creation whose answer was lost and that was repeated.
                self.coolify.remove(other).await?;
            }
        }
        // An application that was never started may lack its variables: the process that made it may have died before
        // it set them.
        if !kept.was_started() && !self.coolify.memory().equipped.contains(&kept.uuid) {
            self.set_variables(spec, &kept.uuid).await?;
        }
        Ok(kept)
    }

    async fn make(&self, spec: &Spec) -> Result<Application, ProviderError> {
        let options = self.recipe.marks(spec).written_into("");
        let description = self.coolify.descriptions.take(&spec.slot);
        let made = match self.try_make(spec, &options, description.as_deref()).await {
            Ok(uuid) => Application::made(uuid, spec.slot.clone(), options),
            Err(failure) => {
                if let Some(text) = description {
                    self.coolify.describe_again(&spec.slot, text, 0);
                }
                let (Failure::Lost(_) | Failure::Away(_)) = &failure else { return Err(failure.into()) };
                // The application may exist, and must not be made twice.
                let listing = self.coolify.later_listing(Needs::Applications).await?;
                listing.of(&spec.slot).next().cloned().ok_or(failure)?
            }
        };
        self.coolify.watch.note_made(made.clone());
        self.set_variables(spec, &made.uuid).await?;
        Ok(made)
    }

    async fn try_make(&self, spec: &Spec, options: &str, description: Option<&str>) -> Result<String, Failure> {
        let mut body = self.recipe.body(spec, options, description);
        let mut is_repeated = false;
        loop {
            let path = "applications/dockerimage";
            let request = Value::Object(body.clone());
            match self.coolify.api.ask(Urgency::Wanted, Method::POST, path, Some(&request)).await {
                Ok(answer) => {
                    let uuid = answer.json()?["uuid"].as_str().map(str::to_owned);
                    return uuid.ok_or_else(|| {
                        Failure::Lost("Coolify's answer does not contain the uuid of the new application".to_owned())
                    });
                }
                // An older version may not know all of the fields.
                Err(Failure::Refused { fields, .. })
                    if !is_repeated
                        && !fields.is_empty()
                        && fields.iter().all(|field| DISPENSABLE.contains(&field.as_str())) =>
                {
                    fields.iter().for_each(|field| drop(body.remove(field)));
                    is_repeated = true;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Sets the variables of an application that was never started.
    async fn set_variables(&self, spec: &Spec, uuid: &str) -> Result<(), ProviderError> {
        let variables = self.recipe.variables(spec);
        let path = format!("applications/{uuid}/envs/bulk");
        let done = self.coolify.api.ask_again(Urgency::Wanted, Method::PATCH, &path, Some(&variables)).await;
        done.map_err(|failure| application_gone(failure, &spec.slot))?;
        self.coolify.memory().equipped.insert(uuid.to_owned());
        Ok(())
    }

    /// Makes the slot run exactly this spec. If it already runs or deploys this spec, it continues.
    pub(super) async fn ensure_running(&self, spec: &Spec) -> Result<String, ProviderError> {
        let coolify = &self.coolify;
        let listing = coolify.listing(Needs::Deployments).await?;
        let wanted = marks::start(spec);
        let mut application = match listing.of(&spec.slot).next() {
            // An application keeps its variables and image, so it is removed if the spec has other ones.
            Some(old) if !self.is_as_made(old, spec) && old.marks.start.as_ref() != Some(&wanted) => {
                coolify.delete(&spec.slot).await?;
                self.make(spec).await?
            }
            _ => self.ensure_application(spec, &listing).await?,
        };
        let (is_open, is_wanted) =
            (listing.open(&application).next().is_some(), application.marks.start.as_ref() == Some(&wanted));
        let mut runs = is_open || !application.has_ended();
        if !runs && application.was_started() && !coolify.is_known_to_be_stopped(&application) {
            runs = coolify.runs_on_server(&application, Urgency::Wanted).await?;
            // An earlier attempt may have left a container that Docker restarts again and again. A run for another bot
            // was seen to have stopped before the slot got this bot, and a deployment replaces its container in any
            // case.
            if !runs && is_wanted {
                coolify.stop(&spec.slot).await?;
            }
        }
        if runs && is_wanted {
            let is_shown = application.runs() && !is_open;
            return if is_shown { Ok(application.uuid) } else { self.follow(&application, None, 0).await };
        }
        if runs {
            coolify.stop(&spec.slot).await?;
        }
        coolify.memory().stopped.remove(&application.uuid);
        if !is_wanted {
            self.mark(&mut application, Some(wanted)).await?;
        }
        let deployment = self.ask_to_start(&application).await?;
        self.follow(&application, deployment, 1).await
    }

    fn is_as_made(&self, application: &Application, spec: &Spec) -> bool {
        application.marks.recipe == self.recipe.marks(spec).recipe
    }

    /// Records three facts at Coolify: the application is this installation's and no clone, the start that follows, if
    /// any, and the description for people.
    pub(super) async fn mark(&self, application: &mut Application, start: Option<String>) -> Result<(), ProviderError> {
        let (coolify, slot) = (&self.coolify, application.slot.clone());
        let start = start.or_else(|| application.marks.start.clone());
        let marks = Marks { own: Some(application.uuid.clone()), start, ..application.marks.clone() };
        let options = marks.written_into(&application.options);
        let description = coolify.descriptions.take(&slot);
        let mut body = json!({ "custom_docker_run_options": options });
        if let Some(text) = &description {
            body["description"] = cut(text).into();
        }
        let path = format!("applications/{}", application.uuid);
        if let Err(failure) = coolify.api.ask_again(Urgency::Wanted, Method::PATCH, &path, Some(&body)).await {
            if let Some(text) = description {
                coolify.describe_again(&slot, text, 0);
            }
            return Err(application_gone(failure, &slot));
        }
        (application.marks, application.options) = (marks, options);
        Ok(())
    }

    /// The queued deployment, if Coolify names it. If the answer is lost, a later list shows the deployment.
    async fn ask_to_start(&self, application: &Application) -> Result<Option<String>, ProviderError> {
        let path = format!("applications/{}/start", application.uuid);
        match self.coolify.api.act(Urgency::Wanted, &path).await {
            Ok(answer) => Ok(answer.json()?["deployment_uuid"].as_str().map(str::to_owned)),
            Err(Failure::Lost(_) | Failure::Away(_)) => Ok(None),
            Err(failure) => Err(application_gone(failure, &application.slot)),
        }
    }

    /// Follows a start until it runs or is known to have failed. `asked` counts how often it was requested.
    async fn follow(
        &self,
        application: &Application,
        mut deployment: Option<String>,
        mut asked: u32,
    ) -> Result<String, ProviderError> {
        let (coolify, slot) = (&self.coolify, &application.slot);
        let mut finished: Option<Instant> = None;
        loop {
            let listing: Arc<Listing> = coolify.later_listing(Needs::Deployments).await?;
            let Some(seen) = listing.of(slot).find(|seen| seen.uuid == application.uuid) else {
                return Err(ProviderError::transient(format!("the application of {slot} is gone")));
            };
            if let Some(open) = listing.open(seen).next() {
                deployment = Some(open.uuid.clone());
                continue;
            }
            if seen.runs() {
                return Ok(seen.uuid.clone());
            }
            if let Some(since) = finished {
                // The status of the application follows the deployment after a while.
                if since.elapsed() > coolify.pace.shown_within {
                    let text = format!(
                        "Coolify has deployed the slot, but the slot does not run: its status is {}",
                        seen.status
                    );
                    return Err(ProviderError::transient(text));
                }
                continue;
            }
            let state = match deployment.take() {
                Some(uuid) => self.state(&uuid).await?.map(|state| (uuid, state)),
                None => None,
            };
            match state {
                Some((uuid, DeploymentState::Unfinished)) => deployment = Some(uuid),
                Some((_, DeploymentState::Finished)) => finished = Some(Instant::now()),
                Some((_, DeploymentState::Ended { status, lines })) => return Err(failed(&status, lines)),
                // It was not queued, whatever the answer was: the queue may be full.
                None if asked < STARTED_AGAIN => {
                    tokio::time::sleep(coolify.pace.queue_again).await;
                    if coolify.runs_on_server(seen, Urgency::Wanted).await? {
                        finished = Some(Instant::now());
                    } else {
                        deployment = self.ask_to_start(seen).await?;
                        asked += 1;
                    }
                }
                None => {
                    let text = format!(
                        "Coolify did not start the slot after {STARTED_AGAIN} requests: its queue of deployments may be full"
                    );
                    return Err(ProviderError::transient(text));
                }
            }
        }
    }

    /// The state of a deployment. `None` if there is none with this name.
    async fn state(&self, uuid: &str) -> Result<Option<DeploymentState>, ProviderError> {
        match self.coolify.api.get(Urgency::Wanted, &format!("deployments/{uuid}")).await {
            Ok(answer) => Ok(Some(DeploymentState::read(&answer.json()?))),
            Err(refused) if refused.is_absent("Deployment") => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }
}

/// Why a deployment failed.
fn failed(status: &str, lines: Option<String>) -> ProviderError {
    let unread = "Coolify shows its log only to a token with `read:sensitive`";
    let message = format!("the deployment ended with the status {status}: {}", lines.as_deref().unwrap_or(unread));
    // A cancelled deployment was not tried, and an unknown reason may be transient.
    let passes = |message: String| TRANSIENT.iter().any(|word| message.contains(word));
    let retryable = status != "failed" || lines.is_none_or(|lines| passes(lines.to_lowercase()));
    if retryable { ProviderError::transient(message) } else { ProviderError::permanent(message) }
}

/// If the application is gone, the next attempt makes it again.
fn application_gone(failure: Failure, slot: &SlotName) -> ProviderError {
    match failure {
        gone if gone.is_absent(APPLICATION) => ProviderError::transient(format!("the application of {slot} is gone")),
        failure => failure.into(),
    }
}
