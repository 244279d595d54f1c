//! A fake provider that starts no processes. It records its calls, and succeeds or fails as the test says.
//! A [`Fault`] makes the next call of one kind fail in a way that happens with real providers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use greenroom::providers::{Found, Image, Progress, Provider, ProviderError, Pulled, Spec, Stopped};
use tokio::sync::Semaphore;

/// A call that the fake received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Create(SlotName),
    Start(SlotName),
    Stop(SlotName),
    Delete(SlotName),
    Pull,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Create,
    Start,
    Stop,
    Delete,
    List,
    Inspect,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Returns an error, and does nothing.
    Error,
    /// Never answers, and does nothing.
    Hang,
    /// Reports success, and does nothing.
    NoEffect,
    /// Takes effect, and never answers.
    NoAnswer,
    /// Never answers, and takes effect after the caller has stopped waiting.
    Late,
}

const REFUSED: &str = "connection refused";
/// Longer than the time limit of a call in tests.
const LATE: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    /// Each start and each pull takes a permit, and waits if there is none.
    turns: Semaphore,
    /// The same for stops and deletions.
    ends: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    /// The errors of the next starts, stops and pulls. Without one, they succeed.
    start_errors: VecDeque<ProviderError>,
    stop_errors: VecDeque<ProviderError>,
    pull_errors: VecDeque<ProviderError>,
    /// The provider does not answer.
    is_away: bool,
    needs_image: bool,
    has_image: bool,
    /// Calls that have not taken effect yet.
    late: usize,
    pulling: usize,
    starting: usize,
    most_starting: usize,
    /// The faults of the next calls.
    faults: Vec<(Kind, Fault)>,
    /// The slots at the provider, and what runs in each.
    slots: BTreeMap<SlotName, Option<Spec>>,
    described: BTreeMap<SlotName, String>,
    /// Slots that the provider reports as unhealthy, although they run.
    unhealthy: BTreeSet<SlotName>,
    /// The log of each slot.
    logs: BTreeMap<SlotName, String>,
}

/// A start in progress. It is counted until it is dropped, also after an error.
struct Starting<'a>(&'a Fake);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.state().starting -= 1;
    }
}

/// A pull in progress. It is counted until it is dropped, also after an error.
struct Pulling<'a>(&'a Fake);

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        self.0.state().pulling -= 1;
    }
}

impl Default for Fake {
    fn default() -> Self {
        let [turns, ends] = [Semaphore::MAX_PERMITS; 2].map(Semaphore::new);
        Self { state: Arc::default(), turns, ends }
    }
}

impl Fake {
    /// A provider whose starts and pulls wait for [`Fake::release`].
    pub fn hanging() -> Self {
        Self { turns: Semaphore::new(0), ..Self::default() }
    }

    /// A provider whose stops and deletions wait for [`Fake::release_ends`].
    pub fn slow_to_end() -> Self {
        Self { ends: Semaphore::new(0), ..Self::default() }
    }

    /// The image is not on the host.
    pub fn without_image(self) -> Self {
        self.state().needs_image = true;
        self
    }

    pub fn failing_starts(self, errors: impl IntoIterator<Item = ProviderError>) -> Self {
        self.state().start_errors.extend(errors);
        self
    }

    pub fn fail_starts(&self, errors: impl IntoIterator<Item = ProviderError>) {
        self.state().start_errors.extend(errors);
    }

    pub fn failing_pulls(self, errors: impl IntoIterator<Item = ProviderError>) -> Self {
        self.state().pull_errors.extend(errors);
        self
    }

    pub fn fail_stop(&self, error: ProviderError) {
        self.state().stop_errors.push_back(error);
    }

    /// Lets this many starts and pulls continue, those that wait and later ones.
    pub fn release(&self, count: usize) {
        self.turns.add_permits(count);
    }

