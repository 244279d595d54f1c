//! This module is the only writer of a bot's status. It handles the bot's callbacks and the requests of users,
//! operators and deadlines. Each change is one transaction: it locks the bot, decides by the table in
//! `domain::lifecycle`, and writes the event together with the change.
//!
//! - this file: changes by users, operators and deadlines
//! - [`requester`]: who asks for a change, and changes by operators for users
//! - [`callbacks`]: calls of a bot
//! - [`logs`]: the log that a bot's agent sends
//! - [`bot_data`]: the deletion of a bot's data
//! - [`screenshots`]: the last screenshot that a bot sends
//! - [`ends`]: what may end a bot
//! - [`commands`]: commands that a bot has not acknowledged
//! - [`tokens`]: tokens of bots, slots and runners
//! - [`heartbeats`]: heartbeats, collected and written together
//! - [`running_bots`]: the status and commands of running bots, in memory
//! - [`wait_for_status`]: waiting until a bot has a status
//! - [`feed`]: all events, sent to the listeners

mod bot_data;
pub mod callbacks;
pub mod commands;
pub mod ends;
pub mod feed;
pub mod heartbeats;
pub mod logs;
mod requester;
pub mod running_bots;
pub mod screenshots;
pub mod tokens;
pub mod wait_for_status;

use domain::lifecycle::{Overdue, Trigger, Verdict, decide};
use domain::{Action, BotId, CommandId, ConnectionId, Fault, Reason, ShownStatus, SlotName, Status, UserId};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::bus::Bus;
use crate::clock::Clock;
use crate::context::Context;
use crate::random::{NoRandomness, Random};
use crate::signals::Signals;
use crate::store::{
    Actor, BotRow, Change, Changed, CommandRow, Kind, NewAuditEntry, NewEvent, SessionRow, Store, StoreError, Tx,
};
use feed::Feed;
use heartbeats::Heartbeats;
use requester::Requester;
use tokens::{Claim, Tokens};

/// How often a bot may change its slot before the journal entry names everything instead of one slot.
const SLOT_CHANGES: u32 = 5;

#[derive(Clone, Debug)]
pub struct Lifecycle {
    store: Store,
    clock: Clock,
    random: Random,
    pub(crate) tokens: Tokens,
    pub(crate) heartbeats: Heartbeats,
    pub(crate) feed: Feed,
    signals: Signals,
    pub(crate) bus: Bus,
}

#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The bot does not exist, or belongs to another user: both get the same answer.
    #[error("there is no such bot")]
    NotFound,
    #[error("the token is not a valid bot token")]
    Unauthorized,
    #[error("this connection is not the bot's current connection")]
    StaleConnection,
    #[error("this is not possible while the bot is {0}")]
    InvalidTransition(Status),
    #[error("the bot has ended: {status}, {}", reason.as_deref().unwrap_or("without a reason"))]
    BotEnded { status: Status, reason: Option<String> },
    #[error("the server is stopping")]
    Stopping,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Random(#[from] NoRandomness),
}

/// The result of a request to stop a bot.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub bot: BotRow,
    /// The bot had already ended.
    pub had_ended: bool,
    /// This request changed something: the bot had neither ended nor been asked to leave.
    pub has_changed: bool,
}

impl Stopped {
    /// A bot for which nothing is left to do.
    fn unchanged(bot: BotRow) -> Self {
        Self { had_ended: bot.status.is_ended(), has_changed: false, bot }
    }
}

/// A bot's data, for the process that runs the bot.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub bot: BotRow,
    pub connection_id: ConnectionId,
    pub token: String,
}

impl Lifecycle {
    pub fn new(context: Context, signals: Signals, tokens: Tokens) -> Self {
        let Context { store, clock, random } = context;
        let (heartbeats, feed, bus) = Default::default();
        Self { store, clock, random, tokens, heartbeats, feed, signals, bus }
    }

