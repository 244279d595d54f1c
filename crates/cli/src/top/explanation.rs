//! What the other calls return, as the view shows it: the settings of pools, what needs a person, and why a bot or a
//! slot is where it is.

use std::collections::HashMap;

use jiff::Timestamp;
use serde_json::Value;

use super::text::{clean, clean_lines, duration, milliseconds, words};

/// What a pool is set to, from `GET /admin/pools`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSettings {
    pub provider: String,
    pub max_slots: usize,
    pub min_idle: usize,
    /// The provider refuses requests.
    pub is_closed: bool,
}

/// The pools by their names.
pub fn pool_settings(answer: &Value) -> HashMap<String, PoolSettings> {
    let number = |pool: &Value, name: &str| pool[name].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let one = |pool: &Value| {
        let settings = PoolSettings {
            provider: text(pool, "provider").unwrap_or_default(),
            max_slots: number(pool, "max_slots"),
            min_idle: number(pool, "min_idle"),
            is_closed: pool["closed_until"].is_string(),
        };
        Some((text(pool, "name")?, settings))
    };
    answer["pools"].as_array().into_iter().flatten().filter_map(one).collect()
}

/// Something that needs a person, from `GET /admin/attention`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionItem {
    pub is_critical: bool,
    pub kind: String,
    pub subject: String,
    pub since: Option<i64>,
    pub deadline_at: Option<i64>,
    pub message: String,
    /// The call that helps, in a few words.
    pub action: Option<String>,
}

/// The items, and how many more there are.
pub fn attention(answer: &Value) -> (Vec<AttentionItem>, usize) {
    let one = |item: &Value| AttentionItem {
        is_critical: item["severity"] == "critical",
        kind: text(item, "kind").unwrap_or_default(),
        subject: text(item, "subject").unwrap_or_default(),
        since: time(&item["since"]),
        deadline_at: time(&item["deadline_at"]),
        message: text(item, "message").unwrap_or_default(),
        action: text(&item["action"], "label"),
    };
    let more = answer["more"].as_u64().and_then(|more| usize::try_from(more).ok()).unwrap_or(0);
    (answer["items"].as_array().into_iter().flatten().map(one).collect(), more)
}

/// A line of an explanation. A heading stands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplanationLine {
    Heading(String),
    Text(String),
}

/// The story of a bot or a slot, from `…/explain`, in lines.
pub fn explanation(answer: &Value, now: i64) -> Vec<ExplanationLine> {
    use ExplanationLine::{Heading, Text};

    let mut lines = Vec::new();
    lines.extend(many(answer, "summary").into_iter().map(Text));
    if let Some(status) = text(answer, "status") {
        let lasted = time(&answer["since"]).map(|since| format!(" for {}", duration(now - since)));
        lines.push(Heading("Status".to_owned()));
        lines.push(Text(format!("{}{}", words(&status), lasted.unwrap_or_default())));
    }
    if let Some(waiting) = text(answer, "waiting_for") {
        let until = time(&answer["until"]).map(|until| format!(", at most {} more", duration(until - now)));
        lines.push(Heading("Waits for".to_owned()));
        lines.push(Text(format!("{waiting}{}", until.unwrap_or_default())));
    }
    if !answer["advice"].is_null() {
        lines.push(Heading("Advice".to_owned()));
        lines.extend(many(answer, "advice").into_iter().map(Text));
    }
    let steps = answer["steps"].as_array().map_or(&[][..], Vec::as_slice);
    if !steps.is_empty() {
        lines.push(Heading("Steps".to_owned()));
        lines.extend(steps.iter().map(|one| Text(step(one))));
    }
    let provider = &answer["provider"];
    if let Some(status) = text(provider, "status") {
        lines.push(Heading("Provider".to_owned()));
        lines.push(Text(words(&status)));
        lines.extend(many(provider, "message").into_iter().map(Text));
    }
    let last = provider["last_lines"].as_array().map_or(&[][..], Vec::as_slice);
    if !last.is_empty() {
        lines.push(Heading("Last lines".to_owned()));
        lines.extend(last.iter().filter_map(Value::as_str).map(|line| Text(clean(line))));
    }
    lines
}

fn step(step: &Value) -> String {
    let at = step["at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    let at = at.map_or("        ".to_owned(), |at| at.strftime("%H:%M:%S").to_string());
    let took = step["took_ms"].as_i64().map(milliseconds).unwrap_or_default();
    let median = step["median_ms"].as_i64().map(|median| format!(" (median {})", milliseconds(median)));
    format!("{at} {took:>7}  {}{}", text(step, "what").unwrap_or_default(), median.unwrap_or_default())
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().map(clean)
}

fn many(value: &Value, name: &str) -> Vec<String> {
    value.get(name).and_then(Value::as_str).map(clean_lines).unwrap_or_default()
}

fn time(value: &Value) -> Option<i64> {
    Some(value.as_str()?.parse::<Timestamp>().ok()?.as_second())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_is_told_in_lines_without_control_characters() {
        let answer = json!({
            "summary": "The bot\u{1b}]0;x\u{7} is in the meeting.", "status": "awaiting_admission",
            "since": "2026-01-01T00:00:00Z", "waiting_for": "the host", "until": "2026-01-01T00:10:00Z",
            "steps": [{"at": "2026-01-01T00:00:00Z", "took_ms": 1200, "median_ms": 900, "what": "starting"},
                      {"at": "not a time", "what": "x"}],
            "provider": {"status": "no_answer", "message": "one\ntwo", "last_lines": ["a\u{1b}[2Jb"]},
            "advice": "Admit it.", "new_field": 7,
        });
        let now = "2026-01-01T00:03:00Z".parse::<Timestamp>().unwrap().as_second();
        let lines = explanation(&answer, now);
        let text: Vec<&str> = lines
            .iter()
            .map(|line| match line {
                ExplanationLine::Heading(text) | ExplanationLine::Text(text) => text.as_str(),
            })
            .collect();
        assert_eq!(text[0], "The bot ]0;x  is in the meeting.");
        assert!(text.contains(&"awaiting admission for 3m00s"), "{text:?}");
        assert!(text.contains(&"the host, at most 7m00s more"), "{text:?}");
        assert!(text.contains(&"00:00:00    1.2s  starting (median 900ms)"), "{text:?}");
        assert!(text.contains(&"a [2Jb") && text.contains(&"two") && text.contains(&"Admit it."), "{text:?}");
        assert_eq!(explanation(&json!("<html>"), now), []);
    }

    #[test]
    fn what_cannot_be_read_of_pools_and_attention_is_left_out() {
        assert!(pool_settings(&json!(null)).is_empty());
        let pools = pool_settings(&json!({"pools": [{"name": "meet", "max_slots": 7}, {"max_slots": 1}, 3]}));
        assert_eq!((pools.len(), pools["meet"].max_slots), (1, 7));
        assert_eq!(attention(&json!({"items": 7})), (vec![], 0));
        let (items, more) = attention(&json!({"items": [{"severity": "critical", "message": "help"}], "more": 3}));
        assert!(items[0].is_critical && more == 3);
    }
}
