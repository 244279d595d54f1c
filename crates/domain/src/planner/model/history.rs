//! A history: batches of jobs and the changes between them, all from one seed. It runs against the reference, and is
//! made smaller while it still fails. With a database, each step is written there too.

use std::collections::BTreeMap;

use super::database::{Database, OutsideChanges};
use super::random::Random;
use super::world::World;
use super::{compare, database, jobs, outside};
use crate::planner::{Ids, Job, JobAnswer, invariants, plan};

/// The database that a history is also written to, if there is one.
type Beside<'a> = Option<&'a mut dyn Database>;

#[derive(Clone, Debug)]
pub struct History {
    pub seed: u64,
    pub steps: Vec<Step>,
}

/// A number stands for a job or a change. The number and the current state determine which one.
#[derive(Clone, Debug)]
pub enum Step {
    Batch {
        jobs: Vec<u64>,
        fate: Fate,
    },
    /// Reads the snapshot again.
    Reload,
    Outside(u64),
    Clock(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Committed,
    /// The process dies before the commit: nothing is written.
    Killed,
    /// The commit succeeds, but the answer is lost: the same jobs are planned again.
    Unknown,
}

/// Where and how a history fails.
#[derive(Clone, Debug)]
pub struct Failure {
    pub step: usize,
    pub what: String,
    /// The steps until the failure.
    pub trace: Vec<String>,
}

impl Failure {
    /// The steps of a failed history, and its error, as text.
    pub fn describe(&self, history: &History) -> String {
        let Failure { step, what, trace } = self;
        let (seed, steps) = (history.seed, history.steps.len());
        format!("{}\nhistory {seed} fails at step {step} of {steps}: {what}", trace.join("\n"))
    }
}

impl History {
    pub fn new(seed: u64, batches: usize) -> Self {
        let mut random = Random::new(seed);
        let mut steps = Vec::new();
        for _ in 0..batches {
            for _ in 0..random.below(4) {
                steps.push(Step::Outside(random.next()));
            }
            if random.percent(6) {
                steps.push(Step::Reload);
            }
            steps.push(Step::Clock(random.next()));
            let jobs = (0..1 + random.below(6)).map(|_| random.next()).collect();
            let fate = match random.below(20) {
                0 => Fate::Killed,
                1 => Fate::Unknown,
                _ => Fate::Committed,
            };
            steps.push(Step::Batch { jobs, fate });
        }
        Self { seed, steps }
    }

    pub fn run(&self) -> Result<(), Failure> {
        self.run_in(&mut World::new(self.seed), None, false)
    }

    /// Runs the history, and counts each kind of job with each answer.
    pub fn run_and_count(&self, seen: &mut BTreeMap<String, u64>) -> Result<(), Failure> {
        let mut world = World::new(self.seed);
        world.seen = Some(std::mem::take(seen));
        let done = self.run_in(&mut world, None, false);
        *seen = world.seen.unwrap_or_default();
        done
    }

    /// Runs the history through a database, which must agree after every step.
    pub fn run_on(&self, database: &mut dyn Database) -> Result<(), Failure> {
        self.run_in(&mut World::new(self.seed), Some(database), false)
    }

    fn run_in(&self, world: &mut World, mut database: Beside<'_>, traced: bool) -> Result<(), Failure> {
        let mut trace = Vec::new();
        if traced {
            trace.push(format!("{:?} {:#?}", world.settings, world.reference.pools));
        }
        if let Some(Err(what)) = database.as_mut().map(|database| database::begin(world, *database)) {
            return Err(Failure { step: 0, what, trace });
        }
        for (at, step) in self.steps.iter().enumerate() {
            let mut note = |line: String| {
                if traced {
                    trace.push(format!("{at}: {line}"));
                }
            };
            let done = match step {
                Step::Outside(seed) => outside(world, *seed, &mut database, &mut note),
                Step::Clock(seed) => {
                    note(outside::pass_time(world, *seed));
                    Ok(())
                }
                Step::Reload => {
                    note("reload".to_owned());
                    reload(world, &mut database).and_then(|()| compare::state(world))
                }
                Step::Batch { jobs, fate } => {
                    let jobs: Vec<Job> = jobs.iter().map(|seed| jobs::job(world, *seed)).collect();
                    if traced {
                        note(format!("{fate:?} {jobs:#?}"));
                    }
                    batches(world, &jobs, *fate, &mut database)
                }
            };
            let done = done.and_then(|()| match &mut database {
                Some(database) if !matches!(step, Step::Clock(_)) => database::agrees(world, *database),
                _ => Ok(()),
            });
            if let Err(what) = done {
                return Err(Failure { step: at, what, trace });
            }
        }
        Ok(())
    }

    /// The smallest failing history that can be found by leaving out steps and jobs.
    pub fn shrink(&self) -> (History, Failure) {
        self.shrink_by(|history, traced| history.run_in(&mut World::new(history.seed), None, traced))
    }

    /// Like `shrink`, for a history that fails on a database.
    pub fn shrink_on(&self, database: &mut dyn Database) -> (History, Failure) {
        self.shrink_by(|history, traced| history.run_in(&mut World::new(history.seed), Some(database), traced))
    }

    fn shrink_by(&self, mut run: impl FnMut(&History, bool) -> Result<(), Failure>) -> (History, Failure) {
        let mut small = self.clone();
        loop {
            let Some(smaller) = small.smaller().find(|history| run(history, false).is_err()) else { break };
            small = smaller;
        }
        match run(&small, true) {
            Err(failure) => (small, failure),
            Ok(()) => (small, Failure { step: 0, what: "it does not fail".to_owned(), trace: Vec::new() }),
        }
    }

