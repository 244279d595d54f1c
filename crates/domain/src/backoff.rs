//! How long to wait before the next try. Each delay is longer than the one before, up to a maximum. Every part of
//! Greenroom that retries with growing delays uses this module.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// After this many tries, every delay in use has reached its maximum.
const MOST_SKIPPED: u32 = 64;

/// The delays of one series of tries. The series does not end: the caller decides when to give up.
#[derive(Debug)]
pub struct Backoff {
    delays: ExponentialBackoff,
    longest: Duration,
}

impl Backoff {
    /// A series that begins with `first` and doubles up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self::growing(first, longest, 2.0)
    }

    /// A series that begins with `first` and in which each delay is `factor` times the one before, up to `longest`.
    pub fn growing(first: Duration, longest: Duration, factor: f32) -> Self {
        let delays = ExponentialBuilder::new()
            .with_factor(factor)
            .with_min_delay(first)
            .with_max_delay(longest)
            .without_max_times();
        Self { delays: delays.build(), longest }
    }

    /// The same series after `tries` tries, for a stored count.
    pub fn after(first: Duration, longest: Duration, tries: u32) -> Self {
        let mut backoff = Self::new(first, longest);
        for _ in 0..tries.min(MOST_SKIPPED) {
            backoff.next_delay();
        }
        backoff
    }

    /// The delay before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delays.next().unwrap_or(self.longest);
        // The library multiplies with seven digits of precision: 40 ms times 1.5 would be slightly less than 60 ms.
        u64::try_from((delay.as_nanos() + 500) / 1000).map_or(delay, Duration::from_micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(mut backoff: Backoff, count: usize) -> Vec<u128> {
        (0..count).map(|_| backoff.next_delay().as_millis()).collect()
    }

    #[test]
    fn delays_double_up_to_the_longest_and_never_end() {
        let (first, longest) = (Duration::from_millis(200), Duration::from_secs(10));
        let found = delays(Backoff::new(first, longest), 1000);
        assert_eq!(found[..7], [200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert!(found[7..].iter().all(|delay| *delay == 10_000), "{found:?}");
    }

    #[test]
    fn a_series_goes_on_after_tries_that_were_stored() {
        let (first, longest) = (Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(delays(Backoff::after(first, longest, 0), 2), [1000, 2000]);
        assert_eq!(delays(Backoff::after(first, longest, 3), 2), [8000, 10_000]);
        assert_eq!(delays(Backoff::after(first, longest, u32::MAX), 1), [10_000]);
    }

    #[test]
    fn delays_grow_by_the_factor_that_is_given() {
        let (first, longest) = (Duration::from_millis(40), Duration::from_secs(1));
        assert_eq!(delays(Backoff::growing(first, longest, 1.5), 4), [40, 60, 90, 135]);
        assert_eq!(delays(Backoff::growing(first, longest, 3.0), 5), [40, 120, 360, 1000, 1000]);
    }
}
