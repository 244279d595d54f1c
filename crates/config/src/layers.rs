//! The sources of settings, in rising order: the file, the environment, the flags. Each value keeps its source, so that
//! an error can name it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File(PathBuf),
    Variable(String),
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File(path) => write!(f, "in {}", path.display()),
            Origin::Variable(name) => write!(f, "from the environment variable {name}"),
            Origin::Flag(name) => write!(f, "from the flag {name}"),
        }
    }
}

/// All settings, nested as in the file.
#[derive(Clone)]
pub enum Tree {
    Leaf(toml::Value, Origin),
    Table(BTreeMap<String, Tree>),
    List(Vec<Tree>),
}

/// Values may be secrets, so only the keys are shown.
impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tree::Leaf(_, origin) => write!(f, "set {origin}"),
            Tree::Table(entries) => f.debug_map().entries(entries).finish(),
            Tree::List(items) => f.debug_list().entries(items).finish(),
        }
    }
}

impl Tree {
    pub fn empty() -> Self {
        Tree::Table(BTreeMap::new())
    }

    pub fn from_toml(table: toml::Table, origin: &Origin) -> Self {
        Tree::Table(table.into_iter().map(|(key, value)| (key, Self::from_value(value, origin))).collect())
    }

    fn from_value(value: toml::Value, origin: &Origin) -> Self {
        match value {
            toml::Value::Table(table) => Self::from_toml(table, origin),
            toml::Value::Array(items) if !items.is_empty() && items.iter().all(toml::Value::is_table) => {
                Tree::List(items.into_iter().map(|item| Self::from_value(item, origin)).collect())
            }
            other => Tree::Leaf(other, origin.clone()),
        }
    }

    /// The value at a path of keys.
    fn at(&self, path: &[&str]) -> Option<&Tree> {
        match (self, path.split_first()) {
            (tree, None) => Some(tree),
            (Tree::Table(entries), Some((first, rest))) => entries.get(*first)?.at(rest),
            _ => None,
        }
    }

    /// Sets the value at a path and replaces the old one. A number in the path is an index of a list.
    pub fn set(&mut self, path: &[&str], value: toml::Value, origin: Origin) -> Result<(), String> {
        let Some((first, rest)) = path.split_first() else {
            *self = Self::from_value(value, &origin);
            return Ok(());
        };
        let wants_list = first.parse::<usize>().ok();
        match self {
            Tree::List(items) => {
                let index = wants_list.ok_or_else(|| format!("`{first}` must be a number, the position in a list"))?;
                if index > items.len() {
                    return Err(format!("entry {index} of the list is set, but entry {} is missing", items.len()));
                }
                if index == items.len() {
                    items.push(Tree::empty());
                }
                items[index].set(rest, value, origin)
            }
            Tree::Table(entries) => entries
                .entry((*first).to_owned())
                .or_insert_with(|| {
                    let counts = rest.first().is_some_and(|next| next.parse::<usize>().is_ok());
                    if counts { Tree::List(Vec::new()) } else { Tree::empty() }
                })
                .set(rest, value, origin),
            Tree::Leaf(..) => {
                *self = Tree::empty();
                self.set(path, value, origin)
            }
        }
    }
}

/// Variables of a slot's own environment, which are not settings of the server.
const OF_SLOTS: [&str; 5] =
    ["GREENROOM_URL", "GREENROOM_SLOT", "GREENROOM_SLOT_TOKEN", "GREENROOM_RUNNER_TOKEN", "GREENROOM_CONTAINER_ID"];
/// The first names the file, and is read before the file. The others are for commands that talk to a server.
const OF_CLI: [&str; 4] = ["GREENROOM_CONFIG", "GREENROOM_SERVER", "GREENROOM_TOKEN", "GREENROOM_PROFILE"];
/// Whether Kubernetes sets this variable, which it does in every container beside a service with the name `greenroom`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let Some(rest) = name.strip_prefix("GREENROOM_") else { return false };
    match rest.strip_prefix("PORT") {
        Some("") => value.contains("://"),
        Some(port) => port.strip_prefix('_').is_some_and(|port| port.starts_with(|c: char| c.is_ascii_digit())),
        None => ["SERVICE_HOST", "SERVICE_PORT"]
            .iter()
            .any(|word| rest.strip_prefix(word).is_some_and(|more| more.is_empty() || more.starts_with('_'))),
    }
}

fn is_setting(name: &str, value: &str) -> bool {
    !OF_SLOTS.contains(&name) && !OF_CLI.contains(&name) && !is_of_kubernetes(name, value)
}

/// A sort key for paths, so that the tenth entry of a list comes after the ninth.
fn countable(path: &str) -> Vec<(usize, &str)> {
    path.split("__").map(|part| (part.parse().unwrap_or(0), part)).collect()
}

