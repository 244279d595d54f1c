//! Sends the descriptions of slots to Coolify, for people. It sends only the latest description of each slot, in the
//! background, when no other request waits. A start includes the description in its own request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SlotName;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;

use super::Coolify;
use super::api::Failure;
use super::recipe::cut;
use super::watch::Needs;
use crate::budget::Urgency;

/// How often the provider looks for a missing application before it drops its description.
const LIST_ATTEMPTS: u32 = 30;

#[derive(Debug, Default)]
pub struct Descriptions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: BTreeMap<SlotName, PendingDescription>,
    next: u64,
    is_sending: bool,
}

#[derive(Debug)]
struct PendingDescription {
    text: String,
    /// The description that has waited longest goes first.
    order: u64,
    /// How often the application was missing, or the request failed.
    tries: u32,
    not_before: Instant,
}

impl Descriptions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the waiting description of a slot. The caller must send it.
    pub fn take(&self, slot: &SlotName) -> Option<String> {
        self.state().waiting.remove(slot).map(|waiting| waiting.text)
    }

    /// The next description to send, or when there may be one. `None` if none waits.
    fn next(&self) -> Option<Result<SlotName, Instant>> {
        let mut state = self.state();
        let now = Instant::now();
        let due = state.waiting.iter().filter(|(_, waiting)| waiting.not_before <= now);
        if let Some((slot, _)) = due.min_by_key(|(_, waiting)| waiting.order) {
            return Some(Ok(slot.clone()));
        }
        let later = state.waiting.values().map(|waiting| waiting.not_before).min();
        if later.is_none() {
            state.is_sending = false;
        }
        later.map(Err)
    }
}

impl Coolify {
    /// Plans a description of a slot. A newer description replaces it.
    pub fn describe(self: &Arc<Self>, slot: &SlotName, text: String) {
        // A start that follows soon includes it, and a short activity need not be shown.
        self.describe_from(slot, text, 0, Instant::now() + self.pace.describe_after, |_| true);
    }

    /// Plans a description again that a request failed to send, unless a newer one waits.
    pub fn describe_again(self: &Arc<Self>, slot: &SlotName, text: String, tries: u32) {
        if tries < LIST_ATTEMPTS {
            let not_before = Instant::now() + self.pace.describe_again;
            self.describe_from(slot, text, tries, not_before, |state| !state.waiting.contains_key(slot));
        }
    }

    /// Under one lock, so that no newer description arrives between the check and the change.
    fn describe_from(
        self: &Arc<Self>,
        slot: &SlotName,
        text: String,
        tries: u32,
        not_before: Instant,
        is_wanted: impl FnOnce(&State) -> bool,
    ) {
        let is_first = {
            let mut state = self.descriptions.state();
            if !is_wanted(&state) {
                return;
            }
            state.next += 1;
            let order = state.waiting.get(slot).map_or(state.next, |waiting| waiting.order);
            state.waiting.insert(slot.clone(), PendingDescription { text, order, tries, not_before });
            !std::mem::replace(&mut state.is_sending, true)
        };
        if is_first {
            tokio::spawn(self.clone().send_descriptions());
        }
    }

    async fn send_descriptions(self: Arc<Self>) {
        while let Some(next) = self.descriptions.next() {
            match next {
                Ok(slot) => self.send_description(&slot).await,
                Err(later) => {
                    let soon = Instant::now() + self.pace.list_every;
                    tokio::time::sleep_until(later.min(soon)).await;
                }
            }
        }
    }

    async fn send_description(self: &Arc<Self>, slot: &SlotName) {
        let uuid = match self.watch.known(slot) {
            Some(application) => Some(application.uuid),
            // Another replica may have made the application.
            None => match self.watch.listing(Instant::now(), Needs::Applications).await {
                Ok(listing) => listing.of(slot).next().map(|application| application.uuid.clone()),
                Err(_) => None,
            },
        };
        // The description is read when its turn comes, so that the latest one is sent.
        if uuid.is_some() && self.api.turn(Urgency::Shown).await.is_err() {
            tokio::time::sleep(self.pace.describe_again).await;
            return;
        }
        let Some(PendingDescription { text, tries, .. }) = self.descriptions.state().waiting.remove(slot) else {
            return;
        };
        let Some(uuid) = uuid else { return self.describe_again(slot, text, tries + 1) };
        let body = json!({ "description": cut(&text) });
        match self.api.ask_now(Method::PATCH, &format!("applications/{uuid}"), Some(&body)).await {
            Ok(_) => {}
            Err(Failure::Refused { text, status, .. }) if status != reqwest::StatusCode::NOT_FOUND => {
                tracing::warn!(%slot, error = text, "slot description not written at Coolify");
            }
            // It is sent again until it succeeds, even if there is another application under the name now.
            Err(Failure::TooMany | Failure::Lost(_) | Failure::Away(_)) => self.describe_again(slot, text, 0),
            Err(_) => self.describe_again(slot, text, tries + 1),
        }
    }
}
