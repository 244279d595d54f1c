//! The lanes of database calls. Each kind of call has its own connections, so that it never waits behind many calls of
//! another kind. SQLite has only one writer, for which the lanes take turns ([`WriteTurns`]).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Placement's transactions, one at a time.
    Placement,
    /// Writes that must be in time: heartbeats, leases, and listening spans.
    Leases,
    /// Calls for bots, agents, keepers and the server itself.
    Bots,
    /// Reads and changes of users and operators.
    Users,
}

impl Lane {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Leases => "leases",
            Self::Bots => "bots",
            Self::Users => "users",
        }
    }
}

const LANES: usize = 4;

/// The turns of the lanes at SQLite's only writer. If several lanes have waiting calls, the turn goes from lane to
/// lane. So the first call of a lane waits for at most three transactions, however many calls wait in another lane.
#[derive(Debug, Default)]
pub(super) struct WriteTurns {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: bool,
    waiting: [VecDeque<oneshot::Sender<WriteTurn>>; LANES],
    /// The lane that had the last turn.
    last: usize,
}

/// The right to write, until it is dropped.
#[derive(Debug)]
pub(super) struct WriteTurn {
    turns: Arc<WriteTurns>,
    /// Whether it was already passed on.
    passed: bool,
}

impl WriteTurns {
    /// Waits for the turn, at most as long as for a connection.
    pub(super) async fn take_in_time(self: &Arc<Self>, lane: Lane) -> Result<WriteTurn, sqlx::Error> {
        let turn = tokio::time::timeout(super::connect::WAIT_FOR_CONNECTION, self.take(lane)).await;
        turn.map_err(|_| sqlx::Error::PoolTimedOut)
    }

    pub(super) async fn take(self: &Arc<Self>, lane: Lane) -> WriteTurn {
        loop {
            let waited = {
                let mut state = self.state();
                if !state.taken {
                    state.taken = true;
                    state.last = lane as usize;
                    return WriteTurn { turns: self.clone(), passed: false };
                }
                let (turn, waited) = oneshot::channel();
                state.waiting[lane as usize].push_back(turn);
                waited
            };
            // The sender is only dropped with a turn in it. If that changes, the wait begins again.
            if let Ok(turn) = waited.await {
                return turn;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the turn to the next lane with a waiting call.
    fn pass(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state();
                let lanes = (1..=LANES).map(|step| (state.last + step) % LANES);
                let Some(lane) = lanes.into_iter().find(|lane| !state.waiting[*lane].is_empty()) else {
                    state.taken = false;
                    return;
                };
                state.last = lane;
                state.waiting[lane].pop_front()
            };
            let turn = WriteTurn { turns: self.clone(), passed: false };
            match next.map(|next| next.send(turn)) {
                Some(Ok(())) => return,
                // The waiting caller has gone.
                Some(Err(mut turn)) => turn.passed = true,
                None => {}
            }
        }
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if !self.passed {
            self.turns.pass();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Starts a call in a lane. The call records its number when it gets the turn.
    fn enqueue(
        turns: &Arc<WriteTurns>,
        lane: Lane,
        number: u32,
        order: &Arc<Mutex<Vec<u32>>>,
    ) -> tokio::task::JoinHandle<()> {
        let (turns, order) = (turns.clone(), order.clone());
        tokio::spawn(async move {
            let _turn = turns.take(lane).await;
            order.lock().unwrap().push(number);
        })
    }

    #[tokio::test]
    async fn the_first_of_a_lane_waits_for_at_most_one_of_each_other_lane() {
        let (turns, order) = (Arc::new(WriteTurns::default()), Arc::default());
        let held = turns.take(Lane::Users).await;
        let mut waiting: Vec<_> = (0..100).map(|number| enqueue(&turns, Lane::Users, number, &order)).collect();
        tokio::task::yield_now().await;
        waiting.push(enqueue(&turns, Lane::Placement, 1_000, &order));
        waiting.push(enqueue(&turns, Lane::Leases, 2_000, &order));
        waiting.push(enqueue(&turns, Lane::Leases, 2_001, &order));
        tokio::task::yield_now().await;
        drop(held);
        for one in waiting {
            one.await.unwrap();
        }
        let order = order.lock().unwrap();
        assert_eq!(order[..5], [1_000, 2_000, 0, 2_001, 1], "each lane has its turn");
        assert_eq!(order.len(), 103);
    }

    #[tokio::test]
    async fn a_cancelled_waiter_does_not_delay_others() {
        let (turns, order) = (Arc::new(WriteTurns::default()), Arc::default());
        let held = turns.take(Lane::Bots).await;
        let gone = enqueue(&turns, Lane::Bots, 1, &order);
        let stays = enqueue(&turns, Lane::Bots, 2, &order);
        tokio::task::yield_now().await;
        gone.abort();
        let _ = gone.await;
        drop(held);
        stays.await.unwrap();
        assert_eq!(*order.lock().unwrap(), [2]);
        drop(turns.take(Lane::Users).await);
    }
}
