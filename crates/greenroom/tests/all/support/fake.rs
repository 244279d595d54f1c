//! A provider that runs nothing: it keeps what it was told, and does or fails as the test says.
//!
//! A [`Fault`] makes the next calls of one kind go wrong in one of the ways in which they do out there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use domain::SlotName;
use greenroom::providers::{Found, Image, Progress, Provider, ProviderError, Pulled, Spec, Stopped};
use tokio::sync::Semaphore;

/// What it was told to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Create(SlotName),
    Start(SlotName),
    Stop(SlotName),
    Delete(SlotName),
    Pull,
}

/// What a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Create,
    Start,
    Stop,
    Delete,
    List,
    Inspect,
}

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It says so, and does nothing.
    Error,
    /// It never answers, and does nothing.
    Hang,
    /// It says that it did it, and did not.
    NoEffect,
    /// It did it, and never says so.
    NoAnswer,
    /// It never says so, and does it when nobody waits for it any more.
    Late,
}

const REFUSED: &str = "connection refused";
/// Longer than a test has patience with a call.
const LATE: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub struct Fake {
    state: Arc<Mutex<State>>,
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
    /// Nobody answers.
    is_away: bool,
    needs_image: bool,
    has_image: bool,
    /// Calls whose effect is still to come.
    late: usize,
    pulling: usize,
    starting: usize,
    most_starting: usize,
    /// The calls that go wrong next.
    faults: Vec<(Kind, Fault)>,
    /// What it has, and what runs in it.
    slots: BTreeMap<SlotName, Option<Spec>>,
    described: BTreeMap<SlotName, String>,
    /// What it says is not well, although it runs.
    unwell: BTreeSet<SlotName>,
    /// What has been written in each slot.
    logs: BTreeMap<SlotName, String>,
}

/// A start that is under way, however it ends.
struct Starting<'a>(&'a Fake);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.state().starting -= 1;
    }
}

/// A pull that is under way, however it ends.
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

    /// What it was told to do with one slot.
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

    /// How many pulls are under way.
    pub fn pulling(&self) -> usize {
        self.state().pulling
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
        self.state().slots.get(slot).cloned().flatten()
    }

    /// Everything that it has, and whether something runs in it.
    pub fn has(&self) -> BTreeMap<SlotName, bool> {
        self.state().slots.iter().map(|(slot, spec)| (slot.clone(), spec.is_some())).collect()
    }

    /// Makes the next call of a kind go wrong.
    pub fn break_next(&self, kind: Kind, fault: Fault) {
        self.state().faults.push((kind, fault));
    }

    /// How many calls are still to go wrong.
    pub fn faults_left(&self) -> usize {
        self.state().faults.len()
    }

    /// Whether everything that it was told has had its effect.
    pub fn is_settled(&self) -> bool {
        self.state().late == 0
    }

    /// Something happens to a slot behind everyone's back.
    pub fn lose(&self, slot: &SlotName) {
        self.state().slots.remove(slot);
    }

    /// What runs in a slot ends by itself.
    pub fn end(&self, slot: &SlotName) {
        self.state().slots.insert(slot.clone(), None);
    }

    /// What runs in a slot is not well, as far as the provider knows.
    pub fn sicken(&self, slot: &SlotName) {
        self.state().unwell.insert(slot.clone());
    }

    /// Somebody else describes a slot.
    pub fn mislabel(&self, slot: &SlotName, description: &str) {
        self.state().described.insert(slot.clone(), description.to_owned());
    }

    /// What runs in a slot has written this.
    pub fn write(&self, slot: &SlotName, log: &str) {
        self.state().logs.insert(slot.clone(), log.to_owned());
    }

    /// Something runs that nobody started.
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

    /// Answers nothing any more, like an engine that was stopped.
    pub fn go_away(&self) {
        self.state().is_away = true;
    }

    pub fn come_back(&self) {
        self.state().is_away = false;
    }

    fn answers(&self) -> Result<(), ProviderError> {
        if self.state().is_away { Err(ProviderError::unavailable(REFUSED)) } else { Ok(()) }
    }

    /// How the next call of a kind goes wrong, if it does. One that hangs never comes back from here.
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

    /// Does something to what it has: now, never, or when nobody waits for it any more.
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

    /// Says what was done, unless nobody is to hear it.
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
        progress.say("layer 2 Downloading".to_owned());
        self.state().calls.push(Call::Pull);
        self.state().pulling += 1;
        let _pulling = Pulling(self);
        self.turn().await;
        let mut state = self.state();
        let failed = state.pull_errors.pop_front();
        state.has_image |= failed.is_none();
        failed.map_or(Ok(()), Err)
    }

    /// What it is made of is there at once.
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
        self.state().unwell.remove(&spec.slot);
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
        // An answer without what is there is the worst that a listing can do.
        let has = if fault == Some(Fault::NoEffect) { BTreeMap::new() } else { self.has() };
        let unwell = self.state().unwell.clone();
        let described = self.state().described.clone();
        let shown = |(slot, running): (SlotName, bool)| Found {
            unwell: unwell.contains(&slot),
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
