//! One pass of the keeper, which brings queues, table and machines into agreement. It announces idle runners again
//! before their announcement expires and takes back claims that were not acknowledged. It terminates machines that
//! never registered, send no heartbeats, or were idle too long. Each change is conditional on the state that was read,
//! so a concurrent change by another process wins.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::UsageClass;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use crate::clock::{after, before};
use crate::groups::Group;
use crate::steps::Step;
use crate::table::Changed;
use crate::{AwsError, Runner, RunnerPool, RunnerState};

/// An announcement is renewed this long before it expires, which covers the next two passes.
const RENEWED_BEFORE: Duration = Duration::from_secs(10);
/// How many runners are handled at the same time.
const AT_ONCE: usize = 16;

/// The result of one pass of the keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeeperStats {
    /// Idle runners that were announced again.
    pub announced: u32,
    /// Runners that are idle again because their claim was not acknowledged.
    pub fell_back: u32,
    /// Runners that were terminated because they did not register or sent no heartbeats.
    pub reaped: u32,
    /// Runners that were terminated because they were idle too long.
    pub let_go: u32,
    /// Machines that the keeper saw for the first time.
    pub created: u32,
    /// Groups that grew.
    pub grown: u32,
}

/// The runners as the index lists them.
struct Listed {
    created: Vec<Runner>,
    idle: Vec<Runner>,
    claimed: Vec<Runner>,
    running: Vec<Runner>,
}

/// The action on one runner.
enum Done {
    Announced,
    FellBack,
    Reaped,
    Nothing,
}

impl KeeperStats {
    fn add(&mut self, done: &Done) {
        match done {
            Done::Announced => self.announced += 1,
            Done::FellBack => self.fell_back += 1,
            Done::Reaped => self.reaped += 1,
            Done::Nothing => {}
        }
    }
}