    /// Lets this many stops and deletions continue, those that wait and later ones.
    pub fn release_ends(&self, count: usize) {
        self.ends.add_permits(count);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The calls for one slot.
    pub fn calls_for(&self, slot: &SlotName) -> Vec<Call> {
        let is_for = |call: &Call| match call {
            Call::Create(of) | Call::Start(of) | Call::Stop(of) | Call::Delete(of) => of == slot,
            Call::Pull => false,
        };
        self.calls().into_iter().filter(is_for).collect()
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

    /// How many pulls are in progress.
    pub fn pulling(&self) -> usize {
        self.state().pulling
    }

    /// How many starts are in progress.
    pub fn starting(&self) -> usize {
        self.state().starting
    }

    /// The highest number of starts that were in progress at once.
    pub fn most_starting(&self) -> usize {
        self.state().most_starting
    }

    /// What runs in a slot.
    pub fn running(&self, slot: &SlotName) -> Option<Spec> {
        self.state().slots.get(slot).cloned().flatten()
    }

    /// All slots at the provider, and whether something runs in each.
    pub fn has(&self) -> BTreeMap<SlotName, bool> {
        self.state().slots.iter().map(|(slot, spec)| (slot.clone(), spec.is_some())).collect()
    }

    /// Makes the next call of a kind fail.
    pub fn break_next(&self, kind: Kind, fault: Fault) {
        self.state().faults.push((kind, fault));
    }

    /// How many calls are still to fail.
    pub fn faults_left(&self) -> usize {
        self.state().faults.len()
    }

    /// Whether every call has taken effect.
    pub fn is_settled(&self) -> bool {
        self.state().late == 0
    }

    /// Removes a slot without a call.
    pub fn lose(&self, slot: &SlotName) {
        self.state().slots.remove(slot);
    }

    /// Ends what runs in a slot, as if by itself.
    pub fn end(&self, slot: &SlotName) {
        self.state().slots.insert(slot.clone(), None);
    }

    /// Makes the provider report a slot as unhealthy.
    pub fn sicken(&self, slot: &SlotName) {
        self.state().unhealthy.insert(slot.clone());
    }

    /// Changes the description of a slot, as another person would.
    pub fn mislabel(&self, slot: &SlotName, description: &str) {
        self.state().described.insert(slot.clone(), description.to_owned());
    }

    /// Sets the log of a slot.
    pub fn write(&self, slot: &SlotName, log: &str) {
        self.state().logs.insert(slot.clone(), log.to_owned());
    }

    /// Makes something run that nothing started.
    pub fn appear(&self, slot: &SlotName) {
        let spec = Spec {
            slot: slot.clone(),
            generation: 0,
            connection: None,
            environment: BTreeMap::new(),
            fresh: false,
            requirements: None,
        };
        self.state().slots.insert(slot.clone(), Some(spec));
    }

    /// Stops answering, like an engine that was stopped.
    pub fn go_away(&self) {
        self.state().is_away = true;
    }

    pub fn come_back(&self) {
        self.state().is_away = false;
    }

    fn answers(&self) -> Result<(), ProviderError> {
        if self.state().is_away { Err(ProviderError::unavailable(REFUSED)) } else { Ok(()) }
    }

    /// The fault of the next call of a kind, if one is set. With `Hang`, this never returns.
    async fn fault(&self, kind: Kind) -> Result<Option<Fault>, ProviderError> {
        self.answers()?;
        let fault = {
            let mut state = self.state();
            let index = state.faults.iter().position(|(of, _)| *of == kind);
            index.map(|index| state.faults.remove(index).1)
        };
        match fault {
            Some(Fault::Error) => Err(ProviderError::permanent("it broke on purpose")),
            Some(Fault::Hang) => std::future::pending().await,
            other => Ok(other),
        }
    }

    /// Changes the slots: at once, never, or after the caller has stopped waiting.
    fn act(&self, fault: Option<Fault>, act: impl FnOnce(&mut BTreeMap<SlotName, Option<Spec>>) + Send + 'static) {
        match fault {
            Some(Fault::NoEffect) => {}
            Some(Fault::Late) => {
                self.state().late += 1;
                let state = self.state.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(LATE).await;
                    let mut state = state.lock().unwrap();
                    act(&mut state.slots);
                    state.late -= 1;
                });
            }
            _ => act(&mut self.state().slots),
        }
    }

