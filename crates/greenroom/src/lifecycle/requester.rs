//! Who asks for a change of a bot: its user, or an operator for the user. The events of the bot name the actor, so the
//! user sees which of them it was.

use domain::{BotId, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{Lifecycle, LifecycleError, Stopped};
use crate::store::{Actor, BotRow, NewAuditEntry, StoreError, Tx};

#[derive(Clone, Copy, Debug)]
pub(super) enum Requester<'a> {
    User(UserId),
    /// The audit entry is written with the change. It is `None` if the caller records several changes as one.
    Operator(Option<&'a NewAuditEntry>),
}

impl Requester<'_> {
    /// A user changes only its own bots.
    pub fn may_change(self, bot: &BotRow) -> bool {
        match self {
            Requester::User(user) => bot.user_id == user,
            Requester::Operator(_) => true,
        }
    }

    pub fn actor(self) -> Actor {
        match self {
            Requester::User(_) => Actor::User,
            Requester::Operator(_) => Actor::Operator,
        }
    }

    /// Records the action in the transaction of its change.
    pub async fn record_audit(self, tx: &mut Tx, now: Timestamp) -> Result<(), StoreError> {
        match self {
            Requester::Operator(Some(entry)) => tx.record_audit(entry, now).await,
            Requester::Operator(None) | Requester::User(_) => Ok(()),
        }
    }
}

impl Lifecycle {
    /// Asks a bot of any user to leave, in any state.
    pub async fn stop_by_operator(&self, id: BotId, audit: Option<&NewAuditEntry>) -> Result<Stopped, LifecycleError> {
        self.stop_for(Requester::Operator(audit), id).await
    }

    /// Changes the configuration of a bot of any user, as [`Lifecycle::configure`] does.
    pub async fn configure_by_operator(
        &self,
        id: BotId,
        config: Map<String, Value>,
        audit: Option<&NewAuditEntry>,
    ) -> Result<BotRow, LifecycleError> {
        self.configure_for(Requester::Operator(audit), id, config).await
    }
}
