//! This module handles the callbacks of bots. Each callback carries the token of an assignment and is fenced by its
//! connection: a call under an older connection is refused. A repeated callback changes nothing and gets the same
//! answer as the first one.

use std::sync::Arc;
use std::time::Duration;

use domain::lifecycle::{Trigger, Verdict, decide};
use domain::{CommandId, ConnectionId, SlotClaim, Status, hex};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::running_bots::RunningBot;
use super::tokens::Claim;
use super::{Lifecycle, LifecycleError, refuse_ended};
use crate::store::{Actor, Beat, BotRow, Change, Changed, CommandRow, Kind, NewEvent, SegmentRow, Tx};

/// A heartbeat reads its own bot if the events are not read within this time.
const EVENTS_READ_WITHIN: Duration = Duration::from_millis(500);

/// The bot that calls, and the connection that the call names.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub claim: Claim,
    pub connection_id: ConnectionId,
}

/// A segment of a transcript, as a bot sends it.
#[derive(Clone, Debug)]
pub struct Segment {
    pub start_time: f64,
    pub end_time: f64,
    pub text: String,
    pub speaker: Option<String>,
    pub language: Option<String>,
}

impl Lifecycle {
    /// Returns the bot and the connection that the token belongs to.
    pub fn claim(&self, token: &str) -> Result<Claim, LifecycleError> {
        self.tokens.read(token).ok_or(LifecycleError::Unauthorized)
    }

    /// Returns the slot that the token belongs to.
    pub fn slot_claim(&self, token: &str) -> Option<SlotClaim> {
        self.tokens.read_slot(token)
    }

    /// The bot runs. Creates the session of its connection.
    pub async fn started(&self, caller: Caller, container: Option<&str>) -> Result<Status, LifecycleError> {
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        let new_session = !bot.has_session;
        let verdict = decide(&bot.lifecycle_state(), &Trigger::Started { new_session });
        let now = self.clock.now();
        if new_session && matches!(verdict, Verdict::Move { .. } | Verdict::Hold) {
            tx.end_sessions(bot.id, Some(caller.connection_id), now).await?;
            tx.make_session(bot.id, caller.connection_id, container, now).await?;
            if bot.slot.is_some() {
                // The bot runs, so a pending start of its slot is no longer needed.
                tx.cancel_pending_deployments(&[bot.id]).await?;
            }
            if let Some(container) = container {
                tx.set_container(bot.id, container, now).await?;
            }
        }
        self.follow(tx, bot, verdict, now).await
    }

    /// The bot is in the meeting.
    pub async fn joined(&self, caller: Caller) -> Result<Status, LifecycleError> {
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        has_started(&bot)?;
        let verdict = decide(&bot.lifecycle_state(), &Trigger::Joined);
        let now = self.clock.now();
        if let Verdict::Move { .. } = verdict {
            tx.note_joined(caller.connection_id, now).await?;
        }
        self.follow(tx, bot, verdict, now).await
    }

    /// The bot reports its own state.
    pub async fn status(&self, caller: Caller, trigger: Trigger) -> Result<Status, LifecycleError> {
        // From the moment it leaves, the bot no longer counts against its user's limit.
        let mut tx = match trigger {
            Trigger::Stopping { .. } => {
                self.store.begin_changing(&Changed::bot(caller.claim.bot, None), self.clock.now()).await?
            }
            _ => self.store.begin().await?,
        };
        let bot = self.held(&mut tx, caller).await?;
        has_started(&bot)?;
        let verdict = decide(&bot.lifecycle_state(), &trigger);
        self.follow(tx, bot, verdict, self.clock.now()).await
    }

    /// The bot is alive and has acknowledged some commands. Returns its status and all commands that it has not
    /// acknowledged yet. Reads the database only if the bot has no copy in memory, or if the caller is not the one in
    /// the copy.
    pub async fn heartbeat(
        &self,
        caller: Caller,
        acked: &[CommandId],
    ) -> Result<(Status, Vec<CommandRow>), LifecycleError> {
        // A command may be acknowledged before this replica knows of it.
        if acked.is_empty()
            && let Some(bot) = self.running_bot(caller).await
        {
            self.heartbeats.note(Beat { connection_id: caller.connection_id, at: self.clock.now() });
            return Ok((bot.status, bot.commands.clone()));
        }
        // Boxed, so that most heartbeats do not pay for its large state.
        Box::pin(self.heartbeat_from_database(caller, acked)).await
    }

    async fn heartbeat_from_database(
        &self,
        caller: Caller,
        acked: &[CommandId],
    ) -> Result<(Status, Vec<CommandRow>), LifecycleError> {
        let read = self.feed.running_bots().begin_read(caller.claim.bot);
        let bot = self.store.bot(caller.claim.bot).await?.ok_or(LifecycleError::Unauthorized)?;
        check_caller(&bot, caller)?;
        has_started(&bot)?;
        self.heartbeats.note(Beat { connection_id: caller.connection_id, at: self.clock.now() });
        let mut open = self.store.open_commands(bot.id).await?;
        if open.iter().any(|command| acked.contains(&command.id)) {
            self.acknowledge(caller, acked).await?;
            open = self.store.open_commands(bot.id).await?;
        }
        read.keep(RunningBot { connection_id: caller.connection_id, status: bot.status, commands: open.clone() });
        Ok((bot.status, open))
    }