    /// Uses another bus than the one inside the process.
    pub fn with_bus(self, bus: Bus) -> Self {
        Self { bus, ..self }
    }

    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Returns a bot's sessions, including heartbeats that are not stored yet.
    pub async fn sessions(&self, bot: BotId) -> Result<Vec<SessionRow>, StoreError> {
        let mut sessions = self.store.for_users().sessions(bot).await?;
        for session in &mut sessions {
            let unwritten = self.heartbeats.unwritten(session.connection_id);
            session.last_heartbeat_at = session.last_heartbeat_at.max(unwritten);
        }
        Ok(sessions)
    }

    /// Asks a bot of the user to leave, in any state.
    pub async fn stop(&self, user: UserId, id: BotId) -> Result<Stopped, LifecycleError> {
        self.stop_for(Requester::User(user), id).await
    }

    async fn stop_for(&self, requester: Requester<'_>, id: BotId) -> Result<Stopped, LifecycleError> {
        let store = self.store.for_users();
        let bot = store.bot(id).await?.filter(|bot| requester.may_change(bot)).ok_or(LifecycleError::NotFound)?;
        if bot.status.is_ended() || bot.stop_asked_at.is_some() {
            return Ok(Stopped::unchanged(bot));
        }
        let now = self.clock.now();
        let (mut tx, bot) = hold_with_slot(&store, id, bot.slot, now).await?.ok_or(LifecycleError::NotFound)?;
        if bot.status.is_ended() || bot.stop_asked_at.is_some() {
            return Ok(Stopped::unchanged(bot));
        }
        tx.note_stop_asked(id, now).await?;
        tx.leave_queue(&[id]).await?;
        // For a bot that waits at the gate, nothing has been started.
        let was_pending = bot.status == Status::Reserved && !tx.cancel_pending_deployments(&[id]).await?.is_empty();
        let assigned = bot.connection_id.is_some() && !was_pending;
        let committed = match decide(&bot.lifecycle_state(), &Trigger::StopAsked { assigned }) {
            Verdict::Move { to, reason } => {
                Some(self.move_bot(&mut tx, &bot, Change::to(to, reason), requester.actor(), now).await?)
            }
            // The bot is already leaving.
            Verdict::Hold | Verdict::Refuse | Verdict::Ended => None,
        };
        let command = match assigned {
            true => Some(self.send(&mut tx, &bot, Action::Leave, Value::Null, requester.actor(), now).await?),
            false => None,
        };
        requester.record_audit(&mut tx, now).await?;
        let bot = tx.bot(id).await?.ok_or(LifecycleError::NotFound)?;
        tx.commit().await?;
        self.publish(&bot, command);
        if let Some(committed) = committed {
            self.report_committed(committed);
        }
        Ok(Stopped { bot, had_ended: false, has_changed: true })
    }

    /// Changes the configuration of the user's bot in the store. A bot that has a connection also gets a `reconfigure`
    /// command.
    pub async fn configure(
        &self,
        user: UserId,
        id: BotId,
        config: Map<String, Value>,
    ) -> Result<BotRow, LifecycleError> {
        self.configure_for(Requester::User(user), id, config).await
    }

    async fn configure_for(
        &self,
        requester: Requester<'_>,
        id: BotId,
        config: Map<String, Value>,
    ) -> Result<BotRow, LifecycleError> {
        let mut tx = self.store.for_users().begin().await?;
        let held = tx.hold_bot(id).await?;
        let mut bot = held.filter(|bot| requester.may_change(bot)).ok_or(LifecycleError::NotFound)?;
        refuse_ended(&bot)?;
        let now = self.clock.now();
        tx.configure_bot(id, &config, now).await?;
        let mut command = None;
        if bot.connection_id.is_some() {
            tx.supersede(id, Action::Reconfigure).await?;
            let payload = Value::Object(config.clone());
            command = Some(self.send(&mut tx, &bot, Action::Reconfigure, payload, requester.actor(), now).await?);
        }
        requester.record_audit(&mut tx, now).await?;
        tx.commit().await?;
        self.publish(&bot, command);
        bot.config = config;
        bot.updated_at = now;
        Ok(bot)
    }

