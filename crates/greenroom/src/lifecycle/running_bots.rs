//! This module keeps in memory what the answers to heartbeats need: the connection, the status and the open commands of
//! each running bot. So a heartbeat costs no read of the database.
//!
//! A copy is dropped with each change of its bot: right after the commit for changes of this process, and with the bot's
//! events for changes of other replicas. Only a bot that runs under its current connection has a copy. Every refusal, and
//! every acknowledgement, comes from the database. So a fence is never decided on a copy that refuses wrongly, and a copy
//! that accepts is at most a second old ([`FRESH`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{BotId, ConnectionId, Status};
use tokio::sync::watch;

use crate::signals::row_copies::{RowCopies, RowRead};
use crate::store::{CommandRow, Store};

/// How long a copy may be used after it was certain that no event is missing.
pub const FRESH: Duration = Duration::from_secs(1);

/// A bot that runs under its current connection.
#[derive(Clone, Debug)]
pub struct RunningBot {
    pub connection_id: ConnectionId,
    pub status: Status,
    /// The commands that it has not acknowledged, oldest first.
    pub commands: Vec<CommandRow>,
}

#[derive(Clone, Debug)]
pub struct RunningBots {
    copies: RowCopies<BotId, RunningBot>,
    /// At this moment, the events of all replicas were read. `None` before the first read.
    read_at: watch::Sender<Option<Instant>>,
}

impl Default for RunningBots {
    fn default() -> Self {
        Self { copies: RowCopies::default(), read_at: watch::Sender::new(None) }
    }
}

impl RunningBots {
    /// A bot's copy, without a check of its age.
    pub fn get(&self, bot: BotId) -> Option<Arc<RunningBot>> {
        self.copies.get(&bot)
    }

    /// Whether every change of every replica until a second ago is known.
    pub fn are_fresh(&self, store: &Store) -> bool {
        let is_recent = |at: Instant| at.elapsed() < FRESH;
        store.only_replica_at().is_some_and(is_recent) || self.read_at.borrow().is_some_and(is_recent)
    }

    /// Announces a read of a bot and its commands.
    pub fn begin_read(&self, bot: BotId) -> RowRead<'_, BotId, RunningBot> {
        self.copies.begin_read(bot)
    }

    /// Drops the copy of a bot that has changed.
    pub fn forget(&self, bot: BotId) {
        self.copies.forget(&bot);
    }

    /// Notes that the copies are right as of this moment.
    pub fn note_read(&self, at: Instant) {
        self.read_at.send_replace(Some(at));
    }

    /// Whether events have been read at all.
    pub fn follow_events(&self) -> bool {
        self.read_at.borrow().is_some()
    }

    /// Waits until the events have just been read.
    pub async fn until_read(&self) {
        // This struct owns the sender, so the channel cannot close.
        let _ = self.read_at.subscribe().wait_for(|at| at.is_some_and(|at| at.elapsed() < FRESH)).await;
    }
}
