//! What a bot or a slot waits for, and until when.

use domain::deadline::AwaitedStep;
use domain::{SlotName, SlotStatus, Status};
use jiff::Timestamp;

use super::Explainer;
use super::moment::moment;
use super::slot_deadline::{SlotClocks, recovery_at};
use crate::keepers::deployment::DELETED_AGAIN_AFTER;
use crate::store::{BotRow, GatePlace, PoolRow, SlotRow, StoreError};

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
    pub(super) async fn bot_waiting(&self, bot: &BotRow) -> Result<Waiting, StoreError> {
        let clocks = self.store.bot_clocks(&[bot.id]).await?.pop();
        let deadline = clocks.and_then(|(_, clocks)| self.deadlines.of_bot(&clocks));
        let Some((step, until)) = deadline else { return Ok(Waiting::for_ever("the start of its slot")) };
        Ok(match step {
            AwaitedStep::Slot => match self.store.queue_entry(bot.id).await? {
                Some(entry) => {
                    let what = format!("a slot of {}, at position {} of the queue", entry.pool, entry.position);
                    Waiting::until(what, until)
                }
                // It has left the queue since the clocks were read.
                None => Waiting::until("a slot", until),
            },
            AwaitedStep::Deployment => {
                let waiting = match &bot.slot {
                    Some(slot) => self.deployment_waiting(slot).await?,
                    None => None,
                };
                waiting.unwrap_or_else(|| Waiting::until("the start of its slot", until))
            }
            AwaitedStep::FirstCallback => Waiting::until("its first call", until),
            AwaitedStep::Join => {
                let what = match bot.status {
                    Status::NeedsHelp => "the help of a person",
                    Status::AwaitingAdmission => "admission to the meeting",
                    _ => "its entry into the meeting",
                };
                Waiting::until(what, until)
            }
            AwaitedStep::Heartbeat => {
                Waiting::until("the end of the meeting", until).with_words("; its next heartbeat is due by ")
            }
            AwaitedStep::End => Waiting::until("its end", until).with_words("; the provider kills it at "),
        })
    }

    /// What a slot waits for.
    pub(super) async fn slot_waiting(&self, slot: &SlotRow, pool: Option<&PoolRow>) -> Result<Waiting, StoreError> {
        if let Some(waiting) = self.deployment_waiting(&slot.name).await? {
            return Ok(waiting);
        }
        Ok(match (slot.status, slot.bot_id) {
            (SlotStatus::Idle, _) => Waiting::for_ever("a bot"),
            (SlotStatus::Creating, None) if pool.is_some_and(|pool| pool.hot) => {
                let until = SlotClocks::default().deadline(slot, pool);
                Waiting { until, ..Waiting::until("the first request of its agent", slot.status_since) }
            }
            (SlotStatus::Error, _) => self.recovery().await?,
            (SlotStatus::Draining, None) => {
                let seconds = DELETED_AGAIN_AFTER.as_secs();
                Waiting::for_ever(format!("its deletion at the provider; the server tries again every {seconds} s"))
            }
            (_, Some(id)) => match self.store.bot(id).await? {
                Some(bot) if bot.status.is_ended() => Waiting::for_ever("cleanup, because its bot has ended"),
                Some(bot) => {
                    let waiting = self.bot_waiting(&bot).await?;
                    Waiting { what: format!("its bot, which waits for {}", waiting.what), ..waiting }
                }
                None => Waiting::for_ever("nothing: the database does not have its bot"),
            },
            (_, None) => Waiting::for_ever("recovery: it is not idle, but has no bot and no deployment"),
        })
    }

    /// The next run of the keeper that recovers slots.
    async fn recovery(&self) -> Result<Waiting, StoreError> {
        let next = recovery_at(&self.store.keepers().await?);
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
