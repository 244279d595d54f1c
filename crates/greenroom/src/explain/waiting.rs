//! What a bot or a slot waits for, and until when.

use domain::{SlotName, SlotStatus, Status};
use jiff::Timestamp;

use super::Explainer;
use super::moment::{after, moment};
use crate::keepers::deployment::{DELETED_AGAIN_AFTER, WAITS_WITHIN};
use crate::store::{BotRow, Clocks, GatePlace, PoolRow, SessionRow, SlotRow, StoreError};

/// What something waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub what: String,
    /// When the wait ends at the latest. `None` if it may last.
    pub until: Option<Timestamp>,
    /// The words before the time in a sentence.
    until_words: &'static str,
    /// The provider's last error, while the server tries again.
    pub last_error: Option<String>,
}

impl Waiting {
    fn for_ever(what: impl Into<String>) -> Self {
        Self { what: what.into(), until: None, until_words: "", last_error: None }
    }

    fn until(what: impl Into<String>, until: Timestamp) -> Self {
        Self { what: what.into(), until: Some(until), until_words: ", until ", last_error: None }
    }

    fn with_words(self, until_words: &'static str) -> Self {
        Self { until_words, ..self }
    }

    /// The same as one sentence, for an operator.
    pub fn sentence(&self, now: Timestamp) -> String {
        let until = self.until.map(|until| format!("{}{}", self.until_words, moment(until, now)));
        let error = self.last_error.as_ref().map(|error| format!("; last error: {error}"));
        format!("{}{}{}", self.what, until.unwrap_or_default(), error.unwrap_or_default())
    }
}

impl Explainer {
    /// What a bot that has not ended waits for.
    pub(super) async fn bot_waiting(&self, bot: &BotRow, clocks: Option<Clocks>) -> Result<Waiting, StoreError> {
        if let Some(entry) = self.store.queue_entry(bot.id).await? {
            let what = format!("a slot of {}, at position {} of the queue", entry.pool, entry.position);
            return Ok(Waiting::until(what, entry.timeout_at));
        }
        if let Some(slot) = &bot.slot
            && let Some(waiting) = self.deployment_waiting(slot).await?
        {
            return Ok(waiting);
        }
        let Some(clocks) = clocks else { return Ok(Waiting::for_ever("nothing")) };
        let sessions = self.store.sessions(bot.id).await?;
        let session = sessions.into_iter().find(|session| Some(session.connection_id) == bot.connection_id);
        Ok(self.running_bot_waiting(bot.status, clocks, session.as_ref()))
    }

    /// What a bot waits for whose slot is started, or which needs none.
    fn running_bot_waiting(&self, status: Status, clocks: Clocks, session: Option<&SessionRow>) -> Waiting {
        let limits = &self.deadlines;
        match (status, session) {
            (Status::Stopping, _) => {
                let killed_at = after(clocks.status_since, limits.stop_grace);
                Waiting::until("its end", killed_at).with_words("; the provider kills it at ")
            }
            (_, None) => match clocks.awaited_since {
                Some(since) => Waiting::until("its first call", after(since, limits.no_start)),
                None => Waiting::for_ever("the start of its slot"),
            },
            (Status::Active, Some(session)) => {
                let heard = session.last_heartbeat_at.unwrap_or(clocks.status_since).max(clocks.status_since);
                Waiting::until("the end of the meeting", after(heard, limits.heartbeat_lost))
                    .with_words("; its next heartbeat is due by ")
            }
            (status, Some(session)) => {
                let since = if session.joined_at.is_none() { session.started_at } else { clocks.status_since };
                let what = match status {
                    Status::NeedsHelp => "the help of a person",
                    Status::AwaitingAdmission => "admission to the meeting",
                    _ => "its entry into the meeting",
                };
                Waiting::until(what, after(since, limits.no_join))
            }
        }
    }

    /// What a slot waits for.
    pub(super) async fn slot_waiting(&self, slot: &SlotRow, pool: Option<&PoolRow>) -> Result<Waiting, StoreError> {
        if let Some(waiting) = self.deployment_waiting(&slot.name).await? {
            return Ok(waiting);
        }
        Ok(match (slot.status, slot.bot_id) {
            (SlotStatus::Idle, _) => Waiting::for_ever("a bot"),
            (SlotStatus::Creating, None) if pool.is_some_and(|pool| pool.hot) => {
                Waiting::until("the first request of its agent", after(slot.status_since, WAITS_WITHIN))
            }
            (SlotStatus::Error, _) => self.recovery().await?,
            (SlotStatus::Draining, None) => {
                let seconds = DELETED_AGAIN_AFTER.as_secs();
                Waiting::for_ever(format!("its deletion at the provider; the server tries again every {seconds} s"))
            }
            (_, Some(id)) => match self.store.bot(id).await? {
                Some(bot) if bot.status.is_ended() => Waiting::for_ever("cleanup, because its bot has ended"),
                Some(bot) => {
                    let clocks = self.store.clocks(id).await?;
                    let waiting = self.bot_waiting(&bot, clocks).await?;
                    Waiting { what: format!("its bot, which waits for {}", waiting.what), ..waiting }
                }
                None => Waiting::for_ever("nothing: the database does not have its bot"),
            },
            (_, None) => Waiting::for_ever("recovery: it is not idle, but has no bot and no deployment"),
        })
    }

    /// The next run of the keeper that recovers slots.
    async fn recovery(&self) -> Result<Waiting, StoreError> {
        let keepers = self.store.keepers().await?;
        let next = keepers.into_iter().find(|keeper| keeper.name == "recovery").and_then(|keeper| keeper.next_run);
        Ok(match next {
            Some(next) => Waiting::until("recovery", next).with_words(", "),
            None => Waiting::for_ever("recovery, as soon as a replica leads the keepers"),
        })
    }

    /// What the deployment of a slot waits for, if it has one.
    async fn deployment_waiting(&self, slot: &SlotName) -> Result<Option<Waiting>, StoreError> {
        let Some(GatePlace { deployment, active, before }) = self.store.gate_place(slot).await? else {
            return Ok(None);
        };
        let what = if deployment.active {
            "the provider, which starts its slot".to_owned()
        } else {
            format!("the deploy gate; deployments in progress: {active}, waiting before it: {before}")
        };
        let last_error = deployment.last_error.map(|error| self.quote(&error).into_owned());
        Ok(Some(Waiting { last_error, ..Waiting::until(what, deployment.timeout_at) }))
    }
}
