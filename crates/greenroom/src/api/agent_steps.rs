//! The steps of an agent, for the trace of its bot. The agent sends them with the bot's end, as the milliseconds that
//! have passed since each step, so that its clock need not be right.

use std::collections::VecDeque;
use std::sync::{LazyLock, Mutex, PoisonError};

use axum::http::HeaderMap;
use domain::BotId;
use jiff::{SignedDuration, Timestamp};

use crate::traces::{self, Span};

const STEPS: &str = "greenroom-agent-steps";
/// Longer than any bot lives.
const LONGEST_AGO_MS: i64 = 31 * 24 * 3_600_000;

/// Of how many bots the server remembers that they have reported.
const REMEMBERED: usize = 4_096;

/// The bots that reported last. A bot that repeats its report with other times must not fill the queue of spans.
static REPORTED: LazyLock<Mutex<VecDeque<BotId>>> = LazyLock::new(Mutex::default);

/// Adds the steps to the trace: how long the agent had the bot, how long the command took to start, and to say its
/// first line.
pub fn trace(headers: &HeaderMap, bot: BotId, now: Timestamp) {
    let Some(text) = headers.get(STEPS).filter(|_| traces::is_on()).and_then(|value| value.to_str().ok()) else {
        return;
    };
    let at = |step| time_of(text, step, now);
    let Some(assigned) = at("assigned").filter(|_| is_first_report(bot)) else { return };
    let agent = Span::step(bot, "agent", assigned, at("exited").unwrap_or(now));
    let parent = agent.id;
    traces::record(agent);
    let Some(command) = at("command") else { return };
    traces::record(Span::step(bot, "command start", assigned, command).within(parent));
    if let Some(first_line) = at("first_line") {
        traces::record(Span::step(bot, "first line", command, first_line).within(parent));
    }
}

fn is_first_report(bot: BotId) -> bool {
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.contains(&bot) {
        return false;
    }
    reported.truncate(REMEMBERED - 1);
    reported.push_front(bot);
    true
}

fn time_of(text: &str, step: &str, now: Timestamp) -> Option<Timestamp> {
    let mut pairs = text.split(',').filter_map(|pair| pair.trim().split_once('='));
    let ago: i64 = pairs.find(|(name, _)| *name == step)?.1.parse().ok()?;
    let ago = Some(ago).filter(|ago| (0..=LONGEST_AGO_MS).contains(ago))?;
    now.checked_sub(SignedDuration::from_millis(ago)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bot_reports_once_and_only_the_last_ones_are_remembered() {
        let bots: Vec<BotId> = (0..=REMEMBERED as u128).map(|id| BotId(uuid::Uuid::from_u128(id))).collect();
        assert!(bots.iter().all(|bot| is_first_report(*bot)));
        assert!(bots[1..].iter().all(|bot| !is_first_report(*bot)));
        assert!(REPORTED.lock().unwrap_or_else(PoisonError::into_inner).len() <= REMEMBERED);
        assert!(is_first_report(bots[0]), "it was forgotten");
    }

    #[test]
    fn a_step_is_as_long_ago_as_the_agent_says_and_nonsense_is_left_out() {
        let now = Timestamp::UNIX_EPOCH;
        let ago = |text, step| time_of(text, step, now).map(|at| -at.as_millisecond());
        assert_eq!(ago("assigned=1500, command=20", "assigned"), Some(1_500));
        assert_eq!(ago("assigned=1500, command=20", "command"), Some(20));
        for text in
            ["", "assigned", "assigned=", "assigned=-1", "assigned=x", "assigned=99999999999999999999", "command=1"]
        {
            assert_eq!(ago(text, "assigned"), None, "{text}");
        }
    }
}
