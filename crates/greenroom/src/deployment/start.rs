//! Through the gate of its host to a running slot: at most so many at once on each host, first in first out, in
//! whatever process. A start that failed is tried again as long as the deadline allows, where the provider says that it
//! may help.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{Attributes, Backoff, BotId, SlotStatus, Status};
use jiff::Timestamp;
use uuid::Uuid;

use super::image::{Ensured, Wanting};
use super::replica::Kept;
use super::{Deployment, lease};
use crate::placement::SlotEvent;
use crate::providers::{Provider, ProviderError, Spec};
use crate::store::{DeploymentRow, Holder, Holding, Lease, Served, SlotRow, StoreError};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For a longer pause the place behind the gate is given to others.
const LONGEST_IN_PLACE: Duration = Duration::from_secs(1);
/// How often to look whether somebody else is done with what has the slot's name.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A deployment that was let through the gate, and as whose.
struct Passed {
    row: DeploymentRow,
    holder: Uuid,
    /// The replica that it was let through as.
    replica: Uuid,
}

/// What came of what a provider was asked to do.
enum Brought {
    /// It runs, or is made; with the provider's name for it.
    Up(String),
    /// Somebody else pulls the image, and the deployment has stepped back.
    SteppedBack,
    /// It is another's by now.
    Lost,
}

/// What is to be in a slot, and whether it is to run or only to be made.
struct Wanted {
    spec: Spec,
    runs: bool,
}

enum Outcome {
    /// It runs, or is made; with the provider's name for it, and what stands for all that it was started with.
    Done {
        provider_ref: String,
        recipe: Option<String>,
    },
    Failed(ProviderError),
    /// There is no room for what its bot asks, in these words.
    NoCapacity(String),
    /// Nobody wants it any more.
    NotWanted,
    /// It failed, and is tried again after this; others may go meanwhile.
    Later(Duration),
    /// It has stepped back until somebody else has pulled the image.
    SteppedBack,
    /// Another process holds it by now.
    Lost,
}

impl Deployment {
    /// Lets through as many as there is room for on each host, and deploys them. Only of pools that this replica has a
    /// provider for: what others are configured with is left to them.
    pub(crate) async fn pass_gate(&self) {
        match self.passed().await {
            Ok(passed) => {
                for (deployment, kept) in passed {
                    let this = self.clone();
                    tokio::spawn(async move { this.deploy(deployment, kept).await });
                }
            }
            Err(error) => tracing::warn!(%error, "deploy gate not passed"),
        }
    }

    /// Something with these attributes came free at the provider of these pools: whoever was put back in the queue, or tries again
    /// later, is tried now.
    pub async fn came_free(&self, pools: &[&str], attributes: Attributes) -> Result<(), StoreError> {
        let mut tx = self.0.store.begin().await?;
        for pool in pools {
            tx.hurry_gate(pool, self.0.clock.now(), self.0.max_concurrent).await?;
        }
        tx.commit().await?;
        self.0.stepped_back.notify_one();
        self.0.placement.retry_waiting(attributes);
        Ok(())
    }

