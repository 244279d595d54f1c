//! The text formats of Nomad: durations, times, lists of errors, escaped parts of a path.

use std::time::Duration;

use jiff::Timestamp;

/// Formats a duration in nanoseconds as Go does.
pub fn duration(nanoseconds: i64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    if nanoseconds % 1_000_000_000 != 0 {
        return format!("{}ms", nanoseconds as f64 / 1_000_000.0);
    }
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Parses one number with one unit. No client sends anything else.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number * 60)),
        "h" => Some(Duration::from_secs(number * 3600)),
        _ => None,
    }
}

/// Joins several errors into one text, as Nomad's library for this does.
pub fn errors(all: &[String]) -> String {
    let count = if all.len() == 1 { "1 error occurred".to_owned() } else { format!("{} errors occurred", all.len()) };
    let lines: String = all.iter().map(|error| format!("\n\t* {error}")).collect();
    format!("{count}:{lines}\n\n")
}

pub fn nanoseconds() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap()
}

/// Formats a point in time as Go does, with the zero time for `None`.
pub fn time(nanoseconds: Option<i64>) -> String {
    match nanoseconds {
        Some(at) => Timestamp::from_nanosecond(i128::from(at)).unwrap().to_string(),
        None => "0001-01-01T00:00:00Z".to_owned(),
    }
}

/// Decodes an escaped part of a path.
pub fn unescape(part: &str) -> String {
    let bytes = part.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| part.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

pub fn identifier() -> String {
    uuid::Uuid::new_v4().to_string()
}
