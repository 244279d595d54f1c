//! Durations and times for people.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

pub type Millis = i64;

/// A time of the server's answer.
pub fn timestamp(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// A time, to the second.
pub fn at(value: &Value) -> String {
    match timestamp(value).and_then(|time| time.round(jiff::Unit::Second).ok()) {
        Some(time) => time.to_string(),
        None => "-".to_owned(),
    }
}

/// How long ago a time was, or how far it is ahead.
pub fn age(value: &Value) -> String {
    match timestamp(value) {
        Some(time) => span(Timestamp::now().as_millisecond() - time.as_millisecond()),
        None => "-".to_owned(),
    }
}

/// Milliseconds of the server's answer.
pub fn duration(value: &Value) -> String {
    value.as_i64().map_or("-".to_owned(), span)
}

/// A span of time in at most two units. The clocks of two machines may differ a little, so there are no negative ones
/// below a second.
pub fn span(ms: Millis) -> String {
    let sign = if ms <= -1_000 { "in " } else { "" };
    let ms = if ms < 0 && sign.is_empty() { 0 } else { ms.unsigned_abs() };
    let seconds = ms / 1_000;
    let text = match seconds {
        0 => format!("{ms}ms"),
        1..10 => format!("{}.{}s", seconds, ms % 1_000 / 100),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    };
    format!("{sign}{text}")
}

/// A duration as in the configuration: `500ms`, `30s`, `5m`, `2h`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("`{text}` is not a duration such as 500ms, 30s, 5m or 2h");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = match unit {
        "ms" => 1,
        "s" | "" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(ms).map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::{parse_duration, span};

    #[test]
    fn spans_are_short() {
        let spans = [400, 9_990, 12_345, 65_000, 3_700_000, 90_000_000, -40, -65_000].map(span);
        assert_eq!(spans, ["400ms", "9.9s", "12s", "1m05s", "1h01m", "1d01h", "0ms", "in 1m05s"]);
    }

    #[test]
    fn durations_are_those_of_the_configuration() {
        assert_eq!(parse_duration("90s").map(|d| d.as_millis()), Ok(90_000));
        assert_eq!(parse_duration("5m").map(|d| d.as_secs()), Ok(300));
        for wrong in ["", "m", "5 m", "-3s", "99999999999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