    /// Returns the answer, unless the fault is to never answer.
    async fn answer<T>(&self, fault: Option<Fault>, answer: T) -> Result<T, ProviderError> {
        match fault {
            Some(Fault::NoAnswer | Fault::Late) => std::future::pending().await,
            _ => Ok(answer),
        }
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

    fn begin(&self, call: Call) -> Starting<'_> {
        let mut state = self.state();
        state.calls.push(call);
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
        self.answers()?;
        Ok(self.state().has_image)
    }

    async fn pull_image(&self, progress: &Progress) -> Result<(), ProviderError> {
        progress.set(Pulled { layers: 3, layers_done: 1, bytes: 2_000, bytes_done: 500 });
        progress.report("layer 2 Downloading".to_owned());
        self.state().calls.push(Call::Pull);
        self.state().pulling += 1;
        let _pulling = Pulling(self);
        self.turn().await;
        let mut state = self.state();
        let failed = state.pull_errors.pop_front();
        state.has_image |= failed.is_none();
        failed.map_or(Ok(()), Err)
    }

    /// Creates the slot at once.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let _starting = self.begin(Call::Create(spec.slot.clone()));
        self.turn().await;
        let fault = self.fault(Kind::Create).await?;
        let made = spec.slot.clone();
        self.act(fault, move |slots| {
            slots.entry(made).or_insert(None);
        });
        self.answer(fault, format!("fake/{}", spec.slot)).await
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        let _starting = self.begin(Call::Start(spec.slot.clone()));
        self.turn().await;
        let fault = self.fault(Kind::Start).await?;
        if let Some(error) = self.state().start_errors.pop_front() {
            return Err(error);
        }
        let started = spec.clone();
        self.state().unhealthy.remove(&spec.slot);
        self.act(fault, move |slots| drop(slots.insert(started.slot.clone(), Some(started))));
        self.answer(fault, format!("fake/{}", spec.slot)).await
    }

    async fn stop(&self, slot: &SlotName, _fresh: bool) -> Result<Stopped, ProviderError> {
        self.state().calls.push(Call::Stop(slot.clone()));
        self.ends.acquire().await.unwrap().forget();
        let fault = self.fault(Kind::Stop).await?;
        if let Some(error) = self.state().stop_errors.pop_front() {
            return Err(error);
        }
        let stopped = slot.clone();
        self.act(fault, move |slots| drop(slots.get_mut(&stopped).map(Option::take)));
        self.answer(fault, Stopped::Reported).await
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.state().calls.push(Call::Delete(slot.clone()));
        self.ends.acquire().await.unwrap().forget();
        let fault = self.fault(Kind::Delete).await?;
        let deleted = slot.clone();
        self.act(fault, move |slots| drop(slots.remove(&deleted)));
        self.answer(fault, ()).await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        let fault = self.fault(Kind::List).await?;
        // A listing that leaves out existing slots is the worst possible error of a listing.
        let has = if fault == Some(Fault::NoEffect) { BTreeMap::new() } else { self.has() };
        let unhealthy = self.state().unhealthy.clone();
        let described = self.state().described.clone();
        let shown = |(slot, running): (SlotName, bool)| Found {
            unhealthy: unhealthy.contains(&slot),
            description: described.get(&slot).cloned(),
            ..Found::new(slot, running, "as the test says")
        };
        let found = has.into_iter().map(shown).collect();
        self.answer(fault, found).await
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let fault = self.fault(Kind::Inspect).await?;
        let found = self.has().get(slot).map(|running| Found::new(slot.clone(), *running, "as the test says"));
        self.answer(fault, found.filter(|_| fault != Some(Fault::NoEffect))).await
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        self.answers()?;
        Ok(self.state().logs.get(slot).cloned())
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.answers()
    }

    async fn describe(&self, slot: &SlotName, description: &str) {
        self.state().described.insert(slot.clone(), description.to_owned());
    }
}
