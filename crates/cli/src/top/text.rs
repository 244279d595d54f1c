//! Texts for the terminal. Everything that a server sends passes [`clean`] before it is shown, so that no server, and
//! no bot through its server, can move the cursor or change the terminal.

/// Longer texts are cut. The longest names and errors of a server are far shorter.
const LONGEST: usize = 2_000;

/// One line without control characters, and without the characters that reverse the direction of a line.
pub fn clean(text: &str) -> String {
    text.chars().take(LONGEST).map(|letter| if is_harmful(letter) { ' ' } else { letter }).collect()
}

/// The same, with the line breaks that the text has.
pub fn clean_lines(text: &str) -> Vec<String> {
    text.lines().map(clean).collect()
}

fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// How long something has lasted: `42s`, `3m12s`, `27m`, `5h03m`, `2d4h`.
pub fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3_600);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..600 => format!("{minutes}m{:02}s", seconds % 60),
        600..3_600 => format!("{minutes}m"),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{}d{}h", hours / 24, hours % 24),
    }
}

/// A short time in milliseconds: `7ms`, `1.3s`, `2m05s`.
pub fn milliseconds(ms: i64) -> String {
    match ms.max(0) {
        ms @ 0..1_000 => format!("{ms}ms"),
        ms @ 1_000..60_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        ms => duration(ms / 1_000),
    }
}

/// A status in words: `awaiting_admission` is `awaiting admission`.
pub fn words(status: &str) -> String {
    status.replace('_', " ")
}

/// A number with its noun.
pub fn counted(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Breaks a text into lines of at most `width` letters, at spaces where there are some.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let (mut lines, mut line, mut length) = (Vec::new(), String::new(), 0);
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        if length > 0 && length + 1 + word.len() > width {
            lines.push(std::mem::take(&mut line));
            length = 0;
        }
        if length > 0 {
            line.push(' ');
            length += 1;
        }
        while length + word.len() > width {
            let rest = word.split_off(width - length);
            line.extend(word);
            lines.push(std::mem::take(&mut line));
            (word, length) = (rest, 0);
        }
        length += word.len();
        line.extend(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_change_the_terminal_is_removed() {
        assert_eq!(clean("a\u{1b}[31mb\u{7}\u{9b}c\u{202e}d\r\n"), "a [31mb  c d  ");
        assert_eq!(clean("prüfen 会議"), "prüfen 会議");
        assert_eq!(clean_lines("one\u{1b}\ntwo"), ["one ", "two"]);
        assert_eq!(clean(&"x".repeat(5_000)).len(), LONGEST);
    }

    #[test]
    fn durations_get_coarser_as_they_get_longer() {
        let shown = [-5, 0, 59, 60, 192, 599, 600, 3_599, 3_600, 86_399, 86_400, 187_200].map(duration);
        let expected = ["0s", "0s", "59s", "1m00s", "3m12s", "9m59s", "10m", "59m", "1h00m", "23h59m", "1d0h", "2d4h"];
        assert_eq!(shown, expected);
        assert_eq!([7, 1_340, 125_000].map(milliseconds), ["7ms", "1.3s", "2m05s"]);
    }

    #[test]
    fn long_texts_are_wrapped_at_spaces_and_long_words_are_broken() {
        assert_eq!(wrap("the slot is in error", 10), ["the slot", "is in", "error"]);
        assert_eq!(wrap("ab 0123456789abcdef", 8), ["ab", "01234567", "89abcdef"]);
        assert_eq!(wrap("", 10), [""]);
    }
}
