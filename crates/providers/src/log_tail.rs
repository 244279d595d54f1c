//! Keeps the last part of a log, as much as is useful. The server stores it with a failed start.

use jiff::Timestamp;

use super::LogLine;

/// Longer texts are cut at the beginning.
pub const MOST_BYTES: usize = 8 * 1024;
const MOST_LINES: usize = 50;

/// The last lines of a text, up to the limit. `None` if the text is empty.
pub fn lines(text: &str) -> Option<String> {
    let text = text.replace('\0', " ");
    let mut from = text.len().saturating_sub(MOST_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    // A line that was cut is not shown.
    let whole =
        if from == 0 { &text[..] } else { text[from..].split_once('\n').map_or(&text[from..], |(_, rest)| rest) };
    let lines: Vec<&str> = whole.trim_end().lines().collect();
    let kept = &lines[lines.len().saturating_sub(MOST_LINES)..];
    Some(kept.join("\n")).filter(|text| !text.trim().is_empty())
}

/// The lines of a text without timestamps.
pub fn untimed(text: &str) -> Vec<LogLine> {
    text.lines().map(|line| LogLine { at: None, text: line.to_owned() }).collect()
}

/// The lines of a text in which each line begins with a timestamp and a blank, as Docker writes them.
pub fn timed(text: &str) -> Vec<LogLine> {
    let line = |line: &str| match line.split_once(' ').unwrap_or((line, "")) {
        (time, text) if let Ok(at) = time.parse::<Timestamp>() => LogLine { at: Some(at), text: text.to_owned() },
        _ => LogLine { at: None, text: line.to_owned() },
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_whole_lines_are_kept() {
        let text: String = (0..2_000).map(|number| format!("line {number} of many\n")).collect();
        let kept = lines(&text).unwrap();
        assert_eq!(kept.lines().count(), MOST_LINES);
        assert_eq!(kept.lines().next_back(), Some("line 1999 of many"));
        let wide = format!("{}\nthe end", "ä".repeat(MOST_BYTES));
        assert_eq!(lines(&wide).as_deref(), Some("the end"));
    }

    #[test]
    fn a_line_has_the_time_that_it_begins_with() {
        let lines = timed("2026-11-17T09:00:00.123456789Z hello there\n2026-11-17T09:00:01Z\nno time\n");
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["hello there", "", "no time"]);
        assert_eq!(lines.iter().filter(|line| line.at.is_some()).count(), 2);
    }

    #[test]
    fn empty_output_is_none() {
        assert_eq!(lines(" \n \n"), None);
        assert_eq!(lines("a\0b").as_deref(), Some("a b"));
    }
}
