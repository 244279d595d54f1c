//! Medians and percentiles.

use std::time::Duration;

/// The value below which this share of all values lies.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=101).rev().map(f64::from).collect();
        assert_eq!((median(&values), percentile(&values, 0.99), percentile(&values, 1.0)), (51.0, 100.0, 101.0));
        assert!(median(&[]).is_nan());
    }
}
