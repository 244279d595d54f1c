//! The explanation of one bot.

use domain::wait_estimate::estimated_wait_ms;
use domain::{PROBE_USER, ShownStatus};

use super::moment::{distance, length};
use super::provider::ProviderReport;
use super::waiting::Waiting;
use super::{Explainer, Explanation, first_line};
use crate::deployment::LAST_LINES;
use crate::store::{BotLog, BotRow, StoreError};

/// How many lines of a bot's log are shown.
pub const LOG_LINES: usize = 20;

impl Explainer {
    /// Explains a bot. The caller reads the log, because a running bot's log is at its provider.
    pub async fn bot(&self, bot: &BotRow, log: BotLog) -> Result<Explanation, StoreError> {
        let waiting = match bot.status.is_ended() {
            true => None,
            false => Some(self.bot_waiting(bot).await?),
        };
        let steps = self.steps(bot).await?;
        let (shown, since) = (bot.shown(), bot.status_since);
        let last_lines = log.last(LOG_LINES).lines;
        let last_lines = last_lines.iter().map(|line| self.quote(&line.text).into_owned()).collect();
        let provider = ProviderReport { last_lines, ..self.provider_of_bot(bot, waiting.as_ref()).await? };
        let estimate = match shown {
            ShownStatus::Queued => self.estimated_wait_ms(bot).await?,
            _ => None,
        };
        Ok(Explanation {
            summary: self.summary_of_bot(bot, since, waiting.as_ref(), &provider),
            status: shown.as_str(),
            since,
            advice: self.advice_for_bot(bot, waiting.as_ref(), estimate),
            waiting,
            steps,
            provider,
        })
    }

    async fn provider_of_bot(&self, bot: &BotRow, waiting: Option<&Waiting>) -> Result<ProviderReport, StoreError> {
        let Some(waiting) = waiting else {
            // The slot may have another bot by now, so only the stored failure is about this one.
            let failures = self.store.failures_of(bot.id).await?;
            let error = failures.into_iter().next().map(|failure| failure.message);
            let error = error.or_else(|| bot.error.clone());
            return Ok(ProviderReport::default().after_error(error.map(|error| self.quote(&error).into_owned())));
        };
        let report = match (&bot.pool, &bot.slot) {
            (Some(pool), Some(slot)) => {
                let known_as = self.store.slot(slot).await?.and_then(|slot| slot.provider_ref);
                self.ask_provider(pool, slot, known_as.as_deref()).await
            }
            _ => ProviderReport::default(),
        };
        Ok(report.after_error(waiting.last_error.clone()))
    }

    fn summary_of_bot(
        &self,
        bot: &BotRow,
        since: jiff::Timestamp,
        waiting: Option<&Waiting>,
        provider: &ProviderReport,
    ) -> String {
        let (status, time) = (bot.shown(), length(distance(self.now, since)));
        let Some(waiting) = waiting else {
            let reason = bot.reason.as_deref().map(|reason| format!(", {}", self.quote(reason))).unwrap_or_default();
            let error = bot.error.as_deref().or(provider.message.as_deref()).filter(|_| status == ShownStatus::Failed);
            // The last lines are shown apart.
            let error = error.map(|error| first_line(error).trim_end_matches(LAST_LINES).trim_end());
            let error = error.map(|error| format!(": {}", self.quote(error))).unwrap_or_default();
            return format!("The bot {status}{reason}, {time} ago{error}");
        };
        let error = waiting.last_error.as_deref().map(first_line);
        let error = error.map(|error| format!(". The last error of the provider: {error}")).unwrap_or_default();
        format!("The bot {} for {time}. It waits for {}{error}", doing(status), waiting.what)
    }

    /// How long a queued bot will probably wait.
    async fn estimated_wait_ms(&self, bot: &BotRow) -> Result<Option<i64>, StoreError> {
        let Some(entry) = self.store.queue_entry(bot.id).await? else { return Ok(None) };
        let pools = self.store.pools().await?;
        let pools = pools.iter().filter(|pool| pool.platform == bot.platform);
        let only_pool = bot.pool.as_deref().filter(|_| bot.user_id == PROBE_USER);
        let (requirements, expected) = (bot.parsed_requirements(), self.deadlines.expected_duration);
        Ok(Some(estimated_wait_ms(entry.position, only_pool, requirements.as_ref(), pools, expected)))
    }
}

/// What a bot has done since it has this status, in words.
fn doing(status: ShownStatus) -> &'static str {
    match status {
        ShownStatus::Scheduled => "has been scheduled",
        ShownStatus::Reserved => "has waited for its placement",
        ShownStatus::Queued => "has waited in the queue",
        ShownStatus::Deploying => "has waited for the start of its slot",
        ShownStatus::Starting => "has been joining the meeting",
        ShownStatus::AwaitingAdmission => "has waited in the lobby",
        ShownStatus::NeedsHelp => "has needed help",
        ShownStatus::Active => "has been in the meeting",
        ShownStatus::Stopping => "has been leaving",
        ShownStatus::Completed | ShownStatus::Failed => "has ended",
    }
}