    /// Assigns a bot to a process that the operator runs. Each call creates a new connection and fences the older one.
    pub async fn assign(&self, id: BotId, audit: Option<&NewAuditEntry>) -> Result<Assignment, LifecycleError> {
        let slot = self.store.bot(id).await?.ok_or(LifecycleError::NotFound)?.slot;
        let now = self.clock.now();
        let (mut tx, mut bot) = hold_with_slot(&self.store, id, slot, now).await?.ok_or(LifecycleError::NotFound)?;
        refuse_ended(&bot)?;
        if bot.status == Status::Stopping {
            return Err(LifecycleError::InvalidTransition(bot.status));
        }
        let connection_id = ConnectionId(self.random.id(now)?);
        tx.connect_bot(id, connection_id, now).await?;
        if let Some(slot) = &bot.slot {
            tx.await_clearing(slot).await?;
        }
        // The server no longer places or starts this bot. If the bot had a slot, that slot is cleared.
        tx.leave_queue(&[id]).await?;
        tx.cancel_pending_deployments(&[id]).await?;
        // A bot that has started keeps its status.
        let shown = (bot.status == Status::Reserved).then(|| bot.shown());
        let event = NewEvent {
            bot_id: id,
            user_id: bot.user_id,
            kind: Kind::Assigned,
            from: shown,
            to: shown.map(|_| ShownStatus::Deploying),
            reason: None,
            actor: Actor::Operator,
            start_kind: None,
        };
        tx.record(&event, now).await?;
        Requester::Operator(audit).record_audit(&mut tx, now).await?;
        tx.commit().await?;
        tracing::info!(bot = %id, connection = %connection_id, "bot assigned");
        if bot.slot.take().is_some() {
            self.signals.clear(id);
        }
        self.feed.running_bots().forget(id);
        bot.connection_id = Some(connection_id);
        bot.has_session = false;
        bot.updated_at = now;
        let token = self.tokens.make(Claim { bot: id, connection: connection_id });
        Ok(Assignment { bot, connection_id, token })
    }

    /// Ends a bot whose deadline passed, if it is still overdue once the bot is locked. True when it was.
    pub async fn end_overdue(&self, id: BotId, overdue: Overdue, since: Timestamp) -> Result<bool, LifecycleError> {
        let now = self.clock.now();
        let Some(bot) = self.store.bot(id).await? else { return Ok(false) };
        let session = self.store.sessions(id).await?.pop();
        let Some((mut tx, bot)) = hold_with_slot(&self.store, id, bot.slot, now).await? else { return Ok(false) };
        let heard = bot.connection_id.and_then(|connection| self.heartbeats.unwritten(connection));
        if heard.is_some_and(|at| at > since) && overdue == Overdue::HeartbeatLost {
            return Ok(false);
        }
        if !tx.is_overdue(id, overdue, since).await? {
            return Ok(false);
        }
        // The bot's agent reported that it was being stopped from outside, and did not call again.
        let was_interrupted = bot.reason.as_deref() == Some(Reason::Interrupted.as_str());
        let overdue = match overdue {
            Overdue::StopGrace if was_interrupted => Overdue::Interrupted,
            overdue => overdue,
        };
        let Verdict::Move { to, reason } = decide(&bot.lifecycle_state(), &Trigger::Passed(overdue)) else {
            return Ok(false);
        };
        let error = match to {
            Status::Failed => Some(ends::overdue_error(&bot, overdue, session.as_ref(), heard)),
            _ => None,
        };
        let change = Change { error, ..Change::to(to, reason) };
        let committed = self.move_bot(&mut tx, &bot, change, Actor::Keeper, now).await?;
        tx.commit().await?;
        self.report_committed(committed);
        Ok(true)
    }

    /// Logs a committed event, and asks to clear the slot of a bot that has ended.
    fn report_committed(&self, committed: CommittedEvent) {
        self.feed.running_bots().forget(committed.0.bot_id);
        match committed.0.to {
            Some(status) if status.is_ended() => self.signals.clear(committed.0.bot_id),
            Some(_) => self.signals.note_reported(committed.0.bot_id, committed.1),
            None => {}
        }
        committed.log();
    }