/// Adds the environment to `tree`: first the older names of variables, then the names of the settings. Reports a
/// variable that fits no setting.
pub fn lay_environment(tree: &mut Tree, variables: &BTreeMap<String, String>, complaints: &mut Vec<String>) {
    for (name, value) in variables {
        lay_older_name(tree, name, value, complaints);
    }
    let mut settings: Vec<(String, &String, &String)> = variables
        .iter()
        .filter(|(name, value)| is_setting(name, value))
        .filter_map(|(name, value)| Some((name.strip_prefix("GREENROOM_")?.to_ascii_lowercase(), name, value)))
        .collect();
    settings.sort_by(|left, right| countable(&left.0).cmp(&countable(&right.0)));
    for (path, name, value) in settings {
        let set = match named_by_file(&path) {
            Some(_) if variables.contains_key(name.trim_end_matches(FILE_SUFFIX)) => {
                Err(format!("{} is set too", name.trim_end_matches(FILE_SUFFIX)))
            }
            Some(path) => read_secret(value).and_then(|value| set_by_variable(tree, path, &value, name)),
            None => set_by_variable(tree, &path, value, name),
        };
        if let Err(sentence) = set {
            complaints.push(format!("the environment variable {name} cannot be used: {sentence}"));
        }
    }
    // Last, because their pools may come from the environment too.
    for (name, value) in variables {
        lay_older_name_of_pools(tree, name, value);
    }
}

/// Follows the name of a setting where the variable names a file that holds the value. Docker, Kubernetes and systemd
/// hand out secrets as files.
const FILE_SUFFIX: &str = "_FILE";

/// The path of the setting whose value is in a file. The keys below `env` are variables of bots, under any name.
fn named_by_file(path: &str) -> Option<&str> {
    path.strip_suffix("_file").filter(|path| !path.split("__").any(|part| part == "env"))
}

/// The text of a file without the line ends at its end, which editors and `echo` add.
fn read_secret(file: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file} cannot be read: {error}"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn set_by_variable(tree: &mut Tree, path: &str, value: &str, name: &str) -> Result<(), String> {
    let path: Vec<&str> = path.split("__").collect();
    tree.set(&path, plain(value), Origin::Variable(name.to_owned()))
}

/// Adds a flag `--set path.to.key=value` to `tree`.
pub fn lay_flag(tree: &mut Tree, assignment: &str, complaints: &mut Vec<String>) {
    let Some((path, value)) = assignment.split_once('=') else {
        complaints.push(format!("--set {assignment} has no `=`; write --set key=value"));
        return;
    };
    let path: Vec<&str> = path.split('.').collect();
    if let Err(sentence) = tree.set(&path, plain(value), Origin::Flag(format!("--set {}", path.join(".")))) {
        complaints.push(format!("--set {} cannot be used: {sentence}", path.join(".")));
    }
}

/// A value without a type. Lists and tables are TOML. Everything else is text, which is parsed where its type is known.
fn plain(text: &str) -> toml::Value {
    if text.starts_with('[') || text.starts_with('{') {
        let read: Result<toml::Table, _> = format!("value = {text}").parse();
        if let Some(value) = read.ok().and_then(|mut table| table.remove("value")) {
            return value;
        }
    }
    toml::Value::String(text.to_owned())
}

/// Variables with the names that older deployments use. Their times are in milliseconds.
fn lay_older_name(tree: &mut Tree, name: &str, value: &str, complaints: &mut Vec<String>) {
    let times = ["DEFAULT_QUEUE_TIMEOUT", "MAX_QUEUE_TIMEOUT", "POLL_INTERVAL", "SLOT_RECOVERY_INTERVAL_MS"];
    if times.contains(&name) && value.parse::<u64>().is_err() {
        complaints.push(format!("the environment variable {name} is `{value}`, but must be a number of milliseconds"));
        return;
    }
    let millis = toml::Value::String(format!("{value}ms"));
    let number = toml::Value::String(value.to_owned());
    let (path, value): (&[&str], _) = match name {
        "DEFAULT_QUEUE_TIMEOUT" => (&["queue", "default_timeout"], millis),
        "MAX_QUEUE_TIMEOUT" => (&["queue", "max_timeout"], millis),
        "POLL_INTERVAL" => (&["queue", "poll_interval"], millis),
        "SLOT_RECOVERY_INTERVAL_MS" => (&["recovery", "interval"], millis),
        "SLOT_MAX_RECOVERY_ATTEMPTS" => (&["recovery", "max_attempts"], number),
        "DEPLOYMENT_QUEUE_MAX_CONCURRENT" => (&["deploy", "max_concurrent"], number),
        _ => return,
    };
    if let Err(sentence) = tree.set(path, value, Origin::Variable(name.to_owned())) {
        complaints.push(format!("the environment variable {name} cannot be used: {sentence}"));
    }
}

fn lay_older_name_of_pools(tree: &mut Tree, name: &str, value: &str) {
    let (path, applies): (&[&str], fn(&Tree) -> bool) = match name {
        "MAX_POOL_SIZE" => (&["max_slots"], |_| true),
        "COOLIFY_API_URL" => (&["coolify", "api_url"], is_coolify),
        "COOLIFY_API_TOKEN" => (&["coolify", "api_token"], is_coolify),
        _ => return,
    };
    let value = toml::Value::String(value.to_owned());
    let Tree::Table(entries) = tree else { return };
    let Some(Tree::List(pools)) = entries.get_mut("pool") else { return };
    for pool in pools.iter_mut().filter(|pool| applies(pool)) {
        if matches!(pool.at(path), Some(Tree::Leaf(_, Origin::Variable(_)))) {
            // The setting's own name is set, and takes precedence.
            continue;
        }
        // A pool is a table, and a path without numbers always fits into it.
        let _ = pool.set(path, value.clone(), Origin::Variable(name.to_owned()));
    }
}

fn is_coolify(pool: &Tree) -> bool {
    let Tree::Table(entries) = pool else { return false };
    matches!(entries.get("provider"), Some(Tree::Leaf(toml::Value::String(provider), _)) if provider == "coolify")
}
