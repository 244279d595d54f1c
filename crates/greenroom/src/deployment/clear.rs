//! This module turns the slot of an ended bot into a free slot. It stops the process in the slot, removes its
//! leftovers, and gives the slot to the next bot in the queue. The bot's end never waits for this work.

use std::time::Duration;

use domain::slot::NO_AGENT;
use domain::{Backoff, BotId, Reason, SlotName, SlotStatus, Status};

use super::Deployment;
use crate::placement::SlotEvent;
use crate::store::{SlotRow, StoreError};
use crate::traces::{self, Span};

/// How long to wait before trying again while another task holds the slot's lock.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
const NO_CALLBACK: &str = "the slot was started, but its bot never called back";

impl Deployment {
    /// Clears the slot of a bot that has ended. It retries while another task holds the slot's lock, because that task
    /// may have read the slot before the bot ended.
    pub(super) fn clear_after(&self, bot: BotId) {
        let this = self.clone();
        tokio::spawn(async move {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            loop {
                match this.0.store.slot_of(bot).await {
                    Ok(Some(slot)) => {
                        if this.clear(slot).await {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(error) => {
                        tracing::warn!(%bot, %error, "slot not cleared; the keeper retries");
                        return;
                    }
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
        });
    }

    /// Clears the slot. False when another task already works on the slot.
    pub(crate) async fn clear(&self, slot: SlotRow) -> bool {
        let Some(bot) = slot.bot_id else { return true };
        let begun = self.0.clock.now();
        let cleared = self.with_slot_locked(&slot.name, |slot| self.try_clear(slot, bot)).await;
        if let Ok(Some(())) = cleared
            && traces::is_on()
        {
            let span = Span::step(bot, "clearing", begun, self.0.clock.now());
            traces::record(span.with("greenroom.slot", slot.name.as_str()));
        }
        match cleared {
            Ok(cleared) => cleared.is_some(),
            Err(error) => {
                tracing::warn!(slot = %slot.name, %error, "slot not cleared; the keeper retries");
                true
            }
        }
    }

    async fn try_clear(&self, slot: SlotRow, bot: BotId) -> Result<(), StoreError> {
        if slot.bot_id != Some(bot) {
            return Ok(());
        }
        // The task that starts the slot sees the bot's end, and clears the slot afterwards.
        if self.0.store.is_deploying(&slot.name).await? {
            return Ok(());
        }
        let Some(pool) = self.pool(&slot.pool).await? else { return Ok(()) };
        let Some(provider) = self.provider(&slot.pool) else {
            // Another replica's configuration has this pool: that replica clears the slot.
            if pool.fill_order.is_some() {
                return Ok(());
            }
            self.broken(&slot.name, Some(bot), &not_configured(&slot.pool)).await;
            return Ok(());
        };
        // The slot stays unchanged. It is cleared as soon as its provider answers again.
        if self.is_unavailable(&slot.pool) {
            return Ok(());
        }
        // Stopping the slot may delete its log.
        self.keep_log(&slot, &pool, bot).await;
        let ended = self.0.store.bot(bot).await?.filter(|bot| bot.status == Status::Failed);
        if let Some(ended) = &ended {
            self.append_last_lines(ended).await?;
        }
        let reason = ended.and_then(|bot| bot.reason);
        let never_heard = reason.as_deref() == Some(Reason::NoStart.as_str());
        if let Some(reason) = reason {
            let message = if never_heard { NO_CALLBACK.to_owned() } else { format!("its bot failed: {reason}") };
            if !self.keep_failure_with_log(&slot, Some(bot), &message).await {
                return Ok(());
            }
        }
        let stopped = self.stopped(&slot.name, &*provider, pool.recycle_after > 0).await;
        let event = match stopped {
            Err(error) if self.failed_by_outage(&slot.pool, &*provider, &error).await => {
                tracing::info!(slot = %slot.name, error = error.message, "slot clearing postponed");
                return Ok(());
            }
            Err(error) => SlotEvent::Broken { bot: Some(bot), message: error.message },
            Ok(()) if never_heard => SlotEvent::Broken { bot: Some(bot), message: NO_CALLBACK.to_owned() },
            Ok(()) => SlotEvent::Cleared { bot },
        };
        if let SlotEvent::Broken { message, .. } = &event {
            tracing::warn!(slot = %slot.name, error = message, "slot failed");
        }
        self.0.placement.report(slot.name.clone(), event).await.map(drop)
    }

    /// Gives the slot no more bots, and deletes it as soon as it has none. Returns the slot as it is afterwards, or
    /// `None` when there is no such slot.
    pub async fn drain(&self, slot: &SlotName) -> Result<Option<SlotRow>, StoreError> {
        let store = self.0.store.for_users();
        let Some(found) = store.slot(slot).await? else { return Ok(None) };
        self.0.placement.report(slot.clone(), SlotEvent::Drain).await?;
        let slot = store.slot(slot).await?.unwrap_or(found);
        if slot.bot_id.is_none() {
            let (this, slot) = (self.clone(), slot.clone());
            tokio::spawn(async move { this.remove(slot).await });
        }
        Ok(Some(slot))
    }

    /// Deletes a drained slot: first at the provider, then its row. A hot slot that is only not needed is stopped
    /// instead. False when nothing changed.
    pub(crate) async fn remove(&self, slot: SlotRow) -> bool {
        let removed = self.with_slot_locked(&slot.name, |slot| async move {
            // A slot that is being started is deleted by a later run of the keeper.
            let goes = slot.status == SlotStatus::Draining && slot.bot_id.is_none();
            if !goes || self.0.store.is_at_gate(&slot.name).await? {
                return Ok(false);
            }
            if slot.stopped { self.try_stop(&slot).await } else { self.try_remove(&slot).await }
        });
        match removed.await {
            Ok(removed) => removed.unwrap_or(false),
            Err(error) => {
                tracing::warn!(slot = %slot.name, %error, "slot not deleted; the keeper retries");
                false
            }
        }
    }

    /// Deletes a slot that takes no more bots and has none. False when the provider failed: its message is kept, and a
    /// keeper tries again later.
    pub(super) async fn try_remove(&self, slot: &SlotRow) -> Result<bool, StoreError> {
        let Some(provider) = self.provider(&slot.pool) else {
            self.failed_since(slot, not_configured(&slot.pool)).await?;
            return Ok(false);
        };
        if self.is_unavailable(&slot.pool) {
            return Ok(false);
        }
        if let Err(error) = self.deleted(&slot.name, &*provider).await {
            if self.failed_by_outage(&slot.pool, &*provider, &error).await {
                tracing::info!(slot = %slot.name, error = error.message, "slot deletion postponed");
            } else {
                self.failed_since(slot, error.message).await?;
            }
            return Ok(false);
        }
        self.0.placement.report(slot.name.clone(), SlotEvent::Gone).await?;
        Ok(true)
    }

    /// Stops a hot slot that is not needed. False when the provider failed: a keeper tries again later.
    async fn try_stop(&self, slot: &SlotRow) -> Result<bool, StoreError> {
        let (Some(provider), Some(pool)) = (self.provider(&slot.pool), self.pool(&slot.pool).await?) else {
            return Ok(false);
        };
        if self.is_unavailable(&slot.pool) {
            return Ok(false);
        }
        if let Err(error) = self.stopped(&slot.name, &*provider, pool.recycle_after > 0).await {
            if !self.failed_by_outage(&slot.pool, &*provider, &error).await {
                self.failed_since(slot, error.message).await?;
            }
            return Ok(false);
        }
        let is_stopped = self.0.placement.report(slot.name.clone(), SlotEvent::Stopped).await?;
        if is_stopped {
            tracing::info!(slot = %slot.name, "idle slot stopped");
        }
        Ok(is_stopped)
    }

    /// Sets a hot slot to error because its agent has not begun to wait. False when the slot has changed in the
    /// meantime.
    pub(crate) async fn fail_without_agent(&self, slot: &SlotRow) -> bool {
        let reported = self.failed_since(slot, NO_AGENT.to_owned()).await;
        reported.unwrap_or_else(|error| {
            tracing::warn!(slot = %slot.name, %error, "slot failure not stored; the keeper retries");
            false
        })
    }

    /// Sets a slot without a bot to error, if the slot has not changed. It reads the slot's log first, because a
    /// recovery deletes it.
    pub(crate) async fn failed_since(&self, slot: &SlotRow, message: String) -> Result<bool, StoreError> {
        let is_kept = self.is_kept(slot, None, &message).await;
        let log = if is_kept { None } else { self.slot_log(slot).await.ok().flatten() };
        let event = SlotEvent::Failed { since: slot.status_since, message: message.clone() };
        if !self.0.placement.report(slot.name.clone(), event).await? {
            return Ok(false);
        }
        tracing::warn!(slot = %slot.name, error = message, "slot failed");
        if !is_kept {
            self.write_failure(slot, None, &message, log).await;
        }
        Ok(true)
    }
}

pub(super) fn not_configured(pool: &str) -> String {
    format!("the pool {pool} is no longer configured, so it has no provider")
}