    /// The copy of the bot that calls, if the call is made under its current connection. If another replica may have
    /// changed the bot more than a second ago, the events are read first: once, for all callers together.
    async fn running_bot(&self, caller: Caller) -> Option<Arc<RunningBot>> {
        let bots = self.feed.running_bots();
        let is_callers = |bot: &Arc<RunningBot>| fence(Some(bot.connection_id), caller).is_ok();
        let bot = bots.get(caller.claim.bot).filter(is_callers)?;
        if bots.are_fresh(&self.store) {
            return Some(bot);
        }
        if !bots.follow_events() {
            return None;
        }
        self.feed.read_now();
        tokio::time::timeout(EVENTS_READ_WITHIN, bots.until_read()).await.ok()?;
        bots.get(caller.claim.bot).filter(is_callers)
    }

    /// Stores segments of a transcript, and returns how many of them were new.
    pub async fn transcript(&self, caller: Caller, segments: Vec<Segment>) -> Result<u64, LifecycleError> {
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        let segments: Vec<SegmentRow> =
            segments.into_iter().map(|segment| segment_row(caller.connection_id, segment)).collect();
        if bot.status.is_ended() {
            // A batch that was stored before the end is a repeat; new segments are refused.
            let mut digests: Vec<String> = segments.into_iter().map(|segment| segment.digest).collect();
            digests.sort();
            digests.dedup();
            let known = tx.known_segments(bot.id, &digests).await?;
            return if known == digests.len() as u64 { Ok(0) } else { refuse_ended(&bot).map(|()| 0) };
        }
        has_started(&bot)?;
        let stored = tx.insert_segments(bot.id, &segments, self.clock.now()).await?;
        tx.commit().await?;
        Ok(stored)
    }

    async fn acknowledge(&self, caller: Caller, acked: &[CommandId]) -> Result<(), LifecycleError> {
        let now = self.clock.now();
        let mut tx = self.store.begin().await?;
        let bot = self.held(&mut tx, caller).await?;
        refuse_ended(&bot)?;
        for action in tx.acknowledge(bot.id, acked, now).await? {
            let event = NewEvent {
                bot_id: bot.id,
                user_id: bot.user_id,
                kind: Kind::CommandAcknowledged,
                from: None,
                to: None,
                reason: Some(action.as_str().to_owned()),
                actor: Actor::Bot,
                start_kind: None,
            };
            tx.record(&event, now).await?;
        }
        tx.commit().await?;
        self.feed.running_bots().forget(bot.id);
        Ok(())
    }

    /// Returns the bot that calls, locked, after checking that it calls under its current connection.
    pub(super) async fn held(&self, tx: &mut Tx, caller: Caller) -> Result<BotRow, LifecycleError> {
        let bot = tx.hold_bot(caller.claim.bot).await?.ok_or(LifecycleError::Unauthorized)?;
        fence(bot.connection_id, caller)?;
        Ok(bot)
    }

    /// Carries out the decision, and returns the status that holds afterwards.
    async fn follow(
        &self,
        mut tx: Tx,
        bot: BotRow,
        verdict: Verdict,
        now: Timestamp,
    ) -> Result<Status, LifecycleError> {
        match verdict {
            Verdict::Move { to, reason } => {
                let committed = self.move_bot(&mut tx, &bot, Change::to(to, reason), Actor::Bot, now).await?;
                tx.commit().await?;
                self.report_committed(committed);
                Ok(to)
            }
            Verdict::Hold => {
                tx.commit().await?;
                Ok(bot.status)
            }
            Verdict::Refuse => Err(LifecycleError::InvalidTransition(bot.status)),
            Verdict::Ended => Err(LifecycleError::BotEnded { status: bot.status, reason: bot.reason }),
        }
    }
}

/// A connection acts for its bot only while it is the bot's current one.
pub(super) fn fence(current: Option<ConnectionId>, caller: Caller) -> Result<(), LifecycleError> {
    if current == Some(caller.claim.connection) && current == Some(caller.connection_id) {
        Ok(())
    } else {
        Err(LifecycleError::StaleConnection)
    }
}

/// Whether the server still accepts calls of this caller.
pub(super) fn check_caller(bot: &BotRow, caller: Caller) -> Result<(), LifecycleError> {
    fence(bot.connection_id, caller)?;
    refuse_ended(bot)
}

/// Under each connection `started` must be the first call, so that all other calls have a session.
pub(super) fn has_started(bot: &BotRow) -> Result<(), LifecycleError> {
    if bot.has_session || bot.status.is_ended() { Ok(()) } else { Err(LifecycleError::InvalidTransition(bot.status)) }
}

fn segment_row(connection_id: ConnectionId, segment: Segment) -> SegmentRow {
    let mut digest = Sha256::new();
    digest.update(connection_id.0.as_bytes());
    digest.update(segment.start_time.to_bits().to_be_bytes());
    digest.update(segment.end_time.to_bits().to_be_bytes());
    for text in [Some(&segment.text), segment.speaker.as_ref(), segment.language.as_ref()] {
        // The length comes before the text, so that two different sequences of texts never give the same bytes.
        digest.update(text.map_or(u64::MAX, |text| text.len() as u64).to_be_bytes());
        digest.update(text.map_or("", String::as_str));
    }
    let digest = hex(&digest.finalize()[..16]);
    SegmentRow {
        connection_id,
        digest,
        start_time: segment.start_time,
        end_time: segment.end_time,
        text: segment.text,
        speaker: segment.speaker,
        language: segment.language,
    }
}
