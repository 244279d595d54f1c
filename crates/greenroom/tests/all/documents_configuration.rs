//! The reference of the configuration is made from `greenroom.example.toml`, which knows every key that the code reads,
//! with its default.

use std::collections::BTreeSet;

use greenroom::config::stored_provider::StoredProvider;
use greenroom::config::{Config, Sources};

use crate::documents::compare;
use crate::support::in_repository;

/// A key of the example file, on a line of its own.
struct Key {
    section: String,
    name: String,
    value: String,
    comment: String,
}

impl Key {
    fn is_default(&self) -> bool {
        !self.comment.contains("default:") && !self.is_required() && !self.value.contains('…')
    }

    fn is_required(&self) -> bool {
        self.comment.starts_with("required")
    }

    fn line(&self) -> String {
        format!("{} = {}\n", self.name, self.value)
    }
}

/// The sections of the example file with what is said about them, and its keys.
fn example() -> (Vec<(String, String)>, Vec<Key>) {
    let text = std::fs::read_to_string(in_repository("greenroom.example.toml")).unwrap();
    let (mut sections, mut keys) = (vec![(String::new(), String::new())], Vec::<Key>::new());
    for line in text.lines() {
        let line = line.strip_prefix("# ").unwrap_or(line);
        let (content, comment) = line.split_once("  #").map_or((line, ""), |(before, after)| (before, after.trim()));
        let content = content.trim();
        if let Some(name) = content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim_matches(['[', ']']).to_owned();
            if !sections.iter().any(|(known, _)| *known == name) {
                sections.push((name.clone(), comment.to_owned()));
            }
            // Another pool shows the same keys once more, until the section of its provider.
            if name == "pool" && keys.iter().any(|key| key.section == "pool") {
                sections.push(("again".to_owned(), String::new()));
            } else {
                sections.retain(|(known, _)| known != "again");
                let position = sections.iter().position(|(known, _)| *known == name).unwrap();
                let current = sections.remove(position);
                sections.push(current);
            }
        } else if let Some((name, value)) = content.split_once(" = ")
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            let (section, _) = sections.last().unwrap();
            if section != "again" {
                let key = |text: &str| text.trim().to_owned();
                keys.push(Key { section: section.clone(), name: key(name), value: key(value), comment: key(comment) });
            }
        }
    }
    (sections, keys)
}

#[test]
fn the_reference_of_the_configuration_is_made_from_the_example() {
    let (sections, keys) = example();
    let mut text = String::new();
    for (section, said) in &sections {
        let title = match section.as_str() {
            "" => "The server".to_owned(),
            "pool" => "`[[pool]]`".to_owned(),
            _ => format!("`[{section}]`"),
        };
        text.push_str(&format!("## {title}\n\n"));
        if !said.is_empty() {
            text.push_str(&format!("{}{}.\n\n", said[..1].to_uppercase(), &said[1..]));
        }
        text.push_str("| key | default | meaning |\n|---|---|---|\n");
        for key in keys.iter().filter(|key| key.section == *section) {
            // What is not the default is an example.
            let default = match key.comment.split_once("default: ") {
                _ if key.is_required() => "required".to_owned(),
                Some((_, default)) => default.split(';').next().unwrap_or_default().to_owned(),
                None => format!("`{}`", key.value),
            };
            let mut meaning: Vec<&str> =
                key.comment.split("; ").filter(|part| !part.starts_with("default: ")).collect();
            meaning.retain(|part| *part != "required" && !part.is_empty());
            let mut meaning = meaning.join("; ").replace("required: ", "").replace('|', "\\|");
            if !key.is_default() {
                let example = format!("example: `{}`", key.value.replace('|', "\\|"));
                meaning = if meaning.is_empty() { example } else { format!("{meaning}; {example}") };
            }
            text.push_str(&format!("| `{}` | {} | {meaning} |\n", key.name, default.replace('|', "\\|")));
        }
        text.push('\n');
    }
    compare("docs/configuration.md", &text);
}

/// Words in the code of the configuration that are no keys.
const NO_KEYS: [&str; 25] = [
    "arrival", "fair", "stopped", "running", "b", "k", "kb", "kib", "m", "mb", "mib", "g", "gb", "gib", "default",
    "latest", "large", "xlarge", "http", "https", "process", "docker", "swarm", "nomad", "coolify",
];

#[test]
fn the_documents_name_every_key_that_the_code_of_the_configuration_reads() {
    let (sections, keys) = example();
    let mut known: BTreeSet<&str> = keys.iter().map(|key| key.name.as_str()).collect();
    known.extend(sections.iter().map(|(name, _)| name.as_str()));
    known.extend(NO_KEYS);
    // Keys of tables within a value.
    let text = std::fs::read_to_string(in_repository("greenroom.example.toml")).unwrap();
    let is_part = |letter: char| !(letter.is_ascii_lowercase() || letter == '_');
    let nested: BTreeSet<String> = text
        .lines()
        .filter(|line| line.contains('{'))
        .flat_map(|line| line.split(is_part))
        .map(str::to_owned)
        .collect();
    for file in ["lib.rs", "pool.rs", "provider.rs", "ec2.rs", "attributes.rs"] {
        let code = std::fs::read_to_string(in_repository(&format!("crates/config/src/{file}"))).unwrap();
        for word in code.split('"').skip(1).step_by(2) {
            let is_key = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(
                !is_key || known.contains(word) || nested.contains(word),
                "{file} reads the key `{word}`, which greenroom.example.toml does not name"
            );
        }
    }
}

/// Without what repeats the text: the file it came from, and the settings that the database stores.
fn loaded(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greenroom.toml");
    std::fs::write(&file, text).unwrap();
    let sources = Sources { file: Some(file), ..Sources::default() };
    let mut config = Config::load(&sources).unwrap_or_else(|complaints| panic!("{complaints}\n{text}"));
    config.file = None;
    config.pools.iter_mut().for_each(|pool| pool.stored_provider = StoredProvider::default());
    format!("{config:?}")
}

#[test]
fn the_documents_have_the_defaults_of_the_code_of_the_configuration() {
    let (sections, keys) = example();
    let (mut set, unset) = (String::new(), "");
    for (section, _) in sections.iter().filter(|(section, _)| !section.starts_with("pool")) {
        if !section.is_empty() {
            set.push_str(&format!("[{section}]\n"));
        }
        keys.iter().filter(|key| key.section == *section && key.is_default()).for_each(|key| set.push_str(&key.line()));
    }
    assert_eq!(loaded(&set), loaded(unset));

    for (section, _) in sections.iter().filter(|(section, _)| section.starts_with("pool")) {
        let provider = section.strip_prefix("pool.").unwrap_or("process");
        let pool = format!("[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"{provider}\"\n");
        let of = |wanted: fn(&Key) -> bool| -> String {
            keys.iter().filter(|key| key.section == *section && wanted(key)).map(Key::line).collect()
        };
        let (required, defaults) = (of(Key::is_required), of(Key::is_default));
        if section == "pool" {
            assert_eq!(loaded(&format!("{pool}{defaults}")), loaded(&pool), "{section}");
        } else {
            let own = format!("{pool}[{section}]\n{required}");
            assert_eq!(loaded(&format!("{own}{defaults}")), loaded(&own), "{section}");
        }
    }
}
