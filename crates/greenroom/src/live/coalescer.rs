//! However often the state changes, readers get at most ten messages a second, and the last one brings them up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::LiveMessage;
use super::state::LiveState;

/// The shortest time between two messages.
pub const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub struct Coalescer {
    latest: Arc<LiveState>,
    sent: Option<Sent>,
}

/// The state that readers have who got every message.
#[derive(Debug)]
struct Sent {
    state: Arc<LiveState>,
    at: Instant,
    /// The same as a message, once a new reader has asked for it.
    snapshot: Option<LiveMessage>,
}

impl Coalescer {
    /// Notes the current state. An earlier one that was not sent is forgotten.
    pub fn update(&mut self, state: LiveState) {
        self.latest = Arc::new(state);
    }

    /// Returns the message that brings readers from the last message to the current state. `None` when nothing changed,
    /// or when the last message is too recent.
    pub fn take(&mut self, now: Instant) -> Option<LiveMessage> {
        let message = match &self.sent {
            Some(sent) if now.duration_since(sent.at) < SHORTEST_PAUSE => return None,
            Some(sent) if sent.state.pools == self.latest.pools => {
                LiveMessage::change(&self.latest.change_since(&sent.state)?)
            }
            // The first one; or the pools have other indexes now.
            _ => LiveMessage::snapshot(&self.latest.snapshot()),
        };
        let snapshot = matches!(message, LiveMessage::Snapshot(_)).then(|| message.clone());
        self.sent = Some(Sent { state: self.latest.clone(), at: now, snapshot });
        Some(message)
    }

    /// What a new reader begins with: the state of the last message. Readers that come together share it.
    pub fn snapshot(&mut self) -> Option<LiveMessage> {
        let Sent { state, snapshot, .. } = self.sent.as_mut()?;
        Some(snapshot.get_or_insert_with(|| LiveMessage::snapshot(&state.snapshot())).clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use domain::{Platform, SlotStatus};
    use serde_json::{Value, json};

    use super::*;
    use crate::live::message::EventText;
    use crate::live::state::SlotCell;

    /// The data of an event.
    fn data(text: &EventText) -> Value {
        let text = std::str::from_utf8(text.plain()).unwrap();
        serde_json::from_str(text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap()).unwrap()
    }

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
        assert_eq!(data(last), json!({"slots": [[0, 1, 1, 500, 0]]}));
        assert_eq!(coalescer.take(begun + Duration::from_secs(3)), None, "nothing has changed since");
    }

    #[test]
    fn new_readers_share_the_snapshot_of_the_last_message() {
        let (mut coalescer, begun) = (Coalescer::default(), Instant::now());
        assert_eq!(coalescer.snapshot(), None);
        coalescer.update(state(0));
        coalescer.take(begun);
        coalescer.update(state(1));
        let (first, second) = (coalescer.snapshot().unwrap(), coalescer.snapshot().unwrap());
        assert!(Arc::ptr_eq(first.text(), second.text()));
        assert_eq!(data(first.text())["slots"], json!([[[1, 1, 0, 0]]]), "the change was not sent yet");
        coalescer.take(begun + SHORTEST_PAUSE);
        assert_eq!(data(coalescer.snapshot().unwrap().text())["slots"], json!([[[1, 1, 1, 0]]]));
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
