//! Runners: the queues and groups at AWS against the table that says what each runner is. At each place that pools have
//! runners at, it acts when
//! - an idle runner was heard of within `healthy_within`, and its announcement ends soon or is over: it is announced again,
//!   under a new end. So one whose message was lost with a process is there again within a minute, once;
//! - a runner has been claimed for longer than `claim_timeout` and its agent has not confirmed it: it is idle again if it
//!   was heard of within `healthy_within`, and ended otherwise;
//! - an idle runner was not heard of for `claim_timeout`: it is ended;
//! - a machine of a group is not in the table: it is noted as coming up. One that has been coming up for longer than
//!   `created_timeout` is ended;
//! - an idle runner is past its time, and its class has more than `min_idle`: it is let go, one of each group at a look;
//! - a class has fewer than `min_idle` that are idle or coming up: its group on demand grows by what is missing;
//! - a runner is at an end in the table and its machine is still in its group: it is ended once more.
//!
//! Each of these is one conditional change in the table, made before the machine is touched: a runner that was claimed
//! since the look is left to its bot.

use std::time::Duration;

use async_trait::async_trait;

use super::{Keeper, KeeperError, RunReport};
use crate::providers::ec2::Runners;

/// An announcement is renewed some seconds before its end: this has to be often enough.
const EVERY: Duration = Duration::from_secs(5);
/// AWS answers within this, or is asked again at the next look.
const PATIENCE: Duration = Duration::from_mins(1);

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
        EVERY
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
            .map(|(name, pool)| async move { (name, tokio::time::timeout(PATIENCE, pool.keep()).await) });
        for (name, kept) in futures_util::future::join_all(passes).await {
            match kept {
                Ok(Ok(kept)) => {
                    let aws::Kept { announced, fell_back, reaped, let_go, created, grown } = kept;
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
                Ok(Err(error)) => report.complaints.push(format!("the runners of {name} cannot be kept: {error}")),
                Err(_) => report.complaints.push(format!(
                    "the runners of {name} cannot be kept: AWS did not answer within {} s",
                    PATIENCE.as_secs()
                )),
            }
        }
        Ok(report)
    }
}
