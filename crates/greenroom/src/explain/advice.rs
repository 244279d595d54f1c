//! What a person can do. Only Greenroom's own words: no text of a provider or a bot gets into an advice.

use domain::{Reason, ShownStatus, SlotStatus};

use super::moment::after;
use super::waiting::Waiting;
use super::{Audience, Explainer};
use crate::store::{BotRow, SlotRow};

impl Explainer {
    pub(super) fn advice_for_bot(
        &self,
        bot: &BotRow,
        waiting: Option<&Waiting>,
        estimated_wait_ms: Option<i64>,
    ) -> Option<String> {
        let is_operator = self.audience == Audience::Operator;
        let id = bot.id;
        let admin = if is_operator { "/admin" } else { "" };
        let advice = match bot.shown() {
            ShownStatus::Queued => {
                let wait = std::time::Duration::from_millis(u64::try_from(estimated_wait_ms?).unwrap_or(0));
                let until = waiting?.until?;
                let pool = bot.pool.as_deref().unwrap_or_default();
                match (after(self.now, wait) > until, is_operator) {
                    (false, _) => return None,
                    (true, false) => {
                        "The bot will probably wait longer than its `queue_timeout_ms`. Stop another bot, \
                                      or request this one again with a longer timeout."
                            .to_owned()
                    }
                    (true, true) => format!(
                        "The bot will probably wait longer than it may. Raise `max_slots` with `PATCH \
                         /admin/pools/{pool}`, or stop another bot."
                    ),
                }
            }
            ShownStatus::Deploying if waiting?.last_error.is_some() => match is_operator {
                true => "The server tries again by itself. Run `greenroom doctor`, which checks the provider of the \
                         pool."
                    .to_owned(),
                false => "The server tries again by itself. If the error stays, tell your operator.".to_owned(),
            },
            ShownStatus::AwaitingAdmission => "Ask the host of the meeting to admit the bot.".to_owned(),
            ShownStatus::NeedsHelp if is_operator => {
                format!("Look at `GET /admin/bots/{id}/screenshot` and help the bot, or stop it.")
            }
            ShownStatus::NeedsHelp => "Help the bot in the meeting, or stop it.".to_owned(),
            ShownStatus::Failed => {
                return self.advice_after_failure(bot, &format!("GET {admin}/bots/{id}/logs"));
            }
            _ => return None,
        };
        Some(advice)
    }

    fn advice_after_failure(&self, bot: &BotRow, logs: &str) -> Option<String> {
        let reason = bot.reason.as_deref()?;
        let is = |words: &[Reason]| words.iter().any(|word| word.as_str() == reason);
        let is_operator = self.audience == Audience::Operator;
        let advice = if is(&[Reason::QueueTimeout]) {
            match is_operator {
                true => "No slot became free in time. Raise `max_slots` of the pool, or give bots a longer \
                         `queue_timeout_ms`."
                    .to_owned(),
                false => {
                    "No slot became free in time. Request the bot again, with a longer `queue_timeout_ms`.".to_owned()
                }
            }
        } else if is(&[Reason::DeployFailed, Reason::DeployTimeout]) {
            match is_operator {
                true => "The slot could not be started. Run `greenroom doctor`, which checks the provider of the pool."
                    .to_owned(),
                false => "The slot could not be started. Request the bot again. If it fails again, tell your operator."
                    .to_owned(),
            }
        } else if is(&[Reason::NoJoin]) {
            "The bot was not in the meeting in time. Ask the host to admit the bot, and request it again.".to_owned()
        } else if is(&[Reason::NoStart, Reason::Crashed, Reason::NeverJoined, Reason::HeartbeatLost]) {
            format!("Read what the bot printed last: `{logs}`.")
        } else if is(&[Reason::Interrupted]) {
            "The slot was ended from outside while the bot ran. Request the bot again.".to_owned()
        } else {
            return None;
        };
        Some(advice)
    }

    pub(super) fn advice_for_slot(&self, slot: &SlotRow) -> Option<String> {
        let (name, left) = (&slot.name, self.max_recovery_attempts.saturating_sub(slot.recovery_attempts));
        match slot.status {
            SlotStatus::Error => Some(format!(
                "To recover the slot now, call `POST /admin/slots/{name}/recover`. The server deletes it after {left} \
                 more failed attempts."
            )),
            _ => None,
        }
    }
}
