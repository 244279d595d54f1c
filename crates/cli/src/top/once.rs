//! One picture as text, for pipes and scripts. Ids and names are complete, whatever the width of the terminal is.

use std::io::Write;

use jiff::Timestamp;

use super::TopError;
use super::api::Api;
use super::explanation::{attention, pool_settings};
use super::screen::{Pane, Screen};
use super::text::counted;
use super::view::theme::Theme;
use super::view::{panes, plain_header, table};

/// Of a longer list only the first rows are printed, with the number of the others.
const ROWS: usize = 50;

/// Reads what the stream does not tell, and prints everything.
pub async fn print(api: &Api, mut screen: Screen, clock_difference: Option<i64>) -> Result<(), TopError> {
    screen.now = Timestamp::now().as_second() + clock_difference.unwrap_or(0);
    screen.settings = pool_settings(&api.read("/admin/pools").await?);
    (screen.attention, screen.attention_more) = attention(&api.read("/admin/attention").await?);
    screen.refresh();
    let mut text = picture(&screen).join("\n");
    text.push('\n');
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        // A reader such as `head` has seen enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(TopError::Other(error.to_string())),
        _ => Ok(()),
    }
}

fn picture(screen: &Screen) -> Vec<String> {
    let theme = Theme { has_colour: false };
    let mut lines = plain_header(screen, theme);
    for pane in [Pane::Attention, Pane::Pools, Pane::Slots, Pane::Bots, Pane::Queue, Pane::Keepers] {
        let list = screen.list(pane);
        // All slots of all pools are too many to read: the pools count them.
        if list.rows.is_empty() || (pane == Pane::Slots && screen.scope.is_none()) {
            continue;
        }
        lines.push(String::new());
        lines.push(pane.title().to_uppercase());
        let rows = list.rows.iter().take(ROWS).map(|row| panes::cells(screen, row, theme)).collect();
        lines.extend(table::plain(panes::columns(pane), rows));
        if list.rows.len() > ROWS {
            lines.push(format!("and {}", counted(list.rows.len() - ROWS, "more row")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{busy_screen, busy_screen_with};
    use super::*;

    #[test]
    fn a_picture_has_the_header_and_every_table_with_complete_ids() {
        let lines = picture(&busy_screen());
        let text = lines.join("\n");
        for expected in
            ["● live", "Bots", "POOLS", "BOTS", "QUEUE", "KEEPERS", "ATTENTION", "google-meet", "awaiting admission"]
        {
            assert!(text.contains(expected), "{expected} is missing:\n{text}");
        }
        assert!(text.contains("0197a1b2-0000-7000-8000-000000000001"), "{text}");
        assert!(!text.contains("SLOTS\n"), "{text}");
        assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'));
    }

    #[test]
    fn with_a_pool_its_slots_are_listed_and_long_lists_are_cut() {
        let mut screen = busy_screen_with(200);
        screen.scope = Some("google-meet".to_owned());
        screen.refresh();
        let text = picture(&screen).join("\n");
        assert!(text.contains("pool-google-meet-001") && text.contains("and 150 more rows"), "{text}");
    }
}
