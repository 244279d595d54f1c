//! This module takes a deployment through the gate of its host and starts the slot. The gate lets a limited number of
//! deployments run at once on each host, first in, first out, across all processes. A failed start is tried again until
//! the deadline, if the provider says that a retry may help.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{Attributes, Backoff, BotId, SlotStatus, Status};
use jiff::Timestamp;
use uuid::Uuid;

use super::image::{Ensured, Wanting};
use super::replica::HoldingGuard;
use super::{Deployment, lease};
use crate::placement::SlotEvent;
use crate::providers::{Provider, ProviderError, Spec};
use crate::store::{DeploymentRow, Holder, Holding, Lease, Served, SlotRow, StoreError};
use crate::traces::{self, Span, SpanId, TraceParent};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For a longer pause, the deployment steps back from the gate and lets others pass.
const LONGEST_IN_PLACE: Duration = Duration::from_secs(1);
/// How often to check whether another task is done with the resource of the same name.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A deployment that has passed the gate, and its holder.
struct Passed {
    row: DeploymentRow,
    holder: Uuid,
    /// The replica as which it passed the gate.
    replica: Uuid,
}

impl Passed {
    /// The id of the span for the start of this slot. Attempts at the same place at the gate share it.
    fn span(&self, bot: BotId) -> SpanId {
        SpanId::of_step(bot, &format!("slot start {}", self.holder))
    }
}

/// The result of a request to the provider.
enum Brought {
    /// The slot runs, or is created; with the provider's name for it.
    Up(String),
    /// Another deployment pulls the image, and this deployment has stepped back.
    SteppedBack,
    /// Another process holds the deployment now.
    Lost,
}

/// What the provider is to create, and whether it is also to start it.
struct Wanted {
    spec: Spec,
    runs: bool,
}

enum Outcome {
    /// The slot runs, or is created; with the provider's name for it, and the fingerprint of its start configuration.
    Done {
        provider_ref: String,
        recipe: Option<String>,
    },
    Failed(ProviderError),
    /// The provider has no capacity for the bot's requirements, and this is its message.
    NoCapacity(String),
    /// The start is no longer needed.
    NotWanted,
    /// The start failed and is tried again after this pause. Others may pass the gate in the meantime.
    Later(Duration),
    /// The deployment has stepped back until another deployment has pulled the image.
    SteppedBack,
    /// Another process holds the deployment now.
    Lost,
}

impl Deployment {
    /// Lets as many deployments pass as each host has room for, and deploys them. It takes only pools that this replica
    /// has a provider for; other replicas take the rest.
    pub(crate) async fn pass_gate(&self) {
        match self.passed().await {
            Ok(passed) => {
                for (deployment, guard) in passed {
                    let this = self.clone();
                    tokio::spawn(async move { this.deploy(deployment, guard).await });
                }
            }
            Err(error) => tracing::warn!(%error, "deploy gate update failed"),
        }
    }

