//! The estimate of a bot's wait in the queue. The plan, the answers of the API and the explanations all use it, so that
//! they never differ.

use std::time::Duration;

use crate::{Pool, Requirements};

/// How long a bot at this position of its platform's queue will probably wait. Each pool that could serve it frees
/// slots at a rate, which follows from the number of its slots and how long bots hold them; `position` bots need one
/// each. A pool in which no bot has held a slot yet counts with the expected duration. If none of the pools has a slot
/// yet, one slot is assumed.
///
/// `pools` are those of the bot's platform. `only_pool` is the only one that may serve the bot, if there is one.
pub fn estimated_wait_ms<'a>(
    position: i64,
    only_pool: Option<&str>,
    requirements: Option<&Requirements>,
    pools: impl IntoIterator<Item = &'a Pool>,
    expected: Duration,
) -> i64 {
    let pools = pools.into_iter();
    let serving = pools.filter(|pool| only_pool.is_none_or(|only| only == pool.name) && pool.could_fit(requirements));
    at_rate(position, serving.map(|pool| (pool.mean_hold_ms, pool.slots)), expected)
}

/// The same for the mean hold time and the number of slots of each pool that could serve the bot.
pub(crate) fn at_rate(position: i64, pools: impl Iterator<Item = (Option<i64>, i64)>, expected: Duration) -> i64 {
    let expected_ms = (expected.as_millis() as f64).max(1.0);
    let hold_ms = |mean: Option<i64>| mean.map_or(expected_ms, |mean| mean.max(1) as f64);
    let mut rates: Vec<f64> = pools.map(|(mean, slots)| slots.max(0) as f64 / hold_ms(mean)).collect();
    // The sum must not depend on the order of the pools.
    rates.sort_by(f64::total_cmp);
    let freed_in_a_ms: f64 = rates.iter().sum();
    let freed_in_a_ms = if freed_in_a_ms > 0.0 { freed_in_a_ms } else { 1.0 / expected_ms };
    (position as f64 / freed_in_a_ms).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(position: i64, pools: &[(Option<i64>, i64)]) -> i64 {
        at_rate(position, pools.iter().copied(), Duration::from_mins(30))
    }

    #[test]
    fn the_estimate_grows_with_the_queue_and_shrinks_with_the_pool() {
        assert_eq!(estimate(1, &[(Some(60_000), 1)]), 60_000);
        assert_eq!(estimate(3, &[(Some(60_000), 10)]), 18_000);
        // Two pools serve one queue: three slots per minute and one slot per half minute free five slots per minute.
        assert_eq!(estimate(5, &[(Some(60_000), 3), (Some(30_000), 1)]), 60_000);
    }

    #[test]
    fn before_any_bot_has_held_a_slot_the_expected_duration_counts() {
        assert_eq!(estimate(3, &[(None, 10)]), 540_000);
        assert_eq!(estimate(2, &[(Some(1_800_000), 1), (None, 1)]), 1_800_000);
        assert_eq!(estimate(1, &[(None, 0)]), 1_800_000);
        assert_eq!(estimate(1, &[]), 1_800_000);
    }
}
