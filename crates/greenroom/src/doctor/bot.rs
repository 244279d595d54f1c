//! This module reports on one bot: its explanation, and what only an operator at the database sees.

use domain::BotId;

use super::Doctor;
use super::report::Report;
use crate::explain::bot::LOG_LINES;
use crate::explain::moment::moment;
use crate::store::{LogLine, StoreError};

fn shown(line: &LogLine) -> String {
    match line.at {
        Some(at) => format!("{} {}", at.strftime("%Y-%m-%dT%H:%M:%SZ"), line.text),
        None => line.text.clone(),
    }
}

impl Doctor {
    /// Reports on a bot; `None` when there is no bot with this id.
    pub async fn bot(&self, id: BotId) -> Result<Option<Report>, StoreError> {
        let store = &self.explainer.store;
        let Some(bot) = store.bot(id).await? else { return Ok(None) };
        let log = store.bot_log(id).await?.unwrap_or_default().last(LOG_LINES);
        let explanation = self.explainer.bot(&bot, log.clone()).await?;
        let now = self.explainer.now;
        let reason = bot.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
        let mut report =
            Report::new(format!("{id} is {}{reason}, since {}", explanation.status, moment(explanation.since, now)));
        report.add("meeting", format!("{} {}", bot.platform, bot.meeting_url));
        report.add("user", bot.user_id.to_string());
        match (&bot.pool, &bot.slot) {
            (_, Some(slot)) => report.add("slot", slot.to_string()),
            (Some(pool), None) => report.add("pool", pool.as_str()),
            (None, None) => {}
        }
        if bot.status.is_ended() {
            if let Some(error) = &bot.error {
                report.add("error", error.as_str());
            }
            if let Some(code) = bot.exit_code {
                report.add("exit code", code.to_string());
            }
        }
        if let Some(waiting) = &explanation.waiting {
            report.add("waits for", waiting.sentence(now));
            if let (Some(_), Some(message)) = (explanation.provider.status, &explanation.provider.message) {
                report.add("provider", message.as_str());
            }
            // Once the bot runs, problems of its pool no longer concern it.
            if let Some(pool) = bot.pool.as_ref().filter(|_| !bot.has_session) {
                for problem in self.problems(pool).await {
                    report.add("problem", problem);
                }
            }
        }
        if let Some(advice) = &explanation.advice {
            report.add("advice", advice.as_str());
        }
        for session in store.sessions(id).await? {
            let mut text = format!("{}, from {}", session.connection_id, moment(session.started_at, now));
            if let Some(at) = session.last_heartbeat_at {
                text = format!("{text}, last heartbeat {}", moment(at, now));
            }
            report.add("session", text);
        }
        report.add_steps(&explanation.steps, now);
        report.add_failures(&store.failures_of(id).await?, now);
        if !log.lines.is_empty() {
            report.add("log", log.lines.iter().map(shown).collect::<Vec<_>>().join("\n"));
        }
        Ok(Some(report))
    }
}
