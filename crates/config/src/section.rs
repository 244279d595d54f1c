//! Reads settings by their type. It collects all errors and does not stop at the first one, so that the operator can
//! fix them together.

use std::collections::BTreeMap;
use std::time::Duration;

use super::duration;
use super::layers::{Origin, Tree};

/// A table of settings that is being read. A key that is never read is an unknown key.
#[derive(Debug)]
pub struct Section<'a> {
    path: String,
    entries: BTreeMap<String, Tree>,
    asked: Vec<&'static str>,
    complaints: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    pub fn new(path: &str, tree: Tree, complaints: &'a mut Vec<String>) -> Self {
        let entries = match tree {
            Tree::Table(entries) => entries,
            Tree::Leaf(_, origin) => {
                complaints.push(format!("`{path}` {origin} is a single value, but must be a section"));
                BTreeMap::new()
            }
            Tree::List(_) => {
                complaints.push(format!("`{path}` is a list, but must be a section"));
                BTreeMap::new()
            }
        };
        Self { path: path.to_owned(), entries, asked: Vec::new(), complaints }
    }

    pub fn section(&mut self, key: &'static str) -> Section<'_> {
        let path = self.key_path(key);
        let tree = self.take(key).unwrap_or_else(Tree::empty);
        Section::new(&path, tree, self.complaints)
    }

    /// A section from a tree that was taken before.
    pub fn own(&mut self, key: &str, tree: Tree) -> Section<'_> {
        let path = self.key_path(key);
        Section::new(&path, tree, self.complaints)
    }

    /// The entries of a list of tables. `None` if the key is absent.
    pub fn list(&mut self, key: &'static str) -> Option<Vec<Tree>> {
        match self.take(key)? {
            Tree::List(items) => Some(items),
            Tree::Leaf(toml::Value::Array(items), _) if items.is_empty() => Some(Vec::new()),
            Tree::Leaf(_, origin) => {
                self.complain(format!("`{key}` {origin} must be a list of tables; write [[{key}]] before each table"));
                None
            }
            Tree::Table(_) => {
                self.complain(format!("`{key}` is one table, but must be a list; write [[{key}]] with two brackets"));
                None
            }
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// The value of a key, without marking it as read.
    pub fn peek(&self, key: &str) -> Option<&Tree> {
        self.entries.get(key)
    }

    /// The whole value of a key, of any type.
    pub fn take(&mut self, key: &'static str) -> Option<Tree> {
        self.asked.push(key);
        self.entries.remove(key)
    }

    pub fn text(&mut self, key: &'static str) -> Option<String> {
        self.read(key, "text", |value| match value {
            toml::Value::String(text) if !text.is_empty() => Ok(text),
            toml::Value::String(_) => Err("must not be empty".to_owned()),
            _ => Err("must be text".to_owned()),
        })
    }

    /// A list of texts that are not empty.
    pub fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        const WANTED: &str = "must be a list of texts, such as [\"greenroom-agent\", \"--\", \"my-bot\"]";
        self.read(key, "a list of texts", |value| {
            let toml::Value::Array(items) = value else { return Err(WANTED.to_owned()) };
            let texts: Option<Vec<String>> = items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
            let texts = texts.filter(|texts| texts.first().is_some_and(|first| !first.is_empty()));
            texts.ok_or_else(|| WANTED.to_owned())
        })
    }

    pub fn duration(&mut self, key: &'static str, default: Duration) -> Duration {
        self.read_duration(key, default, false)
    }

    /// A duration. 0 means that there is none.
    pub fn duration_or_never(&mut self, key: &'static str, default: Duration) -> Option<Duration> {
        Some(self.read_duration(key, default, true)).filter(|duration| !duration.is_zero())
    }

    fn read_duration(&mut self, key: &'static str, default: Duration, may_be_zero: bool) -> Duration {
        self.read(key, "a duration", |value| match value {
            toml::Value::String(text) => match duration::parse(&text) {
                Ok(duration) if duration.is_zero() && !may_be_zero => Err("must be longer than 0".to_owned()),
                Ok(duration) => Ok(duration),
                Err(sentence) => Err(format!("is not valid: {sentence}")),
            },
            _ => Err("is not a duration; write it in quotes with its unit, such as \"90s\" or \"5m\"".to_owned()),
        })
        .unwrap_or(default)
    }

    pub fn number(&mut self, key: &'static str, default: u32, range: std::ops::RangeInclusive<u32>) -> u32 {
        self.read(key, "a number", |value| {
            let number = match value {
                toml::Value::Integer(number) => Some(number),
                toml::Value::String(text) => text.trim().parse().ok(),
                _ => None,
            };
            let number = number.ok_or("must be a whole number")?;
            u32::try_from(number)
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| format!("is {number}, but must be from {} to {}", range.start(), range.end()))
        })
        .unwrap_or(default)
    }

    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.read(key, "true or false", |value| match value {
            toml::Value::Boolean(flag) => Ok(flag),
            toml::Value::String(text) => text.trim().parse().map_err(|_| "must be true or false".to_owned()),
            _ => Err("must be true or false".to_owned()),
        })
        .unwrap_or(default)
    }

    /// One of several fixed words.
    pub fn word<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<T> {
        self.read(key, "a word", |value| {
            let text = value.as_str().unwrap_or_default();
            let known = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
            choices
                .iter()
                .find(|(word, _)| *word == text)
                .map(|(_, value)| *value)
                .ok_or_else(|| format!("is `{text}`, but must be one of {}", known()))
        })
    }

    pub fn read<T>(
        &mut self,
        key: &'static str,
        wanted: &str,
        convert: impl FnOnce(toml::Value) -> Result<T, String>,
    ) -> Option<T> {
        let path = self.key_path(key);
        match self.take(key)? {
            Tree::Leaf(value, origin) => match convert(value) {
                Ok(value) => Some(value),
                Err(sentence) => {
                    self.complaints.push(format!("`{path}` {origin} {sentence}"));
                    None
                }
            },
            Tree::Table(_) | Tree::List(_) => {
                self.complaints.push(format!("`{path}` is a section, but must be {wanted}"));
                None
            }
        }
    }

    pub fn complain(&mut self, sentence: String) {
        self.complaints.push(sentence);
    }

    pub fn key_path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Reports every key that was not read.
    pub fn finish(self) {
        for (key, tree) in &self.entries {
            let path = self.key_path(key);
            let origin = origin(tree).map(|origin| format!(" {origin}")).unwrap_or_default();
            let hint = nearest(key, &self.asked).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.complaints.push(format!("unknown key `{path}`{origin}{hint}"));
        }
    }
}

fn origin(tree: &Tree) -> Option<&Origin> {
    match tree {
        Tree::Leaf(_, origin) => Some(origin),
        Tree::Table(entries) => entries.values().find_map(origin),
        Tree::List(items) => items.iter().find_map(origin),
    }
}

/// The known key that the operator probably meant by a mistyped one.
fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    known
        .iter()
        .map(|candidate| (strsim::levenshtein(key, candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 4)
        .map(|(_, candidate)| candidate)
}
