//! The provider settings of a pool that the database stores: its section of the configuration without secrets. With
//! them the pool's slots can be deleted after the pool was removed from the configuration. The operator must give the
//! secrets again.

use std::path::{Path, PathBuf};

use domain::ProviderKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::layers::{Origin, Tree};
use super::provider::{self, ProviderConfig, Size};
use super::section::Section;

/// The keys of a provider's section that contain secrets, and the variable that gives each secret to a command.
const SECRETS: [(&str, &str, &str); 2] =
    [("coolify", "api_token", "COOLIFY_API_TOKEN"), ("nomad", "token", "NOMAD_TOKEN")];
/// Variables of slots may be secrets, and the deletion of a slot does not need them.
const NOT_STORED: &str = "env";

/// The stored settings of a pool's provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoredProvider {
    /// Its section of the configuration.
    pub section: Map<String, Value>,
    /// The secret keys that were set, whose values are not stored.
    pub secrets: Vec<String>,
    /// The folder of slots that are processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
}

/// Why a provider cannot be restored from the stored settings.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotRestored {
    #[error(
        "the pool {pool} needs the secret `{key}` of {kind}, which the database does not store: set {variable} in the \
         environment of this command"
    )]
    Secret { pool: String, kind: &'static str, key: &'static str, variable: &'static str },
    #[error(
        "the stored settings of the pool {pool} are not enough to reach its provider ({0}); add the pool to the \
         configuration again and start the server once",
        .what
    )]
    Incomplete { pool: String, what: String },
}

impl StoredProvider {
    /// The part of a provider's section to store.
    pub fn of(kind: &str, tree: Option<&Tree>) -> Self {
        let mut stored = Self::default();
        let Some(Tree::Table(entries)) = tree else { return stored };
        for (key, tree) in entries.iter().filter(|(key, _)| *key != NOT_STORED) {
            if SECRETS.iter().any(|(of, secret, _)| *of == kind && secret == key) {
                stored.secrets.push(key.clone());
            } else {
                stored.section.insert(key.clone(), value(tree));
            }
        }
        stored
    }

    /// The same settings, with the actual place of the slots.
    pub fn located(mut self, provider: &ProviderConfig, host: Option<&str>, folder: &Path) -> Self {
        match provider {
            ProviderConfig::Process(_) => self.folder = Some(folder.to_owned()),
            ProviderConfig::Docker(_) | ProviderConfig::Swarm(_) => {
                self.section.extend(host.map(|host| ("host".to_owned(), Value::from(host))));
            }
            _ => {}
        }
        self
    }

    /// The image of the slots, if the provider uses images.
    pub fn image(&self) -> Option<String> {
        let text = |key: &str| self.section.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(match text("tag") {
            Some(tag) => {
                let (image, tag) = provider::parted(text("image")?, Some(tag));
                format!("{image}:{tag}")
            }
            None => text("image")?,
        })
    }

    /// The provider as it was configured. `secret` returns a secret by the name of its variable.
    pub fn restore(
        &self,
        pool: &str,
        kind: &str,
        size: Size,
        secret: impl Fn(&str) -> Option<String>,
    ) -> Result<ProviderConfig, NotRestored> {
        let incomplete = |what: String| NotRestored::Incomplete { pool: pool.to_owned(), what };
        let Ok(kind) = kind.parse::<ProviderKind>() else {
            return Err(incomplete(format!("this version does not support the provider {kind}")));
        };
        let mut section = self.section.clone();
        for (of, key, variable) in SECRETS.into_iter().filter(|(of, ..)| *of == kind.as_str()) {
            if !self.secrets.iter().any(|stored| stored == key) {
                continue;
            }
            let missing = || NotRestored::Secret { pool: pool.to_owned(), kind: of, key, variable };
            section.insert(key.to_owned(), secret(variable).ok_or_else(missing)?.into());
        }
        let origin = Origin::File(PathBuf::from("the database"));
        let mut entries = toml::Table::new();
        if kind != ProviderKind::Process || !section.is_empty() {
            entries.insert(kind.to_string(), toml::Value::Table(table(section)));
        }
        let mut complaints = Vec::new();
        let mut whole = Section::new("pool", Tree::from_toml(entries, &origin), &mut complaints);
        let read = provider::read(&mut whole, 0, kind, size);
        match read {
            Some(provider) if complaints.is_empty() => Ok(provider),
            _ => Err(incomplete(complaints.join("; "))),
        }
    }
}

