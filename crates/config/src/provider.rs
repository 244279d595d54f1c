//! The provider of a pool, as configured. Each kind of provider has its own section with its own types.

use std::collections::BTreeMap;

use domain::{Attributes, ProviderKind};
use secrecy::SecretString;

use super::ec2::{self, Ec2Config};
use super::layers::Tree;
use super::section::Section;

/// The least memory that Docker accepts, in MiB.
const LEAST_MEMORY: u64 = 6;
const MIB: u64 = 1024 * 1024;

/// The provider of a pool's slots, with its settings.
#[derive(Clone, Debug)]
pub enum ProviderConfig {
    Process(ProcessConfig),
    Docker(DockerConfig),
    Swarm(DockerConfig),
    Nomad(NomadConfig),
    Coolify(CoolifyConfig),
    Ec2(Ec2Config),
}

#[derive(Clone, Debug, Default)]
pub struct ProcessConfig {
    /// The command of a slot. Without it, a slot runs the demo bot.
    pub command: Option<Vec<String>>,
    /// The user that slots run as. Without it, slots run as the server's user.
    pub user: Option<String>,
}

/// The size of the pool.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub max_slots: u32,
    pub min_idle: u32,
}

/// For `docker` and `swarm`.
#[derive(Clone, Debug, Default)]
pub struct DockerConfig {
    /// The address of the engine. Without it, the engine that the docker command would use.
    pub host: Option<String>,
    pub image: String,
    /// Replaces the image's entry point and command.
    pub command: Option<Vec<String>>,
    pub network: Option<String>,
    pub cpus: Option<f64>,
    /// In bytes.
    pub memory: Option<u64>,
    pub env: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct NomadConfig {
    pub address: String,
    pub token: Option<SecretString>,
    pub region: Option<String>,
    pub namespace: String,
    pub datacenters: Vec<String>,
    pub image: String,
    pub command: Option<Vec<String>>,
    /// In MHz.
    pub cpu: u32,
    /// In MiB.
    pub memory: u32,
    pub env: BTreeMap<String, String>,
    /// Files in PEM.
    pub ca_cert: Option<String>,
    pub client_cert: Option<String>,
    pub client_key: Option<String>,
    /// The name in the servers' certificate, if it differs from the host of the address.
    pub tls_server_name: Option<String>,
}

#[derive(Clone, Debug)]
pub struct CoolifyConfig {
    /// With or without `/api/v1`.
    pub api_url: String,
    pub api_token: SecretString,
    pub project_uuid: String,
    pub server_uuid: String,
    pub environment_name: String,
    pub destination_uuid: Option<String>,
    pub image: String,
    pub tag: String,
    pub cpus: Option<f64>,
    /// In bytes.
    pub memory: Option<u64>,
    pub env: BTreeMap<String, String>,
    /// How many requests per minute Coolify accepts.
    pub requests_per_minute: u32,
}

impl ProviderConfig {
    pub fn kind(&self) -> ProviderKind {
        match self {
            ProviderConfig::Process(_) => ProviderKind::Process,
            ProviderConfig::Docker(_) => ProviderKind::Docker,
            ProviderConfig::Swarm(_) => ProviderKind::Swarm,
            ProviderConfig::Nomad(_) => ProviderKind::Nomad,
            ProviderConfig::Coolify(_) => ProviderKind::Coolify,
            ProviderConfig::Ec2(_) => ProviderKind::Ec2,
        }
    }

    pub fn as_str(&self) -> &'static str {
        self.kind().as_str()
    }

    /// The configured environment of its slots, if it has one.
    pub fn environment_mut(&mut self) -> Option<&mut BTreeMap<String, String>> {
        match self {
            Self::Docker(config) | Self::Swarm(config) => Some(&mut config.env),
            Self::Nomad(config) => Some(&mut config.env),
            Self::Coolify(config) => Some(&mut config.env),
            Self::Process(_) | Self::Ec2(_) => None,
        }
    }

    /// Whether a slot gets its machine only when it has a bot.
    pub fn provisioned_per_bot(&self) -> bool {
        self.kind().provisioned_per_bot()
    }

    /// The attributes that it can provision for a bot. `None` if its slots have fixed attributes.
    pub fn provisionable(&self) -> Option<Vec<Attributes>> {
        match self {
            ProviderConfig::Ec2(config) => Some(config.offers()),
            _ => None,
        }
    }

    /// The image of its slots, if it uses images.
    pub fn image(&self) -> Option<String> {
        match self {
            ProviderConfig::Process(_) | ProviderConfig::Ec2(_) => None,
            ProviderConfig::Docker(config) | ProviderConfig::Swarm(config) => Some(config.image.clone()),
            ProviderConfig::Nomad(config) => Some(config.image.clone()),
            ProviderConfig::Coolify(config) => Some(format!("{}:{}", config.image, config.tag)),
        }
    }

    /// Whether its slots share the loopback address of this machine.
    pub fn shares_loopback(&self) -> bool {
        match self {
            ProviderConfig::Process(_) => true,
            ProviderConfig::Docker(config) => config.network.as_deref() == Some("host"),
            _ => false,
        }
    }
}

