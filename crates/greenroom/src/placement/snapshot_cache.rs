//! This module holds placement's copy in memory of everything that it decides on. The copy follows the journal of
//! changes. If the journal does not say enough, the copy is read again from the tables.

use std::collections::{HashSet, VecDeque};

use domain::lifecycle::Overdue;
use domain::planner::changes::Changes;
use domain::planner::invariants::Scope;
use domain::planner::job::{EndCause, SlotEvent};
use domain::planner::{Job, Snapshot};
use domain::{BotId, SlotName, UserId};
use uuid::Uuid;

use super::copy_check::{self, CopyDifference};
use super::view::PlacementView;
use crate::lifecycle::feed::Feed;
use crate::signals::Signals;
use crate::store::{Position, Store, StoreError};

/// With more users or idempotency keys than this, the copy drops them and looks them up again.
const MOST_USERS: usize = 100_000;
const MOST_KEYS: usize = 200_000;
/// How many tokens of the last changes are remembered.
const RECENT_TOKENS: usize = 64;

#[derive(Debug)]
pub struct SnapshotCache {
    store: Store,
    signals: Signals,
    feed: Feed,
    held: Option<(Snapshot, Position)>,
    /// What the API shows of the copy.
    view: PlacementView,
    /// The last tokens that the copy had.
    recent: VecDeque<Uuid>,
}

impl SnapshotCache {
    pub fn new(store: Store, signals: Signals, feed: Feed, view: PlacementView) -> Self {
        Self { store, signals, feed, held: None, view, recent: VecDeque::new() }
    }

    fn note_token(&mut self, token: Uuid) {
        self.recent.truncate(RECENT_TOKENS - 1);
        self.recent.push_front(token);
    }

    /// Makes sure that the copy contains the change that made this token. It reads nothing if the copy had the token a
    /// moment ago.
    pub async fn reach(&mut self, token: Uuid) -> Result<(), StoreError> {
        self.bring_up_to_date().await?;
        if !self.recent.contains(&token) {
            self.follow().await?;
        }
        Ok(())
    }

    /// Shows these bots and slots, and the pools, to the API.
    fn publish(&self, bots: Vec<BotId>, slots: Vec<SlotName>) {
        if let Some((snapshot, position)) = &self.held {
            self.view.publish(snapshot, position.token, bots, slots);
        }
    }

    /// The copy as it was last read.
    pub fn get(&self) -> Option<(&Snapshot, Position)> {
        self.held.as_ref().map(|(snapshot, position)| (snapshot, *position))
    }

    /// Drops the copy, because it may be wrong.
    pub fn forget(&mut self) {
        self.held = None;
    }

    /// Reads everything if there is no copy yet, and otherwise what this process has changed outside of placement.
    pub async fn bring_up_to_date(&mut self) -> Result<(), StoreError> {
        let changed_here = self.store.take_placement_changed();
        if self.held.is_none() {
            self.read_all().await?;
        } else if changed_here {
            self.follow().await?;
        }
        let reported = self.signals.take_reported();
        if let Some((snapshot, _)) = &mut self.held {
            for (bot, status) in reported {
                snapshot.note_status(bot, status);
            }
        }
        Ok(())
    }

    /// Reads the changes of other replicas, and wakes agents whose slots got a bot. False when there were none.
    pub async fn follow(&mut self) -> Result<bool, StoreError> {
        let Some((snapshot, position)) = &mut self.held else {
            self.read_all().await?;
            return Ok(true);
        };
        let since = self.store.placement_since(*position).await?;
        if since.position.token == position.token {
            position.journal = since.position.journal;
            self.store.note_journal_position(*position);
            return Ok(false);
        }
        // The changes of others may include events.
        self.feed.read_now();
        let Some(changed) = since.changed else {
            self.read_all().await?;
            return Ok(true);
        };
        if let Err(error) = self.store.refresh_snapshot(snapshot, &changed).await {
            self.forget();
            return Err(error);
        }
        *position = since.position;
        self.store.note_journal_position(*position);
        let slots: Vec<SlotName> = changed.slots.into_iter().map(SlotName::stored).collect();
        self.view.publish(snapshot, position.token, changed.bots.iter().copied(), slots.iter().cloned());
        let token = position.token;
        metrics::counter!("greenroom_placement_reads_total", "what" => "journal").increment(1);
        for name in slots {
            self.signals.slot_changed(&name);
            if snapshot.slot(&name).is_some_and(|slot| slot.bot_id.is_some()) {
                self.signals.wake_agent(&name);
            }
        }
        for bot in changed.bots {
            self.feed.running_bots().forget(bot);
        }
        self.note_token(token);
        Ok(true)
    }

    async fn read_all(&mut self) -> Result<(), StoreError> {
        self.held = None;
        let position = self.store.placement_position().await?;
        let snapshot = self.store.load_snapshot().await?;
        self.view.publish_all(&snapshot, position.token);
        self.note_token(position.token);
        self.store.note_journal_position(position);
        self.signals.slots_changed(|name| snapshot.slot(name));
        self.held = Some((snapshot, position));
        self.feed.read_now();
        metrics::counter!("greenroom_placement_reads_total", "what" => "everything").increment(1);
        Ok(())
    }

