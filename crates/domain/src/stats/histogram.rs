//! A histogram with fixed buckets, so that two histograms can be added up. Its percentiles are as exact for the sum as
//! for a part, which is not so for an average of percentiles.
//!
//! Values below 8 have a bucket each. Above, each power of two has 8 buckets of the same width, so a bucket is at most
//! an eighth as wide as its values are large.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets for each power of two.
const PARTS: u64 = 8;
const PART_BITS: u32 = PARTS.ilog2();
/// Larger values are counted as this one. In milliseconds these are 49 days.
const LARGEST: u64 = u32::MAX as u64;

/// How many values are in each bucket. Only buckets with values are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Histogram(BTreeMap<u16, u64>);

/// The number of the bucket that a value belongs to.
fn bucket_of(value: u64) -> u16 {
    let value = value.min(LARGEST);
    let bucket = match value.checked_ilog2() {
        Some(power) if power >= PART_BITS => {
            let shift = power - PART_BITS;
            PARTS * u64::from(shift) + (value >> shift)
        }
        _ => value,
    };
    u16::try_from(bucket).unwrap_or(u16::MAX)
}

/// The smallest and the largest value of a bucket.
fn bounds_of(bucket: u16) -> (u64, u64) {
    let bucket = u64::from(bucket).min(u64::from(bucket_of(LARGEST)));
    if bucket < PARTS {
        return (bucket, bucket);
    }
    let shift = bucket / PARTS - 1;
    let part = bucket - PARTS * shift;
    (part << shift, ((part + 1) << shift) - 1)
}

impl Histogram {
    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        let count = self.0.entry(bucket_of(value)).or_default();
        *count = count.saturating_add(1);
    }

    /// Adds all values of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (bucket, more) in &other.0 {
            let count = self.0.entry(*bucket).or_default();
            *count = count.saturating_add(*more);
        }
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many values it has.
    pub fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The middle of the bucket in which this percentile is, from 0 to 100. `None` if there are no values.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let count = u128::from(self.count());
        let rank = (count * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().find(|(_, count)| {
            seen += u128::from(**count);
            seen >= rank
        });
        bucket.map(|(bucket, _)| {
            let (smallest, largest) = bounds_of(*bucket);
            smallest + (largest - smallest) / 2
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_value_is_in_one_bucket_and_the_buckets_follow_each_other() {
        let mut next = 0;
        for bucket in 0..=bucket_of(LARGEST) {
            let (smallest, largest) = bounds_of(bucket);
            assert_eq!(smallest, next, "bucket {bucket} begins where the one before ends");
            assert_eq!((bucket_of(smallest), bucket_of(largest)), (bucket, bucket));
            assert!((largest - smallest) * PARTS <= smallest, "bucket {bucket} is narrow");
            next = largest + 1;
        }
        assert_eq!(next, LARGEST + 1);
        assert_eq!(bucket_of(u64::MAX), bucket_of(LARGEST));
    }

    #[test]
    fn a_histogram_without_values_has_no_percentile_and_one_value_is_each_percentile() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), None);
        histogram.add(3);
        assert_eq!([0, 50, 95, 100].map(|percent| histogram.percentile(percent)), [Some(3); 4]);
    }

    #[test]
    fn a_bucket_of_another_version_does_not_break_the_percentile() {
        let histogram: Histogram = serde_json::from_str(r#"{"65535": 2}"#).unwrap_or_default();
        assert_eq!(histogram.count(), 2);
        assert!(histogram.percentile(50).is_some_and(|value| value <= LARGEST));
    }

    fn of(values: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        histogram
    }

    proptest! {
        #[test]
        fn merged_histograms_are_the_histogram_of_all_values_and_their_percentiles_are_in_the_true_bucket(
            parts in proptest::collection::vec(
                proptest::collection::vec(prop_oneof![0..20_u64, 0..2_000_u64, 0..10_000_000_u64], 0..40), 1..8),
            percent in 0..=100_u64,
        ) {
            let mut merged = Histogram::default();
            parts.iter().for_each(|part| merged.merge(&of(part)));
            let mut all: Vec<u64> = parts.concat();
            prop_assert_eq!(&merged, &of(&all));
            prop_assert_eq!(merged.count(), all.len() as u64);
            all.sort_unstable();
            let rank = (all.len() as u64 * percent).div_ceil(100).max(1) as usize;
            let found = merged.percentile(percent);
            prop_assert_eq!(found.map(bucket_of), all.get(rank - 1).map(|value| bucket_of(*value)));
            let stored = serde_json::to_string(&merged).unwrap_or_default();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&stored).ok(), Some(merged));
        }
    }
}