impl RunnerPool {
    /// Does one pass. A failure does not stop the other work; the first error is returned.
    pub async fn run_keeper(&self) -> Result<KeeperStats, AwsError> {
        let of = |state| self.0.table.runners(state);
        let (created, idle, claimed, running) = tokio::try_join!(
            of(RunnerState::Created),
            of(RunnerState::Idle),
            of(RunnerState::Claimed),
            of(RunnerState::Running)
        )
        .inspect_err(|_| self.reset_listening())?;
        let listed = Listed { created, idle, claimed, running };
        self.0.steps.done(Step::Listed).await;
        let (mut stats, mut failed) = (KeeperStats::default(), None);
        let excess = self.excess_idle(&listed.idle);
        for done in [
            self.renew(&listed, &excess).await,
            self.return_unacknowledged_claims(&listed).await,
            self.reap_unregistered(&listed).await,
        ] {
            match done {
                Ok(done) => done.iter().for_each(|done| stats.add(done)),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        for runner in excess {
            match self.terminate(runner).await {
                Ok(changed) => stats.let_go += u32::from(changed == Changed::Done),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match self.reconcile_machines(&listed, &mut stats).await {
            Ok(()) => failed.map_or(Ok(stats), Err),
            Err(error) => Err(failed.unwrap_or(error)),
        }
    }

    /// From each group, the runner that passed its idle limit first, if the group has more idle runners than its
    /// minimum.
    fn excess_idle<'a>(&self, idle: &'a [Runner]) -> Vec<&'a Runner> {
        let mut by_group: HashMap<&str, Vec<&Runner>> = HashMap::new();
        for runner in idle {
            by_group.entry(&runner.group).or_default().push(runner);
        }
        let now = self.now();
        let oldest = |(group, runners): (&str, Vec<&'a Runner>)| {
            let min_idle = match self.0.settings.class_of_group(group) {
                Some((class, usage @ UsageClass::OnDemand)) if self.0.settings.group(&class.name, usage) == *group => {
                    class.min_idle as usize
                }
                _ => 0,
            };
            let is_over = |runner: &&Runner| runner.idle_until.is_some_and(|until| until <= now);
            let oldest = runners.iter().copied().filter(is_over).min_by_key(|runner| runner.idle_until);
            oldest.filter(|_| runners.len() > min_idle)
        };
        by_group.into_iter().filter_map(oldest).collect()
    }

    /// Announces idle runners again whose announcement expires soon. Terminates those that send no heartbeats.
    async fn renew(&self, listed: &Listed, excess: &[&Runner]) -> Result<Vec<Done>, AwsError> {
        let soon = after(self.now(), RENEWED_BEFORE);
        let is_excess = |runner: &Runner| excess.iter().any(|excess| excess.instance == runner.instance);
        let is_due = |runner: &&Runner| runner.expires_at <= soon && !is_excess(runner);
        let due: Vec<_> = listed.idle.iter().filter(is_due).collect();
        let heartbeats = self.last_heartbeats(&due).await?;
        let renewed = due.iter().map(|runner| self.renew_one(runner, heartbeats.get(&runner.instance).copied()));
        all(renewed.collect()).await
    }

    async fn renew_one(&self, runner: &Runner, last_heartbeat: Option<Timestamp>) -> Result<Done, AwsError> {
        if self.is_healthy(last_heartbeat) {
            return self.announce_again(runner).await;
        }
        if self.has_heartbeat_within(Some(last_heartbeat.unwrap_or(runner.since)), self.0.settings.pace.claim) {
            return Ok(Done::Nothing);
        }
        self.reap(runner).await
    }

    async fn announce_again(&self, runner: &Runner) -> Result<Done, AwsError> {
        let next = Runner { expires_at: self.new_expiry(), ..runner.clone() };
        if self.0.table.change(runner, &next).await? != Changed::Done {
            return Ok(Done::Nothing);
        }
        self.0.steps.done(Step::Renewed).await;
        self.announce(&next).await;
        Ok(Done::Announced)
    }

    /// Takes back claims that were not acknowledged in time. Healthy runners become idle; others are terminated.
    async fn return_unacknowledged_claims(&self, listed: &Listed) -> Result<Vec<Done>, AwsError> {
        let long_ago = before(self.now(), self.0.settings.pace.claim);
        let over: Vec<_> = listed.claimed.iter().filter(|runner| runner.since <= long_ago).collect();
        let heartbeats = self.last_heartbeats(&over).await?;
        let returned = over
            .iter()
            .map(|runner| self.return_unacknowledged_claim(runner, heartbeats.get(&runner.instance).copied()));
        all(returned.collect()).await
    }

    async fn return_unacknowledged_claim(
        &self,
        runner: &Runner,
        last_heartbeat: Option<Timestamp>,
    ) -> Result<Done, AwsError> {
        if !self.is_healthy(last_heartbeat) {
            return self.reap(runner).await;
        }
        let changed = self.give_back(runner).await?;
        Ok(if changed == Changed::Done { Done::FellBack } else { Done::Nothing })
    }

    /// Terminates machines whose agent never registered.
    async fn reap_unregistered(&self, listed: &Listed) -> Result<Vec<Done>, AwsError> {
        let long_ago = before(self.now(), self.0.settings.pace.created);
        let over = listed.created.iter().filter(|runner| runner.since.max(self.listening_since()) <= long_ago);
        all(over.map(|runner| self.reap(runner)).collect()).await
    }

    async fn reap(&self, runner: &Runner) -> Result<Done, AwsError> {
        let changed = self.terminate(runner).await?;
        Ok(if changed == Changed::Done { Done::Reaped } else { Done::Nothing })
    }

    async fn last_heartbeats(&self, runners: &[&Runner]) -> Result<HashMap<String, Timestamp>, AwsError> {
        let instances: Vec<_> = runners.iter().map(|runner| runner.instance.as_str()).collect();
        self.0.table.last_heartbeats(&instances).await
    }

    /// Compares the machines of Auto Scaling with the table.
    async fn reconcile_machines(&self, listed: &Listed, stats: &mut KeeperStats) -> Result<(), AwsError> {
        let groups = self.0.groups.all().await?;
        let inserted = self.insert_new_machines(&groups, listed).await;
        let registered: Vec<_> = listed.idle.iter().chain(&listed.claimed).chain(&listed.running).collect();
        stats.grown += self.keep_idle(&groups, &registered).await?;
        stats.created += inserted?;
        Ok(())
    }

    /// Adds unknown machines to the table as created runners. Ends machines of terminated runners again.
    async fn insert_new_machines(&self, groups: &[Group], listed: &Listed) -> Result<u32, AwsError> {
        let all = [&listed.created, &listed.idle, &listed.claimed, &listed.running];
        let known: HashSet<_> = all.into_iter().flatten().map(|runner| runner.instance.as_str()).collect();
        let machines = groups.iter().flat_map(|group| &group.instances);
        let (mut created, mut failed) = (0, None);
        for machine in machines.filter(|machine| !machine.going && !known.contains(machine.id.as_str())) {
            match self.0.table.runner(&machine.id).await? {
                Some(runner) if runner.state == RunnerState::Terminated => {
                    // A failure here must not stop the work on other machines.
                    failed = failed.or(self.finish(&runner).await.err());
                }
                Some(_) => {}
                None => {
                    let (group, kind) = (&machine.group, &machine.instance_type);
                    let made = Runner::created(&self.0.settings, &machine.id, group, kind, self.now());
                    let Some(runner) = made else { continue };
                    created += u32::from(self.0.table.insert(&runner).await?);
                }
            }
        }
        failed.map_or(Ok(created), Err)
    }
}

/// Runs all actions, at most `AT_ONCE` at a time.
async fn all(acts: Vec<impl Future<Output = Result<Done, AwsError>>>) -> Result<Vec<Done>, AwsError> {
    let done: Vec<_> = stream::iter(acts).buffer_unordered(AT_ONCE).collect().await;
    done.into_iter().collect()
}
