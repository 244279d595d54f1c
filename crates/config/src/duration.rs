//! Reads durations as people write them: `90s`, `5m`, `1h30m`, `250ms`.

use std::time::Duration;

/// Reads a duration. The error explains the notation.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write a number with its unit, such as 250ms, 90s, 5m or 1h30m");
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut millis: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        millis = number.checked_mul(unit).and_then(|part| millis.checked_add(part)).ok_or_else(wrong)?;
    }
    Ok(Duration::from_millis(millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in
            [("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("1h30m", 5_400_000), (" 2d ", 172_800_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_duration_without_a_unit_is_refused_with_how_to_write_one() {
        for text in ["", "5", "m", "5 m", "-5m", "5x", "99999999999999999999h", "1.5h"] {
            assert!(parse(text).is_err_and(|sentence| sentence.contains("90s")), "{text}");
        }
    }
}