    /// Histories with one part less, largest parts first.
    fn smaller(&self) -> impl Iterator<Item = History> {
        let count = self.steps.len();
        let halves = [count / 2, count / 4, count / 8, 1].into_iter().filter(|length| *length > 0);
        let without_steps = halves.flat_map(move |length| {
            (0..count).step_by(length).map(move |from| {
                let mut steps = self.steps.clone();
                steps.drain(from..(from + length).min(count));
                History { seed: self.seed, steps }
            })
        });
        let without_jobs = (0..count).flat_map(move |at| {
            let jobs = if let Step::Batch { jobs, .. } = &self.steps[at] { jobs.len() } else { 0 };
            (0..if jobs > 1 { jobs } else { 0 }).map(move |job| {
                let mut steps = self.steps.clone();
                if let Step::Batch { jobs, .. } = &mut steps[at] {
                    jobs.remove(job);
                }
                History { seed: self.seed, steps }
            })
        });
        without_steps.chain(without_jobs)
    }
}

fn outside(
    world: &mut World,
    seed: u64,
    database: &mut Beside<'_>,
    note: &mut dyn FnMut(String),
) -> Result<(), String> {
    let before = database.is_some().then(|| world.snapshot.clone());
    note(outside::change(world, seed));
    if let Some((database, before)) = database.as_mut().zip(before) {
        database.take_over(&OutsideChanges::between(&before, world), world.now)?;
    }
    compare::state(world)
}

/// Reads the snapshot from the database, or from its own rows.
fn reload(world: &mut World, database: &mut Beside<'_>) -> Result<(), String> {
    match database {
        Some(database) => world.snapshot = database.read()?,
        None => world.reload(),
    }
    Ok(())
}

fn batches(world: &mut World, jobs: &[Job], fate: Fate, database: &mut Beside<'_>) -> Result<(), String> {
    world.past.extend(jobs.iter().cloned());
    batch(world, jobs, fate, database)?;
    if fate != Fate::Unknown {
        return Ok(());
    }
    // The database shows whether the batch was committed.
    if database.is_some() {
        reload(world, database)?;
    }
    batch(world, jobs, fate, database)
}

fn batch(world: &mut World, jobs: &[Job], fate: Fate, database: &mut Beside<'_>) -> Result<(), String> {
    world.ids = world.ids.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    let ids = Ids::new(world.now, world.ids);
    let changes = plan(&world.snapshot, jobs, world.now, ids, &world.settings);
    let mut after = world.reference.clone();
    let expected_plan = after.run(jobs, world.now, &world.settings);
    compare::same_plan(world, &changes, &expected_plan, &after)?;
    if let Some(seen) = &mut world.seen {
        for (job, answer) in jobs.iter().zip(&changes.answers) {
            *seen.entry(kind(job, answer)).or_default() += 1;
        }
    }
    match database {
        Some(database) if fate == Fate::Killed => database.lose(jobs, &changes, world.now)?,
        Some(database) => database.write(jobs, &changes, world.now)?,
        None => {}
    }
    if fate == Fate::Killed {
        return Ok(());
    }
    let usages = invariants::usages(&world.snapshot);
    let check = invariants::BatchCheck::new(&world.snapshot, &changes);
    compare::write(&mut world.snapshot, &changes)?;
    world.snapshot.apply(changes);
    world.reference = after;
    if let Some((of, usage)) = invariants::overgrown(&usages, &invariants::usages(&world.snapshot)).next() {
        return Err(format!("{of} grew to {usage:?}"));
    }
    if let Some(complaint) = check.complaints(&world.snapshot).first() {
        return Err(format!("the check of the batch complains: {complaint}"));
    }
    compare::state(world)
}

/// The kind of a job and its answer, such as `Cleared true`.
fn kind(job: &Job, answer: &JobAnswer) -> String {
    let job = match job {
        Job::Slot(_, event) => format!("{event:?}"),
        Job::End(end) => match &end.cause {
            crate::planner::job::EndCause::GivenUp { overdue, .. } => format!("{overdue:?}"),
            cause => format!("{cause:?}"),
        },
        job => format!("{job:?}"),
    };
    let answer = match answer {
        JobAnswer::Reserve(Ok(reserved)) => {
            let outcome = if reserved.queue_position.is_some() { "waits" } else { "placed" };
            format!("{outcome} new={}", reserved.is_new)
        }
        JobAnswer::Reserve(Err(refusal)) => format!("{refusal:?}"),
        JobAnswer::End(Ok(status)) => format!("{status:?}"),
        JobAnswer::End(Err(refusal)) => format!("{refusal:?}"),
        JobAnswer::Slot(fits) => format!("{fits}"),
        JobAnswer::KeepWarm(report) => {
            let [made, let_go] = [report.made, report.let_go].map(|count| count.min(1));
            let [stopped, replaced] = [report.stopped, report.replaced].map(|count| count.min(1));
            format!("made={made} let_go={let_go} stopped={stopped} replaced={replaced}")
        }
        JobAnswer::Nothing => String::new(),
    };
    let word = |text: &str| text.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
    if answer.contains('=') { format!("{} {answer}", word(&job)) } else { format!("{} {}", word(&job), word(&answer)) }
}
