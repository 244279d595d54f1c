//! Claims several runners at once, all or none. Each claimed runner is held until all are claimed, and no agent sees
//! its run before that. So a failed attempt does not start any bot.

use domain::Requirements;
use futures_util::future::join_all;

use crate::claim::Claimed;
use crate::table::Changed;
use crate::{AwsError, Holder, Runner, RunnerPool};

impl RunnerPool {
    /// Claims a runner for each slot, or none at all. On failure, the claimed runners become idle again with a new
    /// expiry.
    pub async fn claim_all(
        &self,
        wanted: Option<&Requirements>,
        holders: &[Holder],
    ) -> Result<Option<Vec<Runner>>, AwsError> {
        if let [holder] = holders {
            return Ok(self.claim(wanted, holder).await?.map(|runner| vec![runner]));
        }
        let Some(held) = self.hold_all(wanted, holders).await? else { return Ok(None) };
        let running = held.into_iter().zip(holders).map(|(claimed, holder)| self.run_held(claimed, wanted, holder));
        let running = join_all(running).await;
        let (mut all, mut failed) = (Vec::new(), None);
        for runner in running {
            match runner {
                Ok(Some(runner)) => all.push(runner),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        if all.len() == holders.len() {
            return Ok(Some(all));
        }
        // Some agents have acknowledged by now, so `stop` asks them to release their runners.
        for stopped in join_all(holders.iter().map(|holder| self.stop(&holder.slot))).await {
            failed = failed.or(stopped.err());
        }
        failed.map_or(Ok(None), Err)
    }

    /// Claims a healthy runner for each slot. Their agents do not see the runs yet.
    async fn hold_all(
        &self,
        wanted: Option<&Requirements>,
        holders: &[Holder],
    ) -> Result<Option<Vec<Claimed>>, AwsError> {
        let search = async |holder| self.claim_next(&mut self.search(wanted), holder, true).await;
        let found = join_all(holders.iter().map(search)).await;
        let (mut held, mut failed) = (Vec::new(), None);
        for claimed in found {
            match claimed {
                Ok(claimed) => held.extend(claimed),
                Err(error) => failed = Some(error),
            }
        }
        if held.len() == holders.len() {
            return Ok(Some(held));
        }
        for back in join_all(held.iter().map(|claimed| self.give_back(&claimed.runner))).await {
            failed = failed.or(back.err());
        }
        held.into_iter().for_each(|claimed| drop(claimed.keep()));
        failed.map_or(Ok(None), Err)
    }

    /// Lets the agent of a held runner see its run, and waits for the acknowledgement. If that fails, claims another
    /// runner.
    async fn run_held(
        &self,
        claimed: Claimed,
        wanted: Option<&Requirements>,
        holder: &Holder,
    ) -> Result<Option<Runner>, AwsError> {
        let next = Runner { held: false, ..claimed.runner.clone() };
        if self.0.table.change(&claimed.runner, &next).await? == Changed::Done {
            self.0.signals.notify(&next.instance);
            if let Some(runner) = self.registered(claimed).await? {
                return Ok(Some(runner));
            }
        } else {
            claimed.keep();
        }
        self.claim(wanted, holder).await
    }
}
