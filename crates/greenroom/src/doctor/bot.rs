//! This module describes one bot: its state and since when, what it waits for and until when, and its failures and log.

use domain::{BotId, Status};

use super::Doctor;
use super::story::{Story, after, moment};
use crate::store::{BotRow, LogLine, StoreError};

/// How many lines of a bot's log are shown.
const LOG_LINES: usize = 20;

fn shown(line: &LogLine) -> String {
    match line.at {
        Some(at) => format!("{} {}", at.strftime("%Y-%m-%dT%H:%M:%SZ"), line.text),
        None => line.text.clone(),
    }
}

impl Doctor {
    /// Describes a bot; `None` when there is no bot with this id.
    pub async fn bot(&self, id: BotId) -> Result<Option<Story>, StoreError> {
        let Some(bot) = self.store.bot(id).await? else { return Ok(None) };
        let clocks = self.store.clocks(id).await?;
        let since = clocks.map_or(bot.updated_at, |clocks| clocks.status_since);
        let reason = bot.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
        let mut story = Story::new(format!("{id} is {}{reason}, since {}", bot.shown(), moment(since, self.now)));
        story.add("meeting", format!("{} {}", bot.platform, bot.meeting_url));
        story.add("user", bot.user_id.to_string());
        match (&bot.pool, &bot.slot) {
            (_, Some(slot)) => story.add("slot", slot.to_string()),
            (Some(pool), None) => story.add("pool", pool.as_str()),
            (None, None) => {}
        }
        if bot.status.is_ended() {
            if let Some(error) = &bot.error {
                story.add("error", error.as_str());
            }
            if let Some(code) = bot.exit_code {
                story.add("exit code", code.to_string());
            }
        } else {
            story.add("waits for", self.bot_waits_for(&bot).await?);
            // Once the bot runs, problems of its pool no longer concern it.
            if let Some(pool) = bot.pool.as_ref().filter(|_| !bot.has_session) {
                for trouble in self.troubles(pool).await {
                    story.add("trouble", trouble);
                }
            }
        }
        for session in self.store.sessions(id).await? {
            let mut text = format!("{}, from {}", session.connection_id, moment(session.started_at, self.now));
            if let Some(at) = session.last_heartbeat_at {
                text = format!("{text}, last heard of {}", moment(at, self.now));
            }
            story.add("session", text);
        }
        for event in self.store.events_of_bot(id).await? {
            let to = event.to.map(|to| format!(" to {to}")).unwrap_or_default();
            let reason = event.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            story
                .add("event", format!("{} {}{to}{reason}, by {}", moment(event.at, self.now), event.kind, event.actor));
        }
        story.tell_failures(&self.store.failures_of(id).await?, self.now);
        if let Some(log) =
            self.store.bot_log(id).await?.map(|log| log.last(LOG_LINES)).filter(|log| !log.lines.is_empty())
        {
            story.add("log", log.lines.iter().map(shown).collect::<Vec<_>>().join("\n"));
        }
        Ok(Some(story))
    }

    /// Returns what a bot that has not ended waits for, and until when.
    pub(super) async fn bot_waits_for(&self, bot: &BotRow) -> Result<String, StoreError> {
        if let Some(entry) = self.store.queue().await?.into_iter().find(|entry| entry.bot_id == bot.id) {
            let until = moment(entry.timeout_at, self.now);
            return Ok(format!("a slot of {}, at position {} of the queue, until {until}", entry.pool, entry.position));
        }
        let deployments = self.store.deployments().await?;
        if let Some(at) = deployments.iter().position(|deployment| deployment.bot_id == Some(bot.id)) {
            return Ok(self.at_gate(&deployments, at));
        }
        let Some(clocks) = self.store.clocks(bot.id).await? else { return Ok("nothing".to_owned()) };
        let session =
            self.store.sessions(bot.id).await?.into_iter().find(|it| Some(it.connection_id) == bot.connection_id);
        let limits = &self.deadlines;
        Ok(match (bot.status, session) {
            (Status::Stopping, _) => {
                format!(
                    "its own end; the provider kills it at {}",
                    after(clocks.status_since, limits.stop_grace, self.now)
                )
            }
            (_, None) => match clocks.awaited_since {
                Some(since) => format!("its first word, until {}", after(since, limits.no_start, self.now)),
                None => "its slot to be started".to_owned(),
            },
            (Status::Active, Some(session)) => {
                let heard = session.last_heartbeat_at.unwrap_or(clocks.status_since).max(clocks.status_since);
                format!(
                    "the meeting's end; its next heartbeat is due by {}",
                    after(heard, limits.heartbeat_lost, self.now)
                )
            }
            (_, Some(session)) => {
                let since = if session.joined_at.is_none() { session.started_at } else { clocks.status_since };
                format!("being let into the meeting, until {}", after(since, limits.no_join, self.now))
            }
        })
    }
}
