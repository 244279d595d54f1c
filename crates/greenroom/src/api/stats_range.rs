//! The times of `GET /admin/stats`: which time the answer covers, in which steps, and from which figures.

use jiff::Timestamp;

use super::problem::Problem;
use crate::config::duration;
use crate::keepers::stats::{MINUTES_KEPT, oldest_minute};
use crate::store::Resolution;

/// The most points of an answer.
pub const POINTS_MAX: i64 = 1_500;
/// The most points if the operator does not choose the step.
const POINTS_BY_DEFAULT: i64 = 300;
const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;
const DAY: i64 = 86_400;
const LONGEST_STEP: i64 = 366 * DAY;
/// The steps from which the server chooses.
const STEPS: [i64; 15] = [
    MINUTE,
    2 * MINUTE,
    5 * MINUTE,
    10 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    6 * HOUR,
    12 * HOUR,
    DAY,
    7 * DAY,
    30 * DAY,
    90 * DAY,
    LONGEST_STEP,
];

/// Whole steps, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRange {
    pub from: i64,
    pub to: i64,
    pub step: i64,
}

impl StatsRange {
    /// Reads the parameters of the call.
    pub fn read(
        from: Option<&str>,
        to: Option<&str>,
        step: Option<&str>,
        now: Timestamp,
    ) -> Result<StatsRange, Problem> {
        let to = to.map(|text| time("to", text)).transpose()?.unwrap_or(now);
        let from = from.map(|text| time("from", text)).transpose()?;
        let from = from.unwrap_or_else(|| Timestamp::from_second(to.as_second() - HOUR).unwrap_or(Timestamp::MIN));
        // PostgreSQL and SQLite have no or other texts for times long before.
        if from < Timestamp::UNIX_EPOCH {
            return Err(Problem::invalid("from", "must not be before 1970"));
        }
        if from >= to {
            return Err(Problem::invalid("from", "must be before `to`"));
        }
        let has_minutes = from >= oldest_minute(now);
        let over = |step: i64| {
            // To the next whole step, and so that a part of a second counts.
            let (begin, end) = (from.as_second(), to.as_second() + i64::from(to.subsec_nanosecond() > 0));
            let from = begin - begin.rem_euclid(step);
            StatsRange { from, to: end + (-end).rem_euclid(step), step }
        };
        let Some(step) = step else {
            let mut steps = STEPS.into_iter().filter(|step| has_minutes || step % HOUR == 0).map(over);
            let chosen = steps.find(|range| range.points() <= POINTS_BY_DEFAULT);
            return chosen.ok_or_else(|| Problem::invalid("from", "is too long before `to`"));
        };
        let range = over(seconds(step)?);
        if range.resolution() == Resolution::Minute && !has_minutes {
            let hours = MINUTES_KEPT.as_secs() / 3_600;
            let why = format!(
                "must be whole hours, because `from` is more than {hours} hours ago: minutes are kept only so long"
            );
            return Err(Problem::invalid("step", why));
        }
        if range.points() > POINTS_MAX {
            let why = format!(
                "gives {} points, but an answer has at most {POINTS_MAX}; choose a longer step",
                range.points()
            );
            return Err(Problem::invalid("step", why));
        }
        Ok(range)
    }

    pub fn points(&self) -> i64 {
        (self.to - self.from) / self.step
    }

    /// The figures from which the points are made.
    pub fn resolution(&self) -> Resolution {
        if self.step % HOUR == 0 { Resolution::Hour } else { Resolution::Minute }
    }
}

fn time(field: &str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|_| Problem::invalid(field, "is not a time of RFC 3339, such as 2026-01-31T09:00:00Z"))
}

