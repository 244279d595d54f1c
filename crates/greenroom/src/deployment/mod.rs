//! From an assigned slot to a running bot and back: the gate, the start, and the clearing after the bot's end. Every
//! call to a provider stands behind a row that says what is intended, so that after a crash at any line another look
//! at the rows finishes it.
//!
//! - this file: what wakes it
//! - [`start`]: through the gate to a running slot
//! - [`clear`]: from a bot's end to a free slot
//! - [`alone`]: one at a time at a slot
//! - [`look`]: the safety net
//! - [`alone`]: one at a time at a slot
//! - [`image`]: one puller per image and host

mod alone;
mod clear;
pub mod image;
mod look;
mod start;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::lifecycle::Overdue;
use domain::{BotId, Deadlines, SlotName};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::lifecycle::ends::Ending;
use crate::lifecycle::tokens::{Claim, SlotClaim};
use crate::lifecycle::{Lifecycle, LifecycleError};
use crate::placement::{Placement, SlotNews};
use crate::providers::{Provider, Providers};
use crate::store::{BotRow, PoolRow, Store, StoreError};

/// A provider that does not answer is an error like another.
const LONGEST_STOP: Duration = Duration::from_mins(2);
const LONGEST_DESCRIBE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Deployment(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    lifecycle: Lifecycle,
    placement: Placement,
    providers: Providers,
    deadlines: Deadlines,
    max_concurrent: i64,
    public_url: String,
    /// Names this process as a holder of leases.
    holder: Uuid,
    /// The slots that this process is clearing, so that no two wakes do it at once; other processes see the lock.
    clearing: Mutex<HashSet<SlotName>>,
    woken: Notify,
    ending: CancellationToken,
}

/// What a deployment needs from its surroundings.
#[derive(Debug)]
pub struct Parts {
    pub store: Store,
    pub lifecycle: Lifecycle,
    pub placement: Placement,
    pub providers: Providers,
    pub deadlines: Deadlines,
    pub max_concurrent: u32,
    pub public_url: String,
    pub ending: CancellationToken,
}

impl Deployment {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            store: parts.store,
            lifecycle: parts.lifecycle,
            placement: parts.placement,
            providers: parts.providers,
            deadlines: parts.deadlines,
            max_concurrent: parts.max_concurrent.into(),
            public_url: parts.public_url,
            holder: Uuid::new_v4(),
            clearing: Mutex::default(),
            woken: Notify::new(),
            ending: parts.ending,
        }))
    }

    /// Works until the end: on everything that asks to pass the gate and every end of a bot at once, and on what is
    /// overdue or was left behind once in a poll interval.
    pub async fn work(self) {
        tokio::join!(self.serve(), self.keep_looking());
    }

    async fn serve(&self) {
        loop {
            tokio::select! {
                () = self.0.ending.cancelled() => return,
                () = self.0.placement.asked() => self.pass_gate().await,
                ended = self.0.lifecycle.to_clear.take() => ended.into_iter().for_each(|bot| self.clear_after(bot)),
            }
        }
    }

    /// Shows at the providers what the slots are doing.
    pub async fn describe(self) {
        loop {
            let described = tokio::select! {
                () = self.0.ending.cancelled() => return,
                described = self.0.placement.redescribed() => described,
            };
            for described in described {
                if let Some(provider) = self.provider(&described.pool) {
                    let describe = provider.describe(&described.slot, &described.description);
                    // Best effort: the next change is described anyway.
                    let _ = tokio::time::timeout(LONGEST_DESCRIBE, describe).await;
                }
            }
        }
    }

    /// How many deployments may be under way at once.
    pub fn max_concurrent(&self) -> i64 {
        self.0.max_concurrent
    }

    /// Looks at everything soon, instead of at the next poll.
    pub fn wake(&self) {
        self.0.woken.notify_one();
    }

    /// Ends a bot that waited too long or could not be deployed. False when it has gone on meanwhile.
    async fn give_up(&self, bot: BotId, overdue: Overdue, words: Option<String>) -> Result<bool, StoreError> {
        match self.0.placement.end(Ending::GivenUp { bot, overdue, words }).await {
            Ok(status) => Ok(status.is_ended()),
            Err(LifecycleError::Store(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn provider(&self, pool: &str) -> Option<Arc<dyn Provider>> {
        self.0.providers.get(pool).cloned()
    }

    async fn pool(&self, name: &str) -> Result<Option<PoolRow>, StoreError> {
        Ok(self.0.store.pools().await?.into_iter().find(|pool| pool.name == name))
    }

    /// A bot's data, as it is handed to whatever runs it.
    pub fn bot_data(&self, bot: &BotRow) -> Option<Value> {
        let connection = bot.connection_id?;
        let token = self.0.lifecycle.tokens.make(Claim { bot: bot.id, connection });
        Some(bot_data(bot, &token, &self.0.public_url, &self.0.deadlines))
    }

    fn slot_token(&self, slot: &SlotName, generation: i64) -> String {
        self.0.lifecycle.tokens.make_slot(&SlotClaim { slot: slot.clone(), generation })
    }

    async fn broken(&self, slot: &SlotName, bot: Option<BotId>, words: &str) {
        tracing::warn!(%slot, error = words, "a slot went to error");
        let news = SlotNews::Broken { bot, words: words.to_owned() };
        if let Err(error) = self.0.placement.tell(slot.clone(), news).await {
            tracing::warn!(%slot, %error, "a slot's error could not be kept");
        }
    }
}

/// A bot's data: all that whatever runs it needs.
pub fn bot_data(bot: &BotRow, token: &str, public_url: &str, deadlines: &Deadlines) -> Value {
    let connection = bot.connection_id.map(|id| id.to_string()).unwrap_or_default();
    json!({
        "bot_id": bot.id,
        "connection_id": connection,
        "platform": bot.platform,
        "native_meeting_id": bot.native_meeting_id,
        "meeting_url": bot.meeting_url,
        "bot_display_name": bot.bot_display_name,
        "config": bot.config,
        "callback_url": format!("{public_url}/callback"),
        "token": token,
        "heartbeat_interval_ms": u64::try_from(deadlines.heartbeat_interval.as_millis()).unwrap_or(u64::MAX),
        "commands": {"redis_url": null, "channel": format!("bot_commands:{connection}")},
    })
}