/// Reads the section of the pool's own provider. A section of another provider is an unknown key. `None` if required
/// settings are missing.
pub fn read(section: &mut Section<'_>, index: usize, kind: ProviderKind, size: Size) -> Option<ProviderConfig> {
    let Some(tree) = section.take(kind.as_str()) else {
        if kind == ProviderKind::Process {
            return Some(ProviderConfig::Process(ProcessConfig::default()));
        }
        section.complain(format!("`pool.{index}.{kind}` is missing; the provider {kind} needs `{kind} = {{ … }}`"));
        return None;
    };
    let mut own = section.own(kind.as_str(), tree);
    let provider = match kind {
        ProviderKind::Process => process(&mut own).map(ProviderConfig::Process),
        ProviderKind::Docker => docker(&mut own).map(ProviderConfig::Docker),
        ProviderKind::Swarm => docker(&mut own).map(ProviderConfig::Swarm),
        ProviderKind::Nomad => nomad(&mut own).map(ProviderConfig::Nomad),
        ProviderKind::Coolify => coolify(&mut own).map(ProviderConfig::Coolify),
        ProviderKind::Ec2 => ec2::read(&mut own, size).map(ProviderConfig::Ec2),
    };
    own.finish();
    provider
}

/// Reads a required setting, and reports it if it is missing.
pub(super) fn required<T>(
    section: &mut Section<'_>,
    key: &'static str,
    read: impl FnOnce(&mut Section<'_>, &'static str) -> Option<T>,
) -> Option<T> {
    if !section.has(key) {
        let path = section.key_path(key);
        section.complain(format!("`{path}` is missing"));
    }
    read(section, key)
}

fn process(section: &mut Section<'_>) -> Option<ProcessConfig> {
    let user = section.text("user");
    let command = required(section, "command", |own, key| own.texts(key))?;
    Some(ProcessConfig { command: Some(command), user })
}

fn docker(section: &mut Section<'_>) -> Option<DockerConfig> {
    let host = section.text("host");
    if let Some(host) = host.as_deref().filter(|host| !is_host(host)) {
        let path = section.key_path("host");
        section.complain(if has_user(host) {
            format!("`{path}` must have no user name or password: metrics and logs show it")
        } else {
            format!("`{path}` is `{host}`, but must begin with unix://, tcp:// or http://")
        });
    }
    Some(DockerConfig {
        host,
        command: section.texts("command"),
        network: section.text("network"),
        cpus: cpus(section),
        memory: memory(section),
        env: environment(section),
        image: required(section, "image", image)?,
    })
}

fn is_host(host: &str) -> bool {
    let has_scheme = |scheme: &&str| host.strip_prefix(*scheme).is_some_and(|rest| !rest.is_empty());
    ["unix://", "tcp://", "http://"].iter().any(has_scheme) && !has_user(host)
}

/// Whether a URL has a user name or a password before its host.
fn has_user(url: &str) -> bool {
    let is_path = url.starts_with("unix://");
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    !is_path && after_scheme.split(['/', '?', '#']).next().is_some_and(|host| host.contains('@'))
}

fn nomad(section: &mut Section<'_>) -> Option<NomadConfig> {
    let (token, region) = (section.text("token"), section.text("region"));
    let namespace = section.text("namespace").unwrap_or_else(|| "default".to_owned());
    let datacenters = section.texts("datacenters").unwrap_or_else(|| vec!["*".to_owned()]);
    let (command, env) = (section.texts("command"), environment(section));
    let (cpu, memory) = (section.number("cpu", 100, 1..=10_000_000), section.number("memory", 300, 10..=100_000_000));
    let [ca_cert, client_cert, client_key] = ["ca_cert", "client_cert", "client_key"].map(|key| section.text(key));
    if client_cert.is_some() != client_key.is_some() {
        let [cert, key] = ["client_cert", "client_key"].map(|key| section.key_path(key));
        section.complain(format!("`{cert}` and `{key}`: set both, or neither"));
    }
    let address = required(section, "address", address);
    let tls_server_name = section.text("tls_server_name");
    if let Some(name) = tls_server_name.as_deref().filter(|name| !is_name(name)) {
        let path = section.key_path("tls_server_name");
        section.complain(format!("`{path}` is `{name}`, which is not a server name such as server.global.nomad"));
    }
    if tls_server_name.is_some() && address.as_deref().is_some_and(|address| !address.starts_with("https://")) {
        let [name, address] = ["tls_server_name", "address"].map(|key| section.key_path(key));
        section.complain(format!("`{name}` needs a server with a certificate: `{address}` must begin with https://"));
    }
    Some(NomadConfig {
        token: token.map(Into::into),
        region,
        namespace,
        datacenters,
        command,
        cpu,
        memory,
        env,
        ca_cert,
        client_cert,
        client_key,
        tls_server_name,
        image: required(section, "image", image)?,
        address: address?,
    })
}