    /// Capacity with these attributes became free at the provider of these pools. Bots that went back to the queue, and
    /// deployments that wait for a retry, are tried now.
    pub async fn note_free_capacity(&self, pools: &[&str], attributes: Attributes) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        for pool in pools {
            tx.make_retries_due(pool, self.0.clock.now(), self.0.max_concurrent).await?;
        }
        tx.commit().await?;
        self.0.stepped_back.notify_one();
        self.0.placement.retry_waiting(attributes);
        Ok(())
    }

    async fn passed(&self) -> Result<Vec<(Passed, HoldingGuard)>, StoreError> {
        // Each pass has a new holder, so that it differs from every earlier pass, also of this process.
        let (replica, holder) = (self.0.lease.current().await?.id, Uuid::new_v4());
        let all = self.0.lease.guard(Holding::Passed { holder });
        let served: Vec<Served> = self
            .0
            .providers
            .iter()
            .map(|(pool, provider)| Served { pool: pool.clone(), image: provider.image() })
            .collect();
        let mut tx = self.0.store.begin().await?;
        let now = self.0.clock.now();
        let rows = tx.pass_gate(self.0.max_concurrent, &served, holder, replica, now).await?;
        tx.commit().await?;
        let passed = rows.into_iter().map(|row| {
            if let Some(bot) = row.bot_id.filter(|_| traces::is_on()) {
                let span = Span::step(bot, "gate wait", row.asked_at, now).with("greenroom.host", row.host.clone());
                traces::record(span.with("greenroom.tries", row.tries.to_string()));
            }
            let guard = self.0.lease.guard(Holding::Deployment { slot: row.slot.clone(), holder });
            (Passed { row, holder, replica }, guard)
        });
        let passed = passed.collect();
        all.disarm();
        Ok(passed)
    }

    async fn deploy(self, deployment: Passed, guard: HoldingGuard) {
        let (slot, bot, holder) = (&deployment.row.slot, deployment.row.bot_id, deployment.holder);
        let outcome = self.try_deploy(&deployment).await;
        let finished = match outcome {
            Ok(Outcome::Done { provider_ref, recipe }) => {
                let event = SlotEvent::Started { bot, provider_ref, recipe, holder };
                self.0.placement.report(slot.clone(), event).await.map(drop)
            }
            Ok(Outcome::Failed(error)) => self.failed(&deployment, error.message).await,
            Ok(Outcome::NoCapacity(message)) => self.no_capacity(&deployment, message).await,
            Ok(Outcome::NotWanted) => self.not_wanted(&deployment).await,
            Ok(Outcome::Later(pause)) => {
                guard.disarm();
                self.0.stepped_back.notify_one();
                tokio::time::sleep(pause).await;
                self.0.stepped_back.notify_one();
                return;
            }
            Ok(Outcome::SteppedBack) => {
                guard.disarm();
                self.0.stepped_back.notify_one();
                return;
            }
            // If this process still holds the deployment after all, dropping `guard` releases it later.
            Ok(Outcome::Lost) => {
                drop(guard);
                return self.clear_if_ended(bot).await;
            }
            Err(error) => Err(error),
        };
        match finished {
            Ok(()) => guard.disarm(),
            Err(error) => tracing::warn!(%slot, %error, "deployment not finished; it is released later"),
        }
        self.clear_if_ended(bot).await;
    }

    /// Clears the slot of a bot that ended during the start: clearing was left to this task.
    async fn clear_if_ended(&self, bot: Option<BotId>) {
        if let Some(bot) = bot
            && let Ok(Some(row)) = self.0.store.bot(bot).await
            && row.status.is_ended()
        {
            self.clear_after(bot);
        }
    }

    /// Fails the bot and sets the slot to error in one transaction, with the provider's message in both.
    async fn failed(&self, deployment: &Passed, message: String) -> Result<(), StoreError> {
        let slot = &deployment.row.slot;
        let Some(bot) = deployment.row.bot_id else {
            tracing::warn!(%slot, error = message, "slot start failed");
            return self.0.placement.report(slot.clone(), SlotEvent::Broken { bot: None, message }).await.map(drop);
        };
        tracing::warn!(%slot, %bot, error = message, "slot start failed");
        if self.give_up(bot, Overdue::DeployFailed, Some(message)).await? {
            return Ok(());
        }
        self.not_wanted(deployment).await
    }

    /// Puts the bot back in the queue and frees the slot.
    async fn no_capacity(&self, deployment: &Passed, message: String) -> Result<(), StoreError> {
        let slot = &deployment.row.slot;
        let Some(bot) = deployment.row.bot_id else { return self.failed(deployment, message).await };
        tracing::info!(%slot, %bot, error = message, "no capacity found; the bot returns to the queue");
        let event = SlotEvent::NoCapacity { bot, holder: deployment.holder, message };
        if self.0.placement.report(slot.clone(), event).await? {
            return Ok(());
        }
        self.not_wanted(deployment).await
    }

    /// Ends a bot that is to stop and has not begun: there is no process that could leave the meeting.
    async fn not_wanted(&self, deployment: &Passed) -> Result<(), StoreError> {
        let (bot, holder) = (deployment.row.bot_id, deployment.holder);
        if let Some(id) = bot
            && let Some(row) = self.0.store.bot(id).await?
            && row.status == Status::Stopping
            && !row.has_session
        {
            self.give_up(id, Overdue::StopGrace, None).await?;
        }
        let event = SlotEvent::NotBegun { bot, holder };
        self.0.placement.report(deployment.row.slot.clone(), event).await.map(drop)
    }

    async fn try_deploy(&self, passed: &Passed) -> Result<Outcome, StoreError> {
        let deployment = &passed.row;
        let first = if deployment.tries == 0 { FIRST_PAUSE } else { LONGEST_IN_PLACE };
        let mut backoff = Backoff::after(first, LONGEST_PAUSE, u32::try_from(deployment.tries).unwrap_or(0));
        loop {
            let pause = backoff.next_delay();
            let Some(slot) = self.0.store.slot(&deployment.slot).await? else { return Ok(Outcome::NotWanted) };
            let Some(wanted) = self.wanted(&slot, deployment).await? else { return Ok(Outcome::NotWanted) };
            let Some(provider) = self.provider(&slot.pool) else {
                return Ok(Outcome::Failed(ProviderError::permanent(format!(
                    "the pool {} has no provider",
                    slot.pool
                ))));
            };
            // If a bot that had begun ended together with its slot during the start, it must not begin a second time.
            if let Some(bot) = deployment.bot_id
                && self.has_begun(bot).await?
                && self.end_if_interrupted(&slot.name, bot, &*provider).await?
            {
                return Ok(Outcome::NotWanted);
            }
            let is_new = slot.provider_ref.is_none();
            let begun = self.0.clock.now();
            let outcome =
                self.leased(passed, provider.recipe(), self.pull_and_start(&provider, passed, &wanted, is_new)).await;
            self.trace_start(passed, begun, &outcome);
            let error = match outcome {
                Outcome::Failed(error) => error,
                outcome => return Ok(outcome),
            };
            let next_try = self.0.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
            let is_late = next_try >= deployment.timeout_at;
            if error.is_unavailable {
                self.note_unavailable(&slot.pool, &error);
            }
            // While the provider is unavailable, it is unknown whether the slot would start. The queue-expiry keeper
            // ends a bot that waited too long, and the slot stays usable.
            let is_unavailable =
                error.is_unavailable || (is_late && self.failed_by_outage(&slot.pool, &*provider, &error).await);
            if is_late && is_unavailable {
                let stepped = self.step_back(passed, LONGEST_PAUSE, &error.message).await?;
                return Ok(if stepped { Outcome::Later(LONGEST_PAUSE) } else { Outcome::Lost });
            }
            if !error.retryable || is_late {
                self.keep_failure(&slot, deployment.bot_id, &error.message).await;
                // If another process holds the deployment by now, that process decides.
                let own = self.note_error(passed, &error.message).await.unwrap_or(false);
                return Ok(if own { Outcome::Failed(error) } else { Outcome::Lost });
            }
            if error.lacks_capacity && deployment.bot_id.is_some() {
                let own = self.note_error(passed, &error.message).await.unwrap_or(false);
                return Ok(if own { Outcome::NoCapacity(error.message) } else { Outcome::Lost });
            }
            tracing::warn!(slot = %slot.name, error = %error.message, retry_in_ms = pause.as_millis(), "slot start failed");
            if pause > LONGEST_IN_PLACE {
                return Ok(if self.step_back(passed, pause, &error.message).await? {
                    Outcome::Later(pause)
                } else {
                    Outcome::Lost
                });
            }
            if !self.note_error(passed, &error.message).await.unwrap_or(false) {
                return Ok(Outcome::Lost);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Leaves the gate to others until the next attempt.
    async fn step_back(&self, passed: &Passed, pause: Duration, message: &str) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let until = self.0.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
        let stepped = tx.step_back(&passed.row.slot, passed.holder, until, message).await?;
        tx.commit().await?;
        Ok(stepped)
    }

    /// Pulls the image first, one puller at a time, and then creates or starts the slot. Before a new slot (`is_new`)
    /// is created, an unknown resource of the same name may still be being removed.
    async fn pull_and_start(
        &self,
        provider: &Arc<dyn Provider>,
        passed: &Passed,
        wanted: &Wanted,
        is_new: bool,
    ) -> Result<Brought, ProviderError> {
        let removed = |error: StoreError| ProviderError::transient(error.to_string());
        while is_new && self.is_being_removed(&wanted.spec.slot).await.map_err(removed)? {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        // This replica may have stood still and reported the slot as clear while another replica was clearing it. That
        // replica must not stop what is started here.
        let lease = Lease::Slot(wanted.spec.slot.clone());
        let is_elsewhere = |replica: Holder| replica.id != passed.replica;
        while self.0.store.is_shared()
            && self.0.store.lease_holder(&lease).await.map_err(removed)?.is_some_and(is_elsewhere)
        {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let wanting = Wanting { slot: &passed.row.slot, holder: passed.holder };
        let begun = self.0.clock.now();
        let ensured = self.ensure_image(provider, wanting).await;
        self.trace_call(passed, "image", begun, ensured.as_ref().err());
        match ensured? {
            Ensured::There => {}
            Ensured::SteppedBack => return Ok(Brought::SteppedBack),
            Ensured::Lost => return Ok(Brought::Lost),
        }
        let begun = self.0.clock.now();
        let made = if wanted.runs { provider.start(&wanted.spec).await } else { provider.create(&wanted.spec).await };
        self.trace_call(passed, "provider start", begun, made.as_ref().err());
        made.map(Brought::Up)
    }

    /// Adds an attempt to start the slot to the trace of its bot.
    fn trace_start(&self, passed: &Passed, begun: Timestamp, outcome: &Outcome) {
        let Some(bot) = passed.row.bot_id.filter(|_| traces::is_on()) else { return };
        let error = match outcome {
            Outcome::Failed(error) => Some(error.kind()),
            Outcome::NoCapacity(_) => Some("no_capacity"),
            _ => None,
        };
        let span = Span { id: passed.span(bot), ..Span::step(bot, "slot start", begun, self.0.clock.now()) };
        traces::record(span.with("greenroom.slot", passed.row.slot.as_str()).failed(error));
    }

    /// Adds a call to the provider to the trace of the bot, below the attempt to start the slot.
    fn trace_call(&self, passed: &Passed, name: &'static str, begun: Timestamp, error: Option<&ProviderError>) {
        if let Some(bot) = passed.row.bot_id.filter(|_| traces::is_on()) {
            let span = Span::step(bot, name, begun, self.0.clock.now()).within(passed.span(bot));
            traces::record(span.failed(error.map(ProviderError::kind)));
        }
    }

    /// Returns what to start; `None` when the start is no longer needed.
    async fn wanted(&self, slot: &SlotRow, deployment: &DeploymentRow) -> Result<Option<Wanted>, StoreError> {
        let Some(pool) = self.pool(&slot.pool).await? else { return Ok(None) };
        if slot.bot_id != deployment.bot_id || (slot.status == SlotStatus::Draining && slot.bot_id.is_none()) {
            return Ok(None);
        }
        let mut spec = Spec {
            slot: slot.name.clone(),
            generation: slot.generation,
            connection: None,
            environment: BTreeMap::from([
                ("GREENROOM_URL".to_owned(), self.0.public_url.clone()),
                ("GREENROOM_SLOT".to_owned(), slot.name.to_string()),
                ("GREENROOM_SLOT_TOKEN".to_owned(), self.slot_token(slot)),
            ]),
            fresh: pool.recycle_after > 0,
            requirements: None,
        };
        if let Some(id) = deployment.bot_id {
            let Some(bot) = self.0.store.bot(id).await? else { return Ok(None) };
            if bot.slot.as_ref() != Some(&slot.name) || (bot.status != Status::Reserved && !bot.status.is_running()) {
                return Ok(None);
            }
            spec.requirements = bot.parsed_requirements();
            // A waiting agent fetches its bot by itself.
            if !pool.hot {
                spec.connection = bot.connection_id.map(|id| id.to_string());
            }
            if !pool.hot && !self.keeps_environment(&slot.pool) {
                spec.environment.extend(self.bot_data(&bot).map(|data| ("BOT_DATA".to_owned(), data.to_string())));
                if traces::is_on() {
                    spec.environment.insert("TRACEPARENT".to_owned(), TraceParent::of_bot(id).to_string());
                }
            }
        }
        Ok(Some(Wanted { spec, runs: pool.hot || deployment.bot_id.is_some() }))
    }

    /// Lets the provider work as long as this replica is alive and the result is needed.
    async fn leased(
        &self,
        passed: &Passed,
        recipe: Option<String>,
        work: impl Future<Output = Result<Brought, ProviderError>>,
    ) -> Outcome {
        let DeploymentRow { slot, bot_id, .. } = &passed.row;
        let wanted = || async { Ok(self.is_ours(passed).await? && !self.has_ended(*bot_id).await) };
        let work = tokio::time::timeout(self.0.timeouts.start, work);
        match lease::run_while_held(self.0.lease.liveness(), passed.replica, slot.as_str(), wanted, work).await {
            // Another process may hold the deployment by now; then the result of that process counts.
            Some(Ok(Ok(Brought::Up(provider_ref)))) if self.is_ours(passed).await.unwrap_or(true) => {
                Outcome::Done { provider_ref, recipe }
            }
            Some(Ok(Ok(Brought::SteppedBack))) => Outcome::SteppedBack,
            Some(Ok(Ok(_))) => Outcome::Lost,
            Some(Ok(Err(error))) => Outcome::Failed(error),
            Some(Err(_)) => Outcome::Failed(ProviderError::transient(format!(
                "the slot was not started within {} s",
                self.0.timeouts.start.as_secs()
            ))),
            None if self.has_ended(*bot_id).await => Outcome::NotWanted,
            None => Outcome::Lost,
        }
    }

    /// Whether the bot has ended in the meantime. Then its start is cancelled.
    async fn has_ended(&self, bot: Option<BotId>) -> bool {
        let Some(bot) = bot else { return false };
        matches!(self.0.store.bot(bot).await, Ok(Some(row)) if row.status.is_ended())
    }

    /// Whether the bot has called back under its connection.
    async fn has_begun(&self, bot: BotId) -> Result<bool, StoreError> {
        Ok(self.0.store.bot(bot).await?.is_some_and(|bot| bot.has_session))
    }

    async fn is_ours(&self, passed: &Passed) -> Result<bool, StoreError> {
        self.0.store.is_held_by(&passed.row.slot, passed.holder).await
    }

    /// Stores the provider's message. False when this process no longer holds the deployment.
    async fn note_error(&self, passed: &Passed, message: &str) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let own = tx.note_error(&passed.row.slot, passed.holder, message).await?;
        tx.commit().await?;
        Ok(own)
    }
}