    async fn send(
        &self,
        tx: &mut Tx,
        bot: &BotRow,
        action: Action,
        payload: Value,
        actor: Actor,
        now: Timestamp,
    ) -> Result<CommandRow, LifecycleError> {
        let command = CommandRow { id: CommandId(self.random.id(now)?), action, payload };
        tx.insert_command(bot.id, &command, now).await?;
        let event = NewEvent {
            bot_id: bot.id,
            user_id: bot.user_id,
            kind: Kind::CommandSent,
            from: None,
            to: None,
            reason: Some(action.as_str().to_owned()),
            actor,
            start_kind: None,
        };
        tx.record(&event, now).await?;
        Ok(command)
    }

    /// Publishes a committed command on the bus, for a bot that listens there.
    fn publish(&self, bot: &BotRow, command: Option<CommandRow>) {
        self.feed.running_bots().forget(bot.id);
        if let (Some(connection), Some(command)) = (bot.connection_id, command) {
            self.bus.publish(connection, &command);
        }
    }

    /// Writes the decided change of a locked bot and its event. If the bot ends, its sessions end too.
    async fn move_bot(
        &self,
        tx: &mut Tx,
        bot: &BotRow,
        mut change: Change,
        actor: Actor,
        now: Timestamp,
    ) -> Result<CommittedEvent, LifecycleError> {
        change.fault = change.to.is_ended().then(|| Fault::of_end(bot.status, change.to, change.reason.as_ref()));
        tx.move_bot(bot.id, &change, now).await?;
        if change.to.is_ended() {
            tx.end_sessions(bot.id, None, now).await?;
            tx.close_bot(bot.id, bot.user_id).await?;
            if let Some(slot) = &bot.slot {
                tx.await_clearing(slot).await?;
            }
        }
        let event = NewEvent {
            bot_id: bot.id,
            user_id: bot.user_id,
            kind: Kind::StatusChanged,
            from: Some(bot.shown()),
            to: Some(change.to.into()),
            reason: change.reason.as_ref().map(ToString::to_string),
            actor,
            start_kind: None,
        };
        tx.record(&event, now).await?;
        Ok(CommittedEvent(event, change.to))
    }
}

/// Begins a transaction that changes a bot and its slot, and locks the bot. The journal names the slot before the bot
/// is locked, and placement may give the bot another slot in between. In that case the transaction begins again with
/// the new slot.
async fn hold_with_slot(
    store: &Store,
    id: BotId,
    mut slot: Option<SlotName>,
    now: Timestamp,
) -> Result<Option<(Tx, BotRow)>, StoreError> {
    for _ in 0..SLOT_CHANGES {
        let mut tx = store.begin_changing(&Changed::bot(id, slot.as_ref()), now).await?;
        let Some(bot) = tx.hold_bot(id).await? else { return Ok(None) };
        if bot.slot.is_none() || bot.slot == slot {
            return Ok(Some((tx, bot)));
        }
        slot = bot.slot;
    }
    let mut tx = store.begin_changing(&Changed::everything(), now).await?;
    Ok(tx.hold_bot(id).await?.map(|bot| (tx, bot)))
}

fn refuse_ended(bot: &BotRow) -> Result<(), LifecycleError> {
    if bot.status.is_ended() {
        return Err(LifecycleError::BotEnded { status: bot.status, reason: bot.reason.clone() });
    }
    Ok(())
}

/// An event that is logged and counted once it is committed.
#[must_use]
struct CommittedEvent(NewEvent, Status);

impl CommittedEvent {
    fn log(self) {
        log_move(&self.0);
    }
}

/// Logs and counts a committed change of status.
pub(crate) fn log_move(event: &NewEvent) {
    let [from, to] = [event.from, event.to].map(|status| status.map_or("", ShownStatus::as_str));
    let reason = event.reason.as_deref();
    tracing::info!(bot = %event.bot_id, from, to, reason, actor = event.actor.as_str(), "bot status changed");
    metrics::counter!("greenroom_bot_transitions_total", "to" => to).increment(1);
}