fn value(tree: &Tree) -> Value {
    match tree {
        Tree::Leaf(value, _) => serde_json::to_value(value).unwrap_or_default(),
        Tree::Table(entries) => Value::Object(entries.iter().map(|(key, tree)| (key.clone(), value(tree))).collect()),
        Tree::List(items) => Value::Array(items.iter().map(value).collect()),
    }
}

fn table(map: Map<String, Value>) -> toml::Table {
    map.into_iter().filter_map(|(key, value)| Some((key, to_toml(value)?))).collect()
}

fn to_toml(value: Value) -> Option<toml::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => toml::Value::Boolean(value),
        Value::Number(number) => match number.as_i64() {
            Some(number) => toml::Value::Integer(number),
            None => toml::Value::Float(number.as_f64()?),
        },
        Value::String(text) => toml::Value::String(text),
        Value::Array(items) => toml::Value::Array(items.into_iter().filter_map(to_toml).collect()),
        Value::Object(map) => toml::Value::Table(table(map)),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SIZE: Size = Size { max_slots: 1, min_idle: 0 };

    fn stored(kind: &str, toml: &str) -> StoredProvider {
        let tree = Tree::from_toml(toml.parse().unwrap(), &Origin::Flag("a test".to_owned()));
        StoredProvider::of(kind, Some(&tree))
    }

    #[test]
    fn a_provider_is_kept_without_secrets_and_comes_back_with_them() {
        let toml = "api_url = \"https://coolify.example.com\"\napi_token = \"hush\"\nproject_uuid = \"p\"\n\
                    server_uuid = \"s\"\nenvironment_name = \"e\"\nimage = \"bot:1\"\nenv = { PASSWORD = \"hush\" }";
        let stored = stored("coolify", toml);
        let text = serde_json::to_string(&stored).unwrap();
        assert!(!text.contains("hush"), "{text}");
        let stored: StoredProvider = serde_json::from_str(&text).unwrap();
        let error = stored.restore("old", "coolify", SIZE, |_| None).unwrap_err().to_string();
        assert!(error.contains("the pool old") && error.contains("set COOLIFY_API_TOKEN"), "{error}");
        let restored =
            stored.restore("old", "coolify", SIZE, |name| (name == "COOLIFY_API_TOKEN").then(|| "hush".to_owned()));
        let ProviderConfig::Coolify(config) = restored.unwrap() else { panic!("another provider") };
        assert_eq!((config.api_url.as_str(), config.image.as_str()), ("https://coolify.example.com", "bot"));
    }

    #[test]
    fn every_kind_of_provider_comes_back() {
        let ec2 = "region = \"eu-west-1\"\nqueue_prefix = \"q\"\ntable = \"runners\"\n";
        for (kind, toml) in [
            ("process", "command = [\"bot\"]"),
            ("docker", "image = \"bot\"\nhost = \"tcp://a:2375\"\ncpus = 1.5\nmemory = \"2g\""),
            ("swarm", "image = \"bot\""),
            ("nomad", "address = \"http://nomad:4646\"\nimage = \"bot\"\ncpu = 200"),
            ("ec2", ec2),
        ] {
            let text = serde_json::to_string(&stored(kind, toml)).unwrap();
            let stored: StoredProvider = serde_json::from_str(&text).unwrap();
            assert_eq!(stored.restore("old", kind, SIZE, |_| None).unwrap().as_str(), kind);
        }
        let nothing = StoredProvider::default();
        assert_eq!(nothing.restore("old", "process", SIZE, |_| None).unwrap().as_str(), "process");
        let error = nothing.restore("old", "docker", SIZE, |_| None).unwrap_err().to_string();
        assert!(error.contains("add the pool to the configuration again"), "{error}");
    }
}
