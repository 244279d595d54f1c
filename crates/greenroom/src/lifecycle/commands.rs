//! What is waiting for a bot. Heartbeats answer with it; a bot that wants to hear sooner waits here.

use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::callbacks::{Caller, speaks_for};
use super::{Lifecycle, LifecycleError};
use crate::store::{CommandRow, Kind};

/// Who waits looks by itself as well, should the feed be held up.
const POLL_INTERVAL: Duration = Duration::from_secs(15);

impl Lifecycle {
    /// The commands that the bot has not acknowledged; when there are none, waits for one, as long as `wait`, the
    /// bot's life and the server's last.
    pub async fn commands(
        &self,
        caller: Caller,
        wait: Duration,
        stopping: &CancellationToken,
    ) -> Result<Vec<CommandRow>, LifecycleError> {
        // Listens before it looks, so that nothing falls between the two.
        let mut listener = self.feed.listen_to_bot(caller.claim.bot);
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        let mut over = false;
        loop {
            let bot = self.store.bot(caller.claim.bot).await?.ok_or(LifecycleError::Unauthorized)?;
            speaks_for(&bot, caller)?;
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
                    // Also its end, or another assignment: the waiting is over then.
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