    async fn passed(&self) -> Result<Vec<(Passed, Kept)>, StoreError> {
        // Another holder each time, so that whoever was let through before, also by this process, is told from it.
        let (replica, holder) = (self.0.lease.current().await?.id, Uuid::new_v4());
        let all = self.0.lease.keep(Holding::Passed { holder });
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
            let kept = self.0.lease.keep(Holding::Deployment { slot: row.slot.clone(), holder });
            (Passed { row, holder, replica }, kept)
        });
        let passed = passed.collect();
        all.given_back();
        Ok(passed)
    }

    async fn deploy(self, deployment: Passed, kept: Kept) {
        let (slot, bot, holder) = (&deployment.row.slot, deployment.row.bot_id, deployment.holder);
        let outcome = self.try_deploy(&deployment).await;
        let finished = match outcome {
            Ok(Outcome::Done { provider_ref, recipe }) => {
                let news = SlotEvent::Started { bot, provider_ref, recipe, holder };
                self.0.placement.report(slot.clone(), news).await.map(drop)
            }
            Ok(Outcome::Failed(error)) => self.failed(&deployment, error.message).await,
            Ok(Outcome::NoCapacity(message)) => self.no_capacity(&deployment, message).await,
            Ok(Outcome::NotWanted) => self.not_wanted(&deployment).await,
            Ok(Outcome::Later(pause)) => {
                kept.given_back();
                self.0.stepped_back.notify_one();
                tokio::time::sleep(pause).await;
                self.0.stepped_back.notify_one();
                return;
            }
            Ok(Outcome::SteppedBack) => {
                kept.given_back();
                self.0.stepped_back.notify_one();
                return;
            }
            // If it is not another's after all, it is released with what it held.
            Ok(Outcome::Lost) => {
                drop(kept);
                return self.clear_if_ended(bot).await;
            }
            Err(error) => Err(error),
        };
        match finished {
            Ok(()) => kept.given_back(),
            Err(error) => tracing::warn!(%slot, %error, "deployment not finished; it is released later"),
        }
        self.clear_if_ended(bot).await;
    }

    /// A bot that ended meanwhile left its slot to whoever was starting it.
    async fn clear_if_ended(&self, bot: Option<BotId>) {
        if let Some(bot) = bot
            && let Ok(Some(row)) = self.0.store.bot(bot).await
            && row.status.is_ended()
        {
            self.clear_after(bot);
        }
    }

    /// The bot fails and the slot goes to error in one transaction, with the provider's words in both.
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

    /// The bot goes back in the queue, and the slot is free.
    async fn no_capacity(&self, deployment: &Passed, message: String) -> Result<(), StoreError> {
        let slot = &deployment.row.slot;
        let Some(bot) = deployment.row.bot_id else { return self.failed(deployment, message).await };
        tracing::info!(%slot, %bot, error = message, "no capacity for a bot; it is queued again");
        let news = SlotEvent::NoCapacity { bot, holder: deployment.holder, message };
        if self.0.placement.report(slot.clone(), news).await? {
            return Ok(());
        }
        self.not_wanted(deployment).await
    }

    /// A bot that is to leave and has not begun is at its end: there is nobody to tell.
    async fn not_wanted(&self, deployment: &Passed) -> Result<(), StoreError> {
        let (bot, holder) = (deployment.row.bot_id, deployment.holder);
        if let Some(id) = bot
            && let Some(row) = self.0.store.bot(id).await?
            && row.status == Status::Stopping
            && !row.has_session
        {
            self.give_up(id, Overdue::StopGrace, None).await?;
        }
        let news = SlotEvent::NotBegun { bot, holder };
        self.0.placement.report(deployment.row.slot.clone(), news).await.map(drop)
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
            // A bot that has begun, and ended with its slot while that was being started, is not begun a second time.
            if let Some(bot) = deployment.bot_id
                && self.has_begun(bot).await?
                && self.end_if_interrupted(&slot.name, bot, &*provider).await?
            {
                return Ok(Outcome::NotWanted);
            }
            let is_new = slot.provider_ref.is_none();
            let error =
                match self.leased(passed, provider.recipe(), self.bring_up(&provider, passed, &wanted, is_new)).await {
                    Outcome::Failed(error) => error,
                    outcome => return Ok(outcome),
                };
            let next_try = self.0.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
            let is_late = next_try >= deployment.timeout_at;
            if error.is_unavailable {
                self.note_away(&slot.pool, &error);
            }
            // Of a provider that is away nobody knows whether the slot would start. A bot that waited too long is ended by
            // the keeper of the queue, and its slot stays good.
            let is_away =
                error.is_unavailable || (is_late && self.failed_by_outage(&slot.pool, &*provider, &error).await);
            if is_late && is_away {
                let stepped = self.step_back(passed, LONGEST_PAUSE, &error.message).await?;
                return Ok(if stepped { Outcome::Later(LONGEST_PAUSE) } else { Outcome::Lost });
            }
            if !error.retryable || is_late {
                self.keep_failure(&slot, deployment.bot_id, &error.message).await;
                // Whoever has it by now decides what becomes of it.
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

    /// Lets others have the place behind the gate until it is tried again.
    async fn step_back(&self, passed: &Passed, pause: Duration, message: &str) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let until = self.0.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
        let stepped = tx.step_back(&passed.row.slot, passed.holder, until, message).await?;
        tx.commit().await?;
        Ok(stepped)
    }

    /// The image first, by one puller at a time; then what is wanted. Of a slot that `is_new` something may be left that
    /// nobody knew of, and is being removed.
    async fn bring_up(
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
        // A replica that stood still may have said that the slot is clear, while another was already clearing it in its place:
        // what that one is about to end must not be what is started here.
        let lease = Lease::Slot(wanted.spec.slot.clone());
        let is_elsewhere = |replica: Holder| replica.id != passed.replica;
        while self.0.store.is_shared()
            && self.0.store.lease_holder(&lease).await.map_err(removed)?.is_some_and(is_elsewhere)
        {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let wanting = Wanting { slot: &passed.row.slot, holder: passed.holder };
        match self.ensure_image(provider, wanting).await? {
            Ensured::There => {}
            Ensured::SteppedBack => return Ok(Brought::SteppedBack),
            Ensured::Lost => return Ok(Brought::Lost),
        }
        let made = if wanted.runs { provider.start(&wanted.spec).await } else { provider.create(&wanted.spec).await };
        made.map(Brought::Up)
    }

    /// What is to run: `None` when nobody wants it any more.
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
            // An agent that waits fetches its bot by itself.
            if !pool.hot {
                spec.connection = bot.connection_id.map(|id| id.to_string());
            }
            if !pool.hot && !self.keeps_environment(&slot.pool) {
                spec.environment.extend(self.bot_data(&bot).map(|data| ("BOT_DATA".to_owned(), data.to_string())));
            }
        }
        Ok(Some(Wanted { spec, runs: pool.hot || deployment.bot_id.is_some() }))
    }

    /// Lets a provider work while this replica lives and somebody wants what it is doing.
    async fn leased(
        &self,
        passed: &Passed,
        recipe: Option<String>,
        work: impl Future<Output = Result<Brought, ProviderError>>,
    ) -> Outcome {
        let DeploymentRow { slot, bot_id, .. } = &passed.row;
        let wanted = || async { Ok(self.is_ours(passed).await? && !self.has_ended(*bot_id).await) };
        let work = tokio::time::timeout(self.0.patience.start, work);
        match lease::kept(self.0.lease.liveness(), passed.replica, slot.as_str(), wanted, work).await {
            // By now it may be another's, whose word counts.
            Some(Ok(Ok(Brought::Up(provider_ref)))) if self.is_ours(passed).await.unwrap_or(true) => {
                Outcome::Done { provider_ref, recipe }
            }
            Some(Ok(Ok(Brought::SteppedBack))) => Outcome::SteppedBack,
            Some(Ok(Ok(_))) => Outcome::Lost,
            Some(Ok(Err(error))) => Outcome::Failed(error),
            Some(Err(_)) => Outcome::Failed(ProviderError::transient("the provider does not answer")),
            None if self.has_ended(*bot_id).await => Outcome::NotWanted,
            None => Outcome::Lost,
        }
    }

    /// Whether a bot came to its end meanwhile: then its start is not waited for any longer.
    async fn has_ended(&self, bot: Option<BotId>) -> bool {
        let Some(bot) = bot else { return false };
        matches!(self.0.store.bot(bot).await, Ok(Some(row)) if row.status.is_ended())
    }

    /// Whether a bot has called back.
    async fn has_begun(&self, bot: BotId) -> Result<bool, StoreError> {
        Ok(self.0.store.bot(bot).await?.is_some_and(|bot| bot.has_session))
    }

    async fn is_ours(&self, passed: &Passed) -> Result<bool, StoreError> {
        self.0.store.is_held_by(&passed.row.slot, passed.holder).await
    }

    /// Keeps what the provider said. False when the deployment is no longer this process's.
    async fn note_error(&self, passed: &Passed, message: &str) -> Result<bool, StoreError> {
        let mut tx = self.0.store.begin().await?;
        let own = tx.note_error(&passed.row.slot, passed.holder, message).await?;
        tx.commit().await?;
        Ok(own)
    }
}