/// The seconds of a step.
fn seconds(step: &str) -> Result<i64, Problem> {
    let seconds = match step {
        "minute" => MINUTE,
        "hour" => HOUR,
        "day" => DAY,
        _ => {
            let step = duration::parse(step).map_err(|why| Problem::invalid("step", why))?;
            let whole = i64::try_from(step.as_secs()).ok().filter(|_| step.subsec_nanos() == 0);
            whole.unwrap_or(0)
        }
    };
    if seconds < MINUTE || seconds % MINUTE != 0 || seconds > LONGEST_STEP {
        let why = "must be whole minutes up to 366d, such as 1m, 5m, 1h or 1d; or `minute`, `hour` or `day`";
        return Err(Problem::invalid("step", why));
    }
    Ok(seconds)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-17T12:34:30.5Z";

    fn read(from: Option<&str>, to: Option<&str>, step: Option<&str>) -> Result<StatsRange, String> {
        StatsRange::read(from, to, step, NOW.parse().unwrap()).map_err(|problem| problem.into_parts().1)
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    #[test]
    fn without_parameters_it_is_the_last_hour_by_minutes() {
        let (from, to) = (at("2026-11-17T11:34:00Z"), at("2026-11-17T12:35:00Z"));
        assert_eq!(read(None, None, None), Ok(StatsRange { from, to, step: 60 }));
        assert_eq!(read(None, None, Some("minute")), Ok(StatsRange { from, to, step: 60 }));
    }

    #[test]
    fn the_times_are_moved_to_whole_steps() {
        let range = read(Some("2026-11-16T05:00:00Z"), Some("2026-11-17T05:00:00+02:00"), Some("day")).unwrap();
        assert_eq!((range.from, range.to), (at("2026-11-16T00:00:00Z"), at("2026-11-18T00:00:00Z")));
        assert_eq!((range.points(), range.resolution()), (2, Resolution::Hour));
        let range = read(Some("2026-11-17T12:07:59Z"), Some("2026-11-17T12:10:00Z"), Some("5m")).unwrap();
        assert_eq!((range.from, range.to), (at("2026-11-17T12:05:00Z"), at("2026-11-17T12:10:00Z")));
    }

    #[test]
    fn a_step_that_the_server_chooses_gives_at_most_300_points() {
        for (from, step) in [
            ("2026-11-17T12:00:00Z", MINUTE),
            ("2026-11-17T00:00:00Z", 5 * MINUTE),
            ("2026-11-16T12:34:00Z", 5 * MINUTE),
            ("2026-11-15T13:00:00Z", 10 * MINUTE),
            ("2026-11-14T12:00:00Z", HOUR),
            ("2026-10-17T12:00:00Z", 6 * HOUR),
            ("2025-11-17T12:00:00Z", 7 * DAY),
            ("1970-01-01T00:00:00Z", 90 * DAY),
        ] {
            let range = read(Some(from), None, None).unwrap();
            assert_eq!(range.step, step, "{from}");
            assert!(range.points() <= POINTS_BY_DEFAULT, "{from}");
        }
        assert!(read(Some("1970-01-01T00:00:00Z"), Some("9999-01-01T00:00:00Z"), None).unwrap_err().contains("`from`"));
    }

    #[test]
    fn each_refusal_names_the_field_and_what_would_be_right() {
        let day = "2026-11-16T12:34:00Z";
        let long_ago = "2026-11-10T00:00:00Z";
        for (from, to, step, words) in [
            (Some("yesterday"), None, None, ["`from`", "RFC 3339"]),
            (None, Some("2026-11-17"), None, ["`to`", "RFC 3339"]),
            (Some("-009999-01-02T01:59:59Z"), None, None, ["`from`", "1970"]),
            (Some("2026-11-17T12:00:00Z"), Some("2026-11-17T12:00:00Z"), None, ["`from`", "before `to`"]),
            (None, None, Some("10"), ["`step`", "1h30m"]),
            (None, None, Some("30s"), ["`step`", "whole minutes"]),
            (None, None, Some("90s"), ["`step`", "whole minutes"]),
            (None, None, Some("1m1ms"), ["`step`", "whole minutes"]),
            (None, None, Some("0m"), ["`step`", "whole minutes"]),
            (None, None, Some("367d"), ["`step`", "whole minutes"]),
            (None, None, Some("999999999999d"), ["`step`", "duration"]),
            (None, None, Some("week"), ["`step`", "duration"]),
            (Some(day), Some("2026-11-17T13:35:00Z"), Some("1m"), ["`step`", "1501 points"]),
            (Some(long_ago), None, Some("5m"), ["`step`", "48 hours"]),
            (Some(long_ago), None, Some("90m"), ["`step`", "whole hours"]),
            (Some("2000-01-01T00:00:00Z"), None, Some("1h"), ["`step`", "at most 1500"]),
        ] {
            let refusal = read(from, to, step).unwrap_err();
            assert!(words.iter().all(|word| refusal.contains(word)), "{step:?}: {refusal}");
        }
        assert_eq!(read(Some(day), Some("2026-11-17T13:34:00Z"), Some("1m")).unwrap().points(), 1_500);
        assert_eq!(read(Some(long_ago), None, Some("2h")).unwrap().resolution(), Resolution::Hour);
    }
}
