//! Through the gate to a running slot: at most so many at once, first in first out, in whatever process. A start that
//! failed is tried again as long as the deadline allows, where the provider says that it may help.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{BotId, SlotName, SlotStatus, Status};
use jiff::Timestamp;

use super::{Deployment, image};
use crate::placement::SlotNews;
use crate::providers::{Provider, ProviderError, Spec};
use crate::store::{DeploymentRow, SlotRow, StoreError};

/// How long a holder is believed to live without a sign.
const LEASE: Duration = Duration::from_secs(15);
const RENEW: Duration = Duration::from_secs(4);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A provider that does not answer is an error like another. An image of many gigabytes takes its time.
const LONGEST_CALL: Duration = Duration::from_mins(15);

enum Outcome {
    Runs(String),
    Failed(ProviderError),
    /// Nobody wants it any more.
    NotWanted,
    /// Another process holds it by now.
    Lost,
}

impl Deployment {
    /// Lets through as many as there is room for, and deploys them.
    pub(super) async fn pass_gate(&self) {
        match self.passed().await {
            Ok(passed) => {
                for deployment in passed {
                    let this = self.clone();
                    tokio::spawn(async move { this.deploy(deployment).await });
                }
            }
            Err(error) => tracing::warn!(%error, "the deploy gate cannot be passed"),
        }
    }

    async fn passed(&self) -> Result<Vec<DeploymentRow>, StoreError> {
        let now = self.0.lifecycle.clock.now();
        let mut tx = self.0.store.begin().await?;
        let passed = tx.pass_gate(self.0.max_concurrent, self.0.holder, now, lease(now)).await?;
        tx.commit().await?;
        Ok(passed)
    }

    async fn deploy(self, deployment: DeploymentRow) {
        let (slot, bot) = (&deployment.slot, deployment.bot_id);
        let outcome = self.try_deploy(&deployment).await;
        let kept = match outcome {
            Ok(Outcome::Runs(provider_ref)) => {
                let holder = self.0.holder;
                self.0.placement.tell(slot.clone(), SlotNews::Started { bot, provider_ref, holder }).await
            }
            Ok(Outcome::Failed(error)) => self.failed(slot, bot, error.words).await,
            Ok(Outcome::NotWanted) => self.not_wanted(slot, bot).await,
            Ok(Outcome::Lost) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = kept {
            tracing::warn!(%slot, %error, "a deployment is left to be found when its lease ends");
        }
        // A bot that ended meanwhile left its slot to whoever was starting it.
        if let Some(bot) = bot
            && let Ok(Some(row)) = self.0.store.bot(bot).await
            && row.status.is_ended()
        {
            self.clear_after(bot);
        }
    }

    /// The bot fails and the slot goes to error in one transaction, with the provider's words in both.
    async fn failed(&self, slot: &SlotName, bot: Option<BotId>, words: String) -> Result<(), StoreError> {
        let Some(bot) = bot else {
            self.broken(slot, None, &words).await;
            return Ok(());
        };
        tracing::warn!(%slot, %bot, error = words, "a slot could not be started");
        if self.give_up(bot, Overdue::DeployFailed, Some(words)).await? {
            return Ok(());
        }
        self.not_wanted(slot, Some(bot)).await
    }

    /// A bot that is to leave and has not begun is at its end: there is nobody to tell.
    async fn not_wanted(&self, slot: &SlotName, bot: Option<BotId>) -> Result<(), StoreError> {
        if let Some(id) = bot
            && let Some(row) = self.0.store.bot(id).await?
            && row.status == Status::Stopping
            && !row.has_session
        {
            self.give_up(id, Overdue::StopGrace, None).await?;
        }
        let holder = self.0.holder;
        self.0.placement.tell(slot.clone(), SlotNews::NotBegun { bot, holder }).await
    }

    async fn try_deploy(&self, deployment: &DeploymentRow) -> Result<Outcome, StoreError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(slot) = self.0.store.slot(&deployment.slot).await? else { return Ok(Outcome::NotWanted) };
            let Some(spec) = self.spec(&slot, deployment).await? else { return Ok(Outcome::NotWanted) };
            let Some(provider) = self.provider(&slot.pool) else {
                return Ok(Outcome::Failed(ProviderError::never(format!("the pool {} has no provider", slot.pool))));
            };
            let error = match self.leased(&deployment.slot, self.bring_up(&*provider, &spec)).await {
                Some(Ok(provider_ref)) => return Ok(Outcome::Runs(provider_ref)),
                Some(Err(error)) => error,
                None => return Ok(Outcome::Lost),
            };
            let again = self.0.lifecycle.clock.now().saturating_add(pause).unwrap_or(Timestamp::MAX);
            if !error.may_help || again >= deployment.timeout_at {
                let own = self.renew(&deployment.slot, Some(&error.words)).await;
                return Ok(if own { Outcome::Failed(error) } else { Outcome::Lost });
            }
            tracing::warn!(slot = %slot.name, error = %error.words, "a start failed and is tried again");
            if !self.renew(&deployment.slot, Some(&error.words)).await {
                return Ok(Outcome::Lost);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The image first, by one puller at a time; then the start.
    async fn bring_up(&self, provider: &dyn Provider, spec: &Spec) -> Result<String, ProviderError> {
        image::ensure(&self.0.store, &self.0.lifecycle.clock, provider).await?;
        provider.start(spec).await
    }

    /// What is to run: `None` when nobody wants it any more.
    async fn spec(&self, slot: &SlotRow, deployment: &DeploymentRow) -> Result<Option<Spec>, StoreError> {
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
                ("GREENROOM_SLOT_TOKEN".to_owned(), self.slot_token(&slot.name, slot.generation)),
            ]),
            fresh: pool.recycle_after > 0,
        };
        if let Some(id) = deployment.bot_id {
            let Some(bot) = self.0.store.bot(id).await? else { return Ok(None) };
            if bot.slot.as_ref() != Some(&slot.name) || (bot.status != Status::Reserved && !bot.status.is_running()) {
                return Ok(None);
            }
            // An agent that waits fetches its bot by itself.
            if !pool.hot {
                spec.connection = bot.connection_id.map(|id| id.to_string());
                spec.environment.extend(self.bot_data(&bot).map(|data| ("BOT_DATA".to_owned(), data.to_string())));
            }
        }
        Ok(Some(spec))
    }

    /// Keeps the lease while a provider works. `None` when another process holds it by now.
    async fn leased<T>(
        &self,
        slot: &SlotName,
        work: impl Future<Output = Result<T, ProviderError>>,
    ) -> Option<Result<T, ProviderError>> {
        let work = tokio::time::timeout(LONGEST_CALL, work);
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    return Some(done.unwrap_or_else(|_| Err(ProviderError::again("the provider does not answer"))));
                }
                () = tokio::time::sleep(RENEW) => if !self.renew(slot, None).await { return None },
            }
        }
    }

    /// Tells that this process lives. False when the deployment is no longer its own.
    async fn renew(&self, slot: &SlotName, last_error: Option<&str>) -> bool {
        let renewed = async {
            let mut tx = self.0.store.begin().await?;
            let until = lease(self.0.lifecycle.clock.now());
            let own = tx.renew_lease(slot, self.0.holder, until, last_error).await?;
            tx.commit().await?;
            Ok::<_, StoreError>(own)
        };
        renewed.await.unwrap_or_else(|error| {
            tracing::warn!(%slot, %error, "a lease could not be renewed");
            true
        })
    }
}

fn lease(now: Timestamp) -> Timestamp {
    now.saturating_add(LEASE).unwrap_or(Timestamp::MAX)
}
