//! However often the state changes, readers get at most ten messages a second, and the last one brings them up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::state::LiveState;

/// The shortest time between two messages.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// A message to all readers. Its data is JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveMessage {
    Snapshot(Arc<str>),
    Change(Arc<str>),
}

#[derive(Debug, Default)]
pub struct Coalescer {
    latest: LiveState,
    sent: Option<(LiveState, Instant)>,
}

impl Coalescer {
    /// Notes the current state. An earlier one that was not sent is forgotten.
    pub fn update(&mut self, state: LiveState) {
        self.latest = state;
    }

    /// Returns the message that brings readers from the last message to the current state. `None` when nothing changed,
    /// or when the last message is too recent.
    pub fn take(&mut self, now: Instant) -> Option<LiveMessage> {
        let message = match &self.sent {
            Some((_, at)) if now.duration_since(*at) < SHORTEST_PAUSE => return None,
            Some((sent, _)) if sent.pools == self.latest.pools => {
                LiveMessage::Change(self.latest.change_since(sent)?.into())
            }
            // The first one; or the pools have other indexes now.
            _ => LiveMessage::Snapshot(self.latest.snapshot().into()),
        };
        self.sent = Some((self.latest.clone(), now));
        Some(message)
    }

    /// The state that readers have who got every message.
    pub fn sent(&self) -> Option<&LiveState> {
        self.sent.as_ref().map(|(state, _)| state)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use domain::{Platform, SlotStatus};
    use serde_json::{Value, json};

    use super::*;
    use crate::live::state::SlotCell;

    fn state(since: i64) -> LiveState {
        let cell = SlotCell { status: SlotStatus::Idle, since, hot: false };
        LiveState {
            pools: vec![("meet".to_owned(), Platform::GoogleMeet)],
            slots: [((0, 1), cell)].into_iter().collect(),
            ..LiveState::default()
        }
    }

    #[test]
    fn five_hundred_changes_in_a_second_are_at_most_ten_messages_and_the_last_state_arrives() {
        let (mut coalescer, begun) = (Coalescer::default(), Instant::now());
        coalescer.update(state(0));
        assert!(matches!(coalescer.take(begun), Some(LiveMessage::Snapshot(_))));
        let mut sent = Vec::new();
        for change in 1..=500_u32 {
            coalescer.update(state(i64::from(change)));
            sent.extend(coalescer.take(begun + Duration::from_millis(2) * change));
        }
        assert!((5..=10).contains(&sent.len()), "{}", sent.len());
        assert!(sent.iter().all(|message| matches!(message, LiveMessage::Change(_))));
        sent.extend(coalescer.take(begun + Duration::from_secs(2)));
        let Some(LiveMessage::Change(last)) = sent.last() else { panic!("{sent:?}") };
        let last: Value = serde_json::from_str(last).unwrap();
        assert_eq!(last, json!({"slots": [[0, 1, 1, 500, 0]]}));
        assert_eq!(coalescer.take(begun + Duration::from_secs(3)), None, "nothing has changed since");
    }

    #[test]
    fn a_change_that_is_undone_before_it_was_sent_is_no_message() {
        let (mut coalescer, begun) = (Coalescer::default(), Instant::now());
        coalescer.update(state(0));
        coalescer.take(begun);
        coalescer.update(state(1));
        coalescer.update(state(0));
        assert_eq!(coalescer.take(begun + Duration::from_secs(1)), None);
    }

    #[test]
    fn other_pools_are_a_new_snapshot() {
        let (mut coalescer, begun) = (Coalescer::default(), Instant::now());
        coalescer.update(state(0));
        coalescer.take(begun);
        let mut other = state(0);
        other.pools.insert(0, ("new".to_owned(), Platform::Zoom));
        coalescer.update(other);
        assert!(matches!(coalescer.take(begun + Duration::from_secs(1)), Some(LiveMessage::Snapshot(_))));
    }
}
