//! This module lets a request wait until a bot is in its meeting or has ended.

use std::time::Duration;

use domain::{BotId, ShownStatus};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::Lifecycle;
use crate::store::{BotRow, StoreError};

/// A waiting request also reads the bot by itself this often, in case the feed is late.
const POLL_INTERVAL: Duration = Duration::from_secs(15);
/// The shortest pause between two reads, however many events the bot has.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// The state that a user waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedState {
    Active,
    Ended,
}

impl AwaitedState {
    /// Whether the wait is over. A bot that has ended never becomes active.
    fn is_reached(self, status: ShownStatus) -> bool {
        status.is_ended() || (self == Self::Active && status == ShownStatus::Active)
    }
}

impl Lifecycle {
    /// Waits until the bot is in the state or has ended, until `wait` is over, or until the server stops. `None` when
    /// the bot no longer exists.
    pub async fn await_state(
        &self,
        bot: BotId,
        state: AwaitedState,
        wait: Duration,
        stopping: &CancellationToken,
    ) -> Result<Option<BotRow>, StoreError> {
        let store = self.store.for_users();
        // It listens before it reads, so that no change is missed in between.
        let mut listener = self.feed.listen_to_bot(bot);
        let deadline = tokio::time::sleep(wait);
        tokio::pin!(deadline);
        let mut over = false;
        loop {
            let Some(row) = store.bot(bot).await? else { return Ok(None) };
            if over || state.is_reached(row.shown()) {
                return Ok(Some(row));
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
                    Ok(event) if event.to.is_some_and(|to| state.is_reached(to)) => break,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => {
                        tokio::select! {
                            () = tokio::time::sleep(SHORTEST_PAUSE) => {}
                            () = &mut deadline => over = true,
                            () = stopping.cancelled() => over = true,
                        }
                        break;
                    }
                    Err(RecvError::Closed) => {
                        over = true;
                        break;
                    }
                }
            }
        }
    }
}
