//! Times as texts for people.

use std::time::Duration;

use jiff::Timestamp;

/// A time, and how far away it is.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let shown = at.strftime("%Y-%m-%dT%H:%M:%SZ");
    let distance = length(distance(at, now));
    if at < now { format!("{shown} ({distance} ago)") } else { format!("{shown} (in {distance})") }
}

/// The time that is `length` after `at`.
pub fn after(at: Timestamp, length: Duration) -> Timestamp {
    at.saturating_add(length).unwrap_or(Timestamp::MAX)
}

/// The whole seconds between two times.
pub fn distance(one: Timestamp, other: Timestamp) -> Duration {
    Duration::from_secs(one.duration_since(other).as_secs().unsigned_abs())
}

/// A length of time in its largest useful unit.
pub fn length(length: Duration) -> String {
    match length.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A short length of time, with parts of a second.
pub fn short_length(milliseconds: i64) -> String {
    match u64::try_from(milliseconds).unwrap_or(0) {
        milliseconds @ 0..=9_999 => format!("{}.{} s", milliseconds / 1_000, milliseconds % 1_000 / 100),
        milliseconds => length(Duration::from_millis(milliseconds)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_says_how_far_it_is_away() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        assert_eq!(moment("2026-11-16T11:58:59Z".parse().unwrap(), now), "2026-11-16T11:58:59Z (61 s ago)");
        assert_eq!(moment(after(now, Duration::from_secs(300)), now), "2026-11-16T12:05:00Z (in 5 min)");
        assert_eq!((short_length(1_234), short_length(61_000)), ("1.2 s".to_owned(), "61 s".to_owned()));
    }
}
