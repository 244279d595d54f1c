//! The disasters of the servers, one after the other, chosen by a seed. The same seed repeats the same disasters.

use std::fmt;
use std::time::{Duration, Instant};

use greenroom::random::Random;

use super::dice;
use crate::support::{PrivatePostgres, PrivateRedis, Replicas, until};

/// How often PostgreSQL and Redis are restarted in a long run.
const ROUND: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Disasters {
    random: Random,
    kills: usize,
    freezes: usize,
    /// Replicas that ended instead of serving, because they were started while the database was stopped.
    failed_starts: usize,
    postgres_restarts: usize,
    redis_restarts: usize,
    pub replicas: Replicas,
    postgres: PrivatePostgres,
    redis: PrivateRedis,
}

impl fmt::Display for Disasters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kills, freezes, failed_starts, postgres_restarts, redis_restarts, .. } = self;
        write!(
            f,
            "  {kills} replicas killed ({failed_starts} did not start again at once), {freezes} stopped for a while; \
             PostgreSQL restarted {postgres_restarts} times, Redis {redis_restarts}"
        )
    }
}

impl Disasters {
    pub fn new(replicas: Replicas, postgres: PrivatePostgres, redis: PrivateRedis, random: Random) -> Self {
        let [kills, freezes, failed_starts, postgres_restarts, redis_restarts] = [0; 5];
        Self { random, kills, freezes, failed_starts, postgres_restarts, redis_restarts, replicas, postgres, redis }
    }

    /// Each round restarts PostgreSQL once and Redis once. Replicas are killed all the time, and in a long run one is
    /// sometimes suspended.
    pub async fn happen(&mut self, lasts: Duration) {
        let begun = Instant::now();
        let round = ROUND.min(lasts);
        while begun.elapsed() < lasts {
            self.pause(1_000, 1_500).await;
            let rounds = begun.elapsed().div_duration_f64(round);
            if rounds > self.postgres_restarts as f64 + 0.3 {
                self.postgres_goes().await;
            } else if rounds > self.redis_restarts as f64 + 0.6 {
                self.redis_goes().await;
            } else if lasts > ROUND && dice(&self.random, 5) == 0 {
                self.replica_stands_still().await;
            } else {
                self.replica_goes().await;
            }
        }
    }

    async fn pause(&self, least_ms: u64, more_ms: u64) {
        tokio::time::sleep(Duration::from_millis(least_ms + dice(&self.random, more_ms))).await;
    }

    async fn kill_any(&mut self) -> usize {
        let any = dice(&self.random, self.replicas.len() as u64) as usize;
        self.replicas.kill(any).await;
        self.kills += 1;
        any
    }

    async fn replica_goes(&mut self) {
        let killed = self.kill_any().await;
        self.pause(0, 1_500).await;
        assert!(self.replicas.try_start(killed).await, "a replica did not restart");
    }

    /// Suspends a replica, sometimes for longer than its leases last. Then others have taken over what it believes to
    /// hold.
    async fn replica_stands_still(&mut self) {
        let any = dice(&self.random, self.replicas.len() as u64) as usize;
        self.replicas.freeze(any);
        self.pause(1_000, 19_000).await;
        self.replicas.thaw(any);
        self.freezes += 1;
    }

    /// Restarts PostgreSQL, and kills a replica as well, which is started again until it serves.
    async fn postgres_goes(&mut self) {
        let killed = self.kill_any().await;
        let crashes = self.postgres_restarts % 2 == 1;
        let away = Duration::from_millis(dice(&self.random, 2_000));
        let restart = async {
            if crashes {
                self.postgres.crash().await;
            } else {
                self.postgres.stop().await;
            }
            tokio::time::sleep(away).await;
            self.postgres.start_again().await;
        };
        let start = async {
            let mut failed = 0;
            until("the replica serves again", async || {
                let serves = self.replicas.try_start(killed).await;
                failed += usize::from(!serves);
                serves
            })
            .await;
            failed
        };
        let ((), failed) = tokio::join!(restart, start);
        self.failed_starts += failed;
        self.postgres_restarts += 1;
    }

    /// Stops Redis, and starts it again after a while.
    async fn redis_goes(&mut self) {
        self.redis.kill();
        self.pause(500, 2_000).await;
        self.redis.start_again().await;
        self.redis_restarts += 1;
    }
}
