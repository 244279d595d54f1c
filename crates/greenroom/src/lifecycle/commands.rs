//! This module returns the commands that a bot has not acknowledged. The answer to a heartbeat contains them too. A bot
//! that wants them sooner waits with the call in this module.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::callbacks::{Caller, check_caller};
use super::{Lifecycle, LifecycleError};
use crate::store::{CommandRow, Kind};

/// A waiting call also checks by itself this often, in case the feed is late.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

impl Lifecycle {
    /// Returns the commands that the bot has not acknowledged. If there are none, waits for one until `wait` is over,
    /// the bot ends or the server stops.
    pub async fn commands(
        &self,
        caller: Caller,
        wait: Duration,
        stopping: &CancellationToken,
    ) -> Result<Vec<CommandRow>, LifecycleError> {
        // It listens before it reads, so that no command is missed in between.
        let mut listener = self.feed.listen_to_bot(caller.claim.bot);
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        let mut over = false;
        loop {
            let bot = self.store.bot(caller.claim.bot).await?.ok_or(LifecycleError::Unauthorized)?;
            check_caller(&bot, caller)?;
            let open = self.store.open_commands(bot.id).await?;
            if !open.is_empty() || over {
                return Ok(open);
            }
            let next_poll = tokio::time::sleep(POLL_INTERVAL);
            tokio::pin!(next_poll);
            loop {
                let heard = tokio::select! {
                    heard = listener.live.recv() => heard,
                    () = &mut next_poll => break,
                    () = &mut deadline => { over = true; break }
                    () = stopping.cancelled() => { over = true; break }
                };
                match heard {
                    // The bot's end, or another assignment, also ends the wait.
                    Ok(event) if !matches!(event.kind, Kind::CommandAcknowledged | Kind::Warning) => break,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => {
                        over = true;
                        break;
                    }
                }
            }
        }
    }
}
