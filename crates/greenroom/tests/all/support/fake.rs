//! A provider that runs nothing: it keeps what it was told, and does or fails as the test says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use async_trait::async_trait;
use domain::SlotName;
use greenroom::providers::{Image, Provider, ProviderError, Spec};
use tokio::sync::Semaphore;

/// What it was told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Start(SlotName),
    Stop(SlotName),
    Delete(SlotName),
    Pull,
}

#[derive(Debug)]
pub struct Fake {
    state: Mutex<State>,
    /// Each start and each pull takes one, and waits while there is none.
    turns: Semaphore,
    /// The same for stops and deletions.
    ends: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    /// What the next starts, stops and pulls fail with; without one they work.
    start_errors: VecDeque<ProviderError>,
    stop_errors: VecDeque<ProviderError>,
    pull_errors: VecDeque<ProviderError>,
    needs_image: bool,
    has_image: bool,
    starting: usize,
    most_starting: usize,
    running: BTreeMap<SlotName, Spec>,
    described: BTreeMap<SlotName, String>,
}

/// A start that is under way, however it ends.
struct Starting<'a>(&'a Fake);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.state().starting -= 1;
    }
}

impl Default for Fake {
    fn default() -> Self {
        let [turns, ends] = [Semaphore::MAX_PERMITS; 2].map(Semaphore::new);
        Self { state: Mutex::default(), turns, ends }
    }
}

impl Fake {
    /// Starts and pulls wait for [`Fake::release`].
    pub fn hanging() -> Self {
        Self { turns: Semaphore::new(0), ..Self::default() }
    }

    /// Stops and deletions wait for [`Fake::release_ends`].
    pub fn slow_to_end() -> Self {
        Self { ends: Semaphore::new(0), ..Self::default() }
    }

    /// Its image is not on the host.
    pub fn without_image(self) -> Self {
        self.state().needs_image = true;
        self
    }

    pub fn failing_starts(self, errors: impl IntoIterator<Item = ProviderError>) -> Self {
        self.state().start_errors.extend(errors);
        self
    }

    pub fn failing_pulls(self, errors: impl IntoIterator<Item = ProviderError>) -> Self {
        self.state().pull_errors.extend(errors);
        self
    }

    pub fn fail_stop(&self, error: ProviderError) {
        self.state().stop_errors.push_back(error);
    }

    /// Lets so many of those go on that wait, or will come.
    pub fn release(&self, count: usize) {
        self.turns.add_permits(count);
    }

    /// Lets so many stops and deletions go on that wait, or will come.
    pub fn release_ends(&self, count: usize) {
        self.ends.add_permits(count);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub fn count(&self, call: &Call) -> usize {
        self.state().calls.iter().filter(|made| *made == call).count()
    }

    /// The slots that were started, in the order of the calls.
    pub fn starts(&self) -> Vec<SlotName> {
        let starts = self.calls().into_iter().filter_map(|call| match call {
            Call::Start(slot) => Some(slot),
            _ => None,
        });
        starts.collect()
    }

    /// How many starts are under way.
    pub fn starting(&self) -> usize {
        self.state().starting
    }

    /// How many starts were ever under way at once.
    pub fn most_starting(&self) -> usize {
        self.state().most_starting
    }

    /// What runs in a slot.
    pub fn running(&self, slot: &SlotName) -> Option<Spec> {
        self.state().running.get(slot).cloned()
    }

    pub fn described(&self, slot: &SlotName) -> Option<String> {
        self.state().described.get(slot).cloned()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn turn(&self) {
        self.turns.acquire().await.unwrap().forget();
    }

    fn begin(&self, slot: &SlotName) -> Starting<'_> {
        let mut state = self.state();
        state.calls.push(Call::Start(slot.clone()));
        state.starting += 1;
        state.most_starting = state.most_starting.max(state.starting);
        Starting(self)
    }
}

#[async_trait]
impl Provider for Fake {
    fn image(&self) -> Option<Image> {
        self.state().needs_image.then(|| Image { name: "bot".to_owned(), host: "host".to_owned() })
    }

    async fn has_image(&self) -> Result<bool, ProviderError> {
        Ok(self.state().has_image)
    }

    async fn pull_image(&self) -> Result<(), ProviderError> {
        self.state().calls.push(Call::Pull);
        self.turn().await;
        let mut state = self.state();
        match state.pull_errors.pop_front() {
            Some(error) => Err(error),
            None => {
                state.has_image = true;
                Ok(())
            }
        }
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        let _starting = self.begin(&spec.slot);
        self.turn().await;
        let mut state = self.state();
        match state.start_errors.pop_front() {
            Some(error) => Err(error),
            None => {
                state.running.insert(spec.slot.clone(), spec.clone());
                Ok(format!("fake/{}", spec.slot))
            }
        }
    }

    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<(), ProviderError> {
        self.state().calls.push(Call::Stop(slot.clone()));
        self.ends.acquire().await.unwrap().forget();
        let mut state = self.state();
        match state.stop_errors.pop_front() {
            Some(error) => Err(error),
            None => {
                state.running.remove(slot);
                Ok(())
            }
        }
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.state().calls.push(Call::Delete(slot.clone()));
        self.ends.acquire().await.unwrap().forget();
        self.state().running.remove(slot);
        Ok(())
    }

    async fn describe(&self, slot: &SlotName, description: &str) {
        self.state().described.insert(slot.clone(), description.to_owned());
    }
}
