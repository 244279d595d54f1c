//! This keeper reconciles the queues and groups at AWS with the table that holds the state of each runner. For each set
//! of runners that pools use, it acts when:
//! - an idle runner sent a heartbeat within `healthy_within`, and its announcement has ended or ends soon: the runner
//!   is announced again, with a new end. So a runner whose message was lost with a process is announced again within a
//!   minute, once;
//! - a runner has been claimed for longer than `claim_timeout`, and its agent has not confirmed the claim: the runner
//!   becomes idle if it sent a heartbeat within `healthy_within`, and is ended otherwise;
//! - an idle runner has sent no heartbeat for `claim_timeout`: it is ended;
//! - a machine of a group is not in the table: it is recorded as created. A machine that has been in this state for
//!   longer than `created_timeout` is ended;
//! - an idle runner has expired, and its class has more than `min_idle`: it is ended, one of each group per run;
//! - a class has fewer than `min_idle` runners that are idle or created: its on-demand group grows by the difference;
//! - a runner has ended in the table, and its machine is still in its group: the machine is ended again.
//!
//! Each of these is one conditional change in the table, made before the machine is touched. So a runner that was
//! claimed in the meantime stays with its bot.

use std::time::Duration;

use async_trait::async_trait;

use super::{Keeper, KeeperError, RunReport};
use crate::providers::ec2::Runners;

/// Short enough to renew an announcement in time: renewal is due some seconds before its end.
const INTERVAL: Duration = Duration::from_secs(5);
/// If AWS does not answer within this time, the next run asks again.
const TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub struct RunnersKeeper {
    runners: Runners,
}

impl RunnersKeeper {
    pub fn new(runners: Runners) -> Self {
        Self { runners }
    }
}

#[async_trait]
impl Keeper for RunnersKeeper {
    fn name(&self) -> &'static str {
        "runners"
    }

    fn every(&self) -> Duration {
        INTERVAL
    }

    async fn run(&self) -> Result<RunReport, KeeperError> {
        let mut report = RunReport::of([
            ("announced", 0),
            ("fell_back", 0),
            ("reaped", 0),
            ("let_go", 0),
            ("created", 0),
            ("grown", 0),
        ]);
        let passes = self
            .runners
            .each()
            .iter()
            .map(|(name, pool)| async move { (name, tokio::time::timeout(TIMEOUT, pool.run_keeper()).await) });
        for (name, stats) in futures_util::future::join_all(passes).await {
            match stats {
                Ok(Ok(stats)) => {
                    let aws::KeeperStats { announced, fell_back, reaped, let_go, created, grown } = stats;
                    for (what, count) in [
                        ("announced", announced),
                        ("fell_back", fell_back),
                        ("reaped", reaped),
                        ("let_go", let_go),
                        ("created", created),
                        ("grown", grown),
                    ] {
                        report.add(what, count.into());
                    }
                }
                Ok(Err(error)) => {
                    report.complaints.push(format!("the runners of {name} could not be reconciled: {error}"))
                }
                Err(_) => report.complaints.push(format!(
                    "the runners of {name} could not be reconciled: AWS did not answer within {} s",
                    TIMEOUT.as_secs()
                )),
            }
        }
        Ok(report)
    }
}