/// Whether it is a name that a certificate can contain, and not an IP address.
fn is_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    name.chars().all(fits) && name.parse::<std::net::IpAddr>().is_err()
}

fn coolify(section: &mut Section<'_>) -> Option<CoolifyConfig> {
    let (destination_uuid, tag) = (section.text("destination_uuid"), section.text("tag"));
    let (cpus, memory, env) = (cpus(section), memory(section), environment(section));
    let requests_per_minute = section.number("requests_per_minute", 200, 10..=1_000_000);
    let api_url = required(section, "api_url", address);
    let [api_token, project_uuid, server_uuid, environment_name] =
        ["api_token", "project_uuid", "server_uuid", "environment_name"]
            .map(|key| required(section, key, |own, key| own.text(key)));
    let image = required(section, "image", image)?;
    let (image, tag) = parted(image, tag);
    Some(CoolifyConfig {
        destination_uuid,
        cpus,
        memory,
        env,
        requests_per_minute,
        image,
        tag,
        api_url: api_url?,
        api_token: api_token?.into(),
        project_uuid: project_uuid?,
        server_uuid: server_uuid?,
        environment_name: environment_name?,
    })
}

/// The name and the tag of an image. `tag` takes precedence over a tag in the name.
pub fn parted(image: String, tag: Option<String>) -> (String, String) {
    // A colon before the last slash belongs to the port of a registry.
    let at =
        image.rfind('@').or_else(|| image.rfind(':').filter(|colon| image.rfind('/').is_none_or(|at| at < *colon)));
    match (tag, at) {
        (Some(tag), None) => (image, tag),
        (Some(tag), Some(at)) => (image[..at].to_owned(), tag),
        (None, Some(at)) => (image[..at].to_owned(), image[at + 1..].to_owned()),
        (None, None) => (image, "latest".to_owned()),
    }
}

pub(super) fn address(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let url = section.text(key)?;
    if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
        let path = section.key_path(key);
        section.complain(format!("`{path}` must begin with http:// or https://"));
    }
    if has_user(&url) {
        let path = section.key_path(key);
        section.complain(format!("`{path}` must have no user name or password: metrics and logs show it"));
    }
    Some(url.trim_end_matches('/').to_owned())
}

fn image(section: &mut Section<'_>, key: &'static str) -> Option<String> {
    let image = section.text(key)?;
    if image.contains(char::is_whitespace) || image.contains("://") {
        let path = section.key_path(key);
        section.complain(format!("`{path}` is `{image}`, which is not an image name such as team/meet-bot:1.4"));
    }
    Some(image)
}

fn cpus(section: &mut Section<'_>) -> Option<f64> {
    section.read("cpus", "a number", |value| {
        let cpus = match value {
            toml::Value::Integer(number) => Some(number as f64),
            toml::Value::Float(number) => Some(number),
            toml::Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        cpus.filter(|cpus| (0.01..=10_000.0).contains(cpus))
            .ok_or("must be a number of processors, such as 1.5".to_owned())
    })
}

/// An amount of memory in bytes. A number is in MiB; a text has a unit, in Docker's notation.
fn memory(section: &mut Section<'_>) -> Option<u64> {
    section.read("memory", "an amount of memory", |value| {
        let bytes = match value {
            toml::Value::Integer(number) => u64::try_from(number).ok().and_then(|number| number.checked_mul(MIB)),
            toml::Value::String(text) => in_bytes(&text),
            _ => None,
        };
        let wanted =
            || format!("must be an amount of memory of at least {LEAST_MEMORY} MiB, such as \"512m\" or \"2g\"");
        bytes.filter(|bytes| (LEAST_MEMORY * MIB..=i64::MAX as u64).contains(bytes)).ok_or_else(wanted)
    })
}

fn in_bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim() {
        "b" => 1,
        "k" | "kb" | "kib" => 1024,
        "" | "m" | "mb" | "mib" => MIB,
        "g" | "gb" | "gib" => 1024 * MIB,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Variables of the slots' environment, in addition to those that every slot has.
fn environment(section: &mut Section<'_>) -> BTreeMap<String, String> {
    let path = section.key_path("env");
    let entries = match section.take("env") {
        None => return BTreeMap::new(),
        Some(Tree::Table(entries)) => entries,
        Some(_) => {
            section.complain(format!("`{path}` must be a table of variables, such as {{ LANG = \"C.UTF-8\" }}"));
            return BTreeMap::new();
        }
    };
    let mut variables = BTreeMap::new();
    for (name, tree) in entries {
        let value = match tree {
            Tree::Leaf(toml::Value::String(text), _) => text,
            Tree::Leaf(value @ (toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_)), _) => {
                value.to_string()
            }
            _ => {
                section.complain(format!("`{path}.{name}` must be text"));
                continue;
            }
        };
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            section.complain(format!("`{path}.{name}` is not a valid environment variable"));
        } else if name.starts_with("GREENROOM_") || name == "BOT_DATA" {
            section.complain(format!("`{path}.{name}` is reserved: Greenroom sets it"));
        } else {
            variables.insert(name, value);
        }
    }
    variables
}