    /// Compares rows with the copy, corrects the copy, and returns the differences. The caller must hold the token.
    pub async fn verify(&mut self, scope: &Scope) -> Result<Vec<CopyDifference>, StoreError> {
        let Some((copy, _)) = &mut self.held else { return Ok(Vec::new()) };
        let stored = self.store.load_part(scope).await?;
        let found = copy_check::differences(copy, &stored, scope);
        copy_check::correct(copy, &stored, &found);
        let corrected = copy_check::scope_of(&found);
        self.publish(corrected.bots, corrected.slots);
        Ok(found)
    }

    /// Loads what these jobs need and the copy does not have: users without earlier requests, ended bots, deployments.
    pub async fn look_up(&mut self, jobs: &[Job]) -> Result<(), StoreError> {
        let Some((snapshot, _)) = &mut self.held else { return Ok(()) };
        snapshot.facts = Default::default();
        if snapshot.users_known() > MOST_USERS {
            snapshot.forget_users();
        }
        if snapshot.keys_known() > MOST_KEYS {
            snapshot.forget_keys();
        }
        let mut users: HashSet<UserId> = HashSet::new();
        let (mut bots, mut slots): (Vec<BotId>, Vec<SlotName>) = Default::default();
        for job in jobs {
            match job {
                Job::Reserve(request) if snapshot.user(request.user).is_none() => drop(users.insert(request.user)),
                Job::End(end) => {
                    let bot = snapshot.bot(end.bot);
                    if bot.is_none() {
                        bots.push(end.bot);
                    }
                    if matches!(end.cause, EndCause::GivenUp { overdue: Overdue::DeployTimeout, .. }) {
                        slots.extend(bot.and_then(|bot| bot.slot.clone()));
                    }
                }
                Job::Slot(name, SlotEvent::NoCapacity { .. }) => slots.push(name.clone()),
                _ => {}
            }
        }
        self.store.load_users(snapshot, &users.into_iter().collect::<Vec<_>>()).await?;
        if !bots.is_empty() {
            self.store.refresh_bots(snapshot, &bots).await?;
        }
        self.store.load_deployments(snapshot, &slots).await?;
        if !bots.is_empty() {
            self.publish(bots, Vec::new());
        }
        Ok(())
    }

    /// Loads the requests with these idempotency keys. False when there are none.
    pub async fn look_up_keys(&mut self, keys: &[(UserId, String)]) -> Result<bool, StoreError> {
        let Some((snapshot, _)) = &mut self.held else { return Ok(false) };
        self.store.load_keys(snapshot, keys).await?;
        Ok(keys.iter().any(|(user, key)| snapshot.key(*user, key).is_some()))
    }

    /// Reads again everything that may have caused a write conflict: the bots of these jobs and their idempotency keys.
    pub async fn refresh_jobs(&mut self, jobs: &[Job]) -> Result<(), StoreError> {
        let Some((snapshot, _)) = &mut self.held else { return Ok(()) };
        let (mut bots, mut keys): (Vec<BotId>, Vec<(UserId, String)>) = Default::default();
        for job in jobs {
            match job {
                Job::Reserve(request) => {
                    bots.push(request.id);
                    keys.extend(request.idempotency.as_ref().map(|(key, _)| (request.user, key.clone())));
                }
                Job::End(end) => bots.push(end.bot),
                Job::Slot(_, SlotEvent::Silent { bot, .. } | SlotEvent::NoCapacity { bot, .. }) => bots.push(*bot),
                _ => {}
            }
        }
        self.store.refresh_bots(snapshot, &bots).await?;
        self.store.load_keys(snapshot, &keys).await?;
        self.publish(bots, Vec::new());
        Ok(())
    }

    /// Applies changes that were written under a new token: slots, bots, pools and keys move from the changes into the
    /// copy. Other copies of these slots and bots are dropped.
    pub fn apply(&mut self, changes: &mut Changes, token: Uuid) {
        for slot in changes.slots.keys() {
            self.signals.slot_changed(slot);
        }
        for bot in changes.bots.keys() {
            self.feed.running_bots().forget(*bot);
        }
        if let Some((snapshot, position)) = &mut self.held {
            let bots: Vec<BotId> = changes.bots.keys().copied().collect();
            let slots: Vec<SlotName> = changes.slots.keys().cloned().collect();
            snapshot.apply(Changes {
                slots: std::mem::take(&mut changes.slots),
                bots: std::mem::take(&mut changes.bots),
                pools: std::mem::take(&mut changes.pools),
                new_keys: std::mem::take(&mut changes.new_keys),
                ..Changes::default()
            });
            position.token = token;
            self.view.publish(snapshot, token, bots, slots);
            self.note_token(token);
        }
    }
}
