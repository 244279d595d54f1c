//! The last of what was written, as much as is worth keeping.

/// Longer ones are cut at their beginning.
pub const MOST_BYTES: usize = 8 * 1024;
const MOST_LINES: usize = 50;

/// The last lines of a text that can be kept; `None` when there is nothing in it.
pub fn lines(text: &str) -> Option<String> {
    let text = text.replace('\0', " ");
    let mut from = text.len().saturating_sub(MOST_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    // What was cut is not shown as a line.
    let whole =
        if from == 0 { &text[..] } else { text[from..].split_once('\n').map_or(&text[from..], |(_, rest)| rest) };
    let lines: Vec<&str> = whole.trim_end().lines().collect();
    let kept = &lines[lines.len().saturating_sub(MOST_LINES)..];
    Some(kept.join("\n")).filter(|text| !text.trim().is_empty())
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
    fn nothing_is_no_text() {
        assert_eq!(lines(" \n \n"), None);
        assert_eq!(lines("a\0b").as_deref(), Some("a b"));
    }
}
