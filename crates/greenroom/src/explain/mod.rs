//! This module says why a bot or a slot is where it is, and what needs a person. `greenroom doctor` and the API both
//! use it, so that they tell the same story. It only reads.
//!
//! - this file: an explanation and its parts
//! - [`bot`], [`slot`]: the explanation of one bot, and of one slot
//! - [`waiting`]: what a bot or a slot waits for, and until when
//! - [`slot_deadline`]: when the server acts on a slot
//! - [`steps`]: what a bot did so far, and how long each step took
//! - [`provider`]: what the provider says about a slot
//! - [`advice`]: what a person can do
//! - [`mod@redact`]: texts without the operator's secrets, for users
//! - [`attention`]: everything that needs a person now
//! - [`moment`]: times as texts

pub mod advice;
pub mod attention;
pub mod bot;
pub mod moment;
pub mod provider;
pub mod redact;
pub mod slot;
pub mod slot_deadline;
pub mod steps;
pub mod waiting;

use std::borrow::Cow;
use std::time::Duration;

use domain::Deadlines;
use jiff::Timestamp;

use crate::providers::Providers;
use crate::store::Store;
use provider::ProviderReport;
use redact::redact;
use steps::Step;
use waiting::Waiting;

/// Who reads an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The user of the bot, who must not see the operator's hosts, paths, addresses and tokens.
    User,
    /// An operator, who sees everything.
    Operator,
}

/// Everything that an explanation is made from.
#[derive(Debug)]
pub struct Explainer {
    pub store: Store,
    pub providers: Providers,
    pub deadlines: Deadlines,
    /// The attempt to recover a slot at which the slot is deleted.
    pub max_recovery_attempts: i64,
    /// How long the provider may take to answer.
    pub provider_timeout: Duration,
    pub audience: Audience,
    pub now: Timestamp,
}

/// Why a bot or a slot is where it is.
#[derive(Debug)]
pub struct Explanation {
    /// The whole story in one or two sentences.
    pub summary: String,
    pub status: &'static str,
    pub since: Timestamp,
    /// `None` after the end.
    pub waiting: Option<Waiting>,
    /// Oldest first.
    pub steps: Vec<Step>,
    pub provider: ProviderReport,
    pub advice: Option<String>,
}

impl Explainer {
    /// A text that Greenroom did not write, as the reader may see it.
    fn quote<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.audience {
            Audience::User => Cow::Owned(redact(text)),
            Audience::Operator => Cow::Borrowed(text),
        }
    }
}

/// The first line of a text. The rest of an error is usually a log.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim()
}
