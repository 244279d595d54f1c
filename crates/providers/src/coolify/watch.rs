//! The shared list: one list of all applications, and one of all deployments, serves all callers of this process that
//! wait for a change. A caller that has just done an action waits for a list that begins after it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::SlotName;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::api::Api;
use super::application::{self, Application, OpenDeployment};
use crate::ProviderError;

/// The applications of this installation at one moment.
#[derive(Debug)]
pub struct Listing {
    /// When the list began: it is no older than this.
    pub begun: Instant,
    /// By slot. Of several applications of one slot, the one that is kept comes first.
    pub applications: Vec<Application>,
    /// The deployments of all owners. `None` if no caller needed them.
    deployments: Option<Vec<OpenDeployment>>,
}

impl Listing {
    /// The applications of a slot. The one that is kept comes first.
    pub fn of(&self, slot: &SlotName) -> impl Iterator<Item = &Application> {
        self.applications.iter().filter(move |application| application.slot == *slot)
    }

    /// Deployments of an application that are queued or in progress.
    pub fn open(&self, application: &Application) -> impl Iterator<Item = &OpenDeployment> {
        self.deployments.iter().flatten().filter(|open| open.is_of(&application.uuid))
    }
}

/// The content that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Applications,
    /// Also the deployments, read a moment before the applications.
    Deployments,
}

#[derive(Debug)]
pub struct Watch {
    api: Arc<Api>,
    installation: String,
    /// The shortest time between the beginnings of two lists.
    every: Duration,
    state: Mutex<State>,
    joined: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<ListingRequest>,
    is_listing: bool,
    begun: Option<Instant>,
    last: Option<Arc<Listing>>,
    /// The applications that were made since the last list began.
    made: Vec<(Instant, Application)>,
}

#[derive(Debug)]
struct ListingRequest {
    from: Instant,
    needs: Needs,
    reply: oneshot::Sender<Result<Arc<Listing>, ProviderError>>,
}

/// The task that reads lists. When it is dropped, a waiting caller gets an error and does not wait forever.
struct ListingTask {
    watch: Arc<Watch>,
    is_done: bool,
}

impl Drop for ListingTask {
    fn drop(&mut self) {
        // After a normal end, a later caller has started another task.
        if !self.is_done {
            let mut state = self.watch.state();
            state.is_listing = false;
            state.waiting.clear();
        }
    }
}

impl Watch {
    pub fn new(api: Arc<Api>, installation: String, every: Duration) -> Self {
        Self { api, installation, every, state: Mutex::default(), joined: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first list that begins at `from` or later.
    pub async fn listing(self: &Arc<Self>, from: Instant, needs: Needs) -> Result<Arc<Listing>, ProviderError> {
        let (reply, answer) = oneshot::channel();
        let is_first = {
            let mut state = self.state();
            state.waiting.push(ListingRequest { from, needs, reply });
            !std::mem::replace(&mut state.is_listing, true)
        };
        if is_first {
            tokio::spawn(keep_listing(ListingTask { watch: self.clone(), is_done: false }));
        } else {
            self.joined.notify_one();
        }
        answer.await.unwrap_or_else(|_| {
            Err(ProviderError::transient("the request for Coolify's list of applications was cancelled"))
        })
    }

    /// The slot's application as this process last saw it, which may be a while ago.
    pub fn known(&self, slot: &SlotName) -> Option<Application> {
        let state = self.state();
        let seen = state.last.as_ref().and_then(|listing| listing.of(slot).next().cloned());
        seen.or_else(|| state.made.iter().find(|(_, made)| made.slot == *slot).map(|(_, made)| made.clone()))
    }

    /// Records an application that was made just now, which the last list does not show.
    pub fn note_made(&self, application: Application) {
        self.state().made.push((Instant::now(), application));
    }

    /// When the next list begins and what it needs. `None` if no caller waits.
    fn next(&self) -> Option<(Instant, Needs)> {
        let mut state = self.state();
        state.waiting.retain(|waiting| !waiting.reply.is_closed());
        let Some(first) = state.waiting.iter().map(|waiting| waiting.from).min() else {
            state.is_listing = false;
            return None;
        };
        let at = state.begun.map_or(first, |begun| first.max(begun + self.every));
        let all = state.waiting.iter().filter(|waiting| waiting.from <= at);
        let needs = all.map(|waiting| waiting.needs).find(|needs| *needs == Needs::Deployments);
        Some((at, needs.unwrap_or(Needs::Applications)))
    }

    async fn take(&self, needs: Needs) -> Result<Listing, ProviderError> {
        // Deployments first: an application that has no open deployment, and does not run afterwards, did not start.
        let deployments = match needs {
            Needs::Applications => None,
            Needs::Deployments => {
                let answer = self.api.list("deployments").await?;
                Some((answer.asked, application::open_deployments(&answer.json()?)?))
            }
        };
        let answer = self.api.list("applications").await?;
        let applications = application::applications(&answer.json()?, &self.installation)?;
        let begun = deployments.as_ref().map_or(answer.asked, |(asked, _)| *asked);
        Ok(Listing { begun, applications, deployments: deployments.map(|(_, open)| open) })
    }

    fn serve(&self, tried: Instant, taken: Result<Listing, ProviderError>) {
        let mut state = self.state();
        state.begun = Some(tried);
        match taken {
            Ok(listing) => {
                let listing = Arc::new(listing);
                let has_deployments = listing.deployments.is_some();
                let serves = |waiting: &mut ListingRequest| {
                    waiting.from <= listing.begun && (has_deployments || waiting.needs == Needs::Applications)
                };
                for waiting in state.waiting.extract_if(.., serves) {
                    // A caller that has gone gets no answer.
                    let _ = waiting.reply.send(Ok(listing.clone()));
                }
                state.made.retain(|(at, _)| *at >= listing.begun);
                state.last = Some(listing);
            }
            Err(error) => {
                for waiting in state.waiting.extract_if(.., |waiting| waiting.from <= tried) {
                    let _ = waiting.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

async fn keep_listing(mut task: ListingTask) {
    let watch = task.watch.clone();
    loop {
        let Some((at, needs)) = watch.next() else {
            task.is_done = true;
            return;
        };
        if at > Instant::now() {
            // A new caller may need an earlier list.
            tokio::select! {
                () = tokio::time::sleep_until(at) => {}
                () = watch.joined.notified() => {}
            }
            continue;
        }
        let tried = Instant::now();
        let taken = watch.take(needs).await;
        watch.serve(tried, taken);
    }
}
