//! Writes rows to the store as placement does, for tests that use the store alone.

use std::collections::HashMap;

use domain::event::Actor;
use domain::planner::Changes;
use domain::planner::bot::OpenBot;
use domain::planner::changes::{NewBot, SlotChange};
use domain::{BotId, Meeting, Status, UserId};
use greenroom::store::{Applied, BotDetails, Changed, SlotRow, Store, StoreError};
use jiff::Timestamp;
use serde_json::json;

/// Writes changes under the current token. Every placement must then read its whole snapshot again.
pub async fn write(
    store: &Store,
    changes: &Changes,
    details: &HashMap<usize, BotDetails>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let before = store.placement_position().await?.token;
    let tokens = (before, uuid::Uuid::new_v4());
    store.write(store.prepare(changes, details, tokens, Some(&Changed::everything()), now)?, None).await
}

/// Writes slots: inserts them, or updates existing ones.
pub async fn write_slots(store: &Store, slots: Vec<SlotRow>, is_new: bool, now: Timestamp) {
    let slots = slots
        .into_iter()
        .map(|slot| (slot.name.clone(), SlotChange { is_new, only_use_changed: false, slot: Some(slot) }));
    let changes = Changes { slots: slots.collect(), ..Changes::default() };
    assert_eq!(write(store, &changes, &HashMap::new(), now).await.unwrap(), Applied::Committed);
}

/// A bot that waits for nothing, and the details of its request.
pub fn new_bot(id: BotId, user: UserId, meeting: Meeting) -> (OpenBot, BotDetails) {
    let bot = OpenBot {
        id,
        user,
        platform: meeting.platform,
        native_meeting_id: meeting.native_id,
        status: Status::Reserved,
        stop_asked: false,
        connection: None,
        pool: Some("meet".to_owned()),
        slot: None,
        has_joined: false,
        requirements: None,
        priority: 100,
        queue_timeout_ms: 300_000,
        arrival: 1,
        turn: 0,
        wait_until: None,
        returns: 0,
        queued: None,
    };
    let details = BotDetails {
        meeting_url: meeting.url,
        bot_display_name: Some("Note taker ü".to_owned()),
        requirements: None,
        config: json!({"language": "de"}).as_object().unwrap().clone(),
        metadata: serde_json::Map::new(),
    };
    (bot, details)
}

/// Changes that contain only one new bot.
pub fn one_new_bot(bot: &OpenBot, details: &BotDetails) -> (Changes, HashMap<usize, BotDetails>) {
    let mut changes = Changes::default();
    changes.new_bots.push(NewBot { job: 0, id: bot.id, actor: Actor::User, is_awaited: false });
    changes.bots.insert(bot.id, Some(bot.clone()));
    (changes, HashMap::from([(0, details.clone())]))
}
