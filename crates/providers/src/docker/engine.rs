//! A client for one Docker Engine: connections, errors, images, logs and checks. The Docker provider and the Swarm
//! provider share it.

use std::collections::HashMap;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::{CreateImageOptionsBuilder, LogsOptions, LogsOptionsBuilder};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::{Stream, StreamExt};
use tokio::sync::OnceCell;

use super::credentials;
use crate::check::Check;
use crate::error_text::with_causes;
use crate::{LogLine, Progress, ProviderError, Pulled, log_tail};

const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";
/// How long an engine may take to begin an answer, in seconds.
const TIMEOUT: u64 = 60;

/// The label that names the installation of a container or service.
pub const INSTALLATION: &str = "greenroom.installation";
/// The label that names the slot of a container or service.
pub const SLOT: &str = "greenroom.slot";

#[derive(Debug)]
pub struct Engine {
    pub host: String,
    docker: OnceCell<Docker>,
}

/// The size of an engine's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    pub cpus: u32,
    /// In bytes.
    pub memory: u64,
}

impl Engine {
    /// The engine at this host. Without a host, the engine at `DOCKER_HOST`, or at its usual socket.
    pub fn new(host: Option<&str>) -> Self {
        Self { host: host_of(host), docker: OnceCell::new() }
    }

    /// Connects to the engine with an API version that the engine supports.
    pub async fn docker(&self) -> Result<&Docker, ProviderError> {
        self.docker
            .get_or_try_init(|| async {
                let docker = match self.host.split_once("://") {
                    Some(("unix", _)) => Docker::connect_with_unix(&self.host, TIMEOUT, API_DEFAULT_VERSION),
                    Some(("tcp" | "http", _)) => Docker::connect_with_http(&self.host, TIMEOUT, API_DEFAULT_VERSION),
                    _ => {
                        let text = format!(
                            "the address of a Docker Engine must begin with unix:// or tcp://, unlike {}",
                            self.host
                        );
                        return Err(ProviderError::permanent(text));
                    }
                };
                let docker = docker.map_err(|error| self.unreachable(&error))?;
                docker.negotiate_version().await.map_err(|error| self.unreachable(&error))
            })
            .await
    }

    fn unreachable(&self, error: &Error) -> ProviderError {
        match provider_error(error) {
            error if error.retryable => ProviderError {
                message: format!("the Docker Engine at {} does not answer: {}", self.host, error.message),
                ..error
            },
            error => error,
        }
    }

    pub async fn ping(&self) -> Result<(), ProviderError> {
        self.docker().await?.ping().await.map(drop).map_err(|error| self.unreachable(&error))
    }

    /// The size of the engine's machine.
    pub async fn size(&self) -> Result<HostSize, ProviderError> {
        let info = self.docker().await?.info().await.map_err(|error| self.unreachable(&error))?;
        let cpus = info.ncpu.and_then(|cpus| u32::try_from(cpus).ok());
        let memory = info.mem_total.and_then(|bytes| u64::try_from(bytes).ok());
        match (cpus, memory) {
            (Some(cpus), Some(memory)) => Ok(HostSize { cpus, memory }),
            _ => Err(ProviderError::transient(format!(
                "the Docker Engine at {} does not report its CPUs and memory",
                self.host
            ))),
        }
    }

    pub async fn has_image(&self, image: &str) -> Result<bool, ProviderError> {
        match self.docker().await?.inspect_image(image).await {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error) => Ok(false),
            Err(error) => Err(provider_error(&error)),
        }
    }

    pub async fn pull_image(&self, image: &str, progress: &Progress) -> Result<(), ProviderError> {
        let options = CreateImageOptionsBuilder::default().from_image(&named(image)).build();
        let login = credentials::of(image).await;
        let refused = |error: &Error| login.explain(pull_error(image, error));
        let mut steps = Box::pin(self.docker().await?.create_image(Some(options), None, login.credentials.clone()));
        let mut layers = Layers::default();
        while let Some(step) = steps.next().await {
            let step = step.map_err(|error| refused(&error))?;
            if let Some(message) = step.error_detail.as_ref().and_then(|detail| detail.message.clone()) {
                return Err(refused(&Error::DockerStreamError { error: message }));
            }
            layers.note(&step);
            progress.report(step_message(&step));
            progress.set(layers.pulled());
        }
        Ok(())
    }

    /// Checks the connection to the engine, and whether the image is there.
    pub async fn check(&self, image: &str) -> Vec<Check> {
        let version = match self.docker().await {
            Ok(docker) => docker.version().await.map_err(|error| self.unreachable(&error)),
            Err(error) => Err(error),
        };
        let version = match version {
            Ok(version) => version.version.unwrap_or_else(|| "of unknown version".to_owned()),
            Err(error) => return vec![Check::bad("reachable", error.message)],
        };
        let reachable = Check::good("reachable", format!("Docker Engine {version} at {}", self.host));
        vec![reachable, self.check_image(image).await]
    }

    async fn check_image(&self, image: &str) -> Check {
        match self.has_image(image).await {
            Ok(true) => Check::good("image", format!("{image} is pulled")),
            Ok(false) => match self.is_at_registry(image).await {
                Ok(()) => Check::good("image", format!("{image} is not pulled yet; the registry has it")),
                Err(error) => Check::bad("image", error.message),
            },
            Err(error) => Check::bad("image", error.message),
        }
    }

    async fn is_at_registry(&self, image: &str) -> Result<(), ProviderError> {
        let login = credentials::of(image).await;
        let found = self.docker().await?.inspect_registry_image(image, login.credentials.clone()).await;
        found.map(drop).map_err(|error| login.explain(pull_error(image, &error)))
    }
}

/// The address of the engine for this configuration.
pub fn host_of(configured: Option<&str>) -> String {
    let from_environment = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    configured.map(str::to_owned).or(from_environment).unwrap_or_else(|| DEFAULT_HOST.to_owned())
}

/// A step of a pull in one line: the layer, the action and its progress.
fn step_message(step: &CreateImageInfo) -> String {
    let detail = step.progress_detail.as_ref();
    let bytes = detail.and_then(|detail| detail.current).map(|current| {
        detail
            .and_then(|detail| detail.total)
            .map_or(format!("{current} bytes"), |total| format!("{current} of {total} bytes"))
    });
    let parts = [step.id.clone(), step.status.clone(), bytes];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// An image's name with a tag. Without a tag, the engine would pull every tag of the image.
fn named(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

/// Whether the engine answered that the object does not exist.
pub fn is_absent(error: &Error) -> bool {
    status(error) == Some(404)
}

pub fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The options for the last lines of a log.
pub fn last_of_log() -> LogsOptions {
    LogsOptionsBuilder::default().stdout(true).stderr(true).tail("100").build()
}

/// The last lines of a log, or `None` if there are none.
pub async fn last_lines(lines: impl Stream<Item = Result<LogOutput, Error>>) -> Result<Option<String>, ProviderError> {
    let mut lines = Box::pin(lines);
    let mut text = Vec::new();
    while let Some(line) = lines.next().await {
        match line {
            Ok(line) => text.extend_from_slice(&line.into_bytes()),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(provider_error(&error)),
        }
    }
    Ok(log_tail::lines(&String::from_utf8_lossy(&text)))
}

/// The most bytes of a log that are read, so that its last 64 KiB are included.
const LOG_BYTES_MAX: usize = 512 * 1024;

/// The options for as much of a log as can be kept, with timestamps.
pub fn whole_log() -> LogsOptions {
    LogsOptionsBuilder::default().stdout(true).stderr(true).timestamps(true).tail("5000").build()
}

/// The lines of a log that was requested with timestamps.
pub async fn timed_lines(lines: impl Stream<Item = Result<LogOutput, Error>>) -> Result<Vec<LogLine>, ProviderError> {
    let mut lines = Box::pin(lines);
    let mut text = Vec::new();
    while let Some(line) = lines.next().await {
        match line {
            Ok(line) => text.extend_from_slice(&line.into_bytes()),
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(provider_error(&error)),
        }
        if text.len() > 2 * LOG_BYTES_MAX {
            text.drain(..text.len() - LOG_BYTES_MAX);
        }
    }
    Ok(log_tail::timed(&String::from_utf8_lossy(&text)))
}

/// Classifies an engine's error: a refusal is permanent, an internal failure is transient.
pub fn provider_error(error: &Error) -> ProviderError {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            // If another process removed one of these meanwhile, the next attempt makes or pulls it again.
            const OURS: [&str; 3] = ["No such image", "No such container", "service "];
            let is_gone = *status_code == 404 && OURS.iter().any(|what| message.contains(what));
            if matches!(status_code, 502..=504) {
                ProviderError::unavailable(message.trim())
            } else if is_gone || *status_code >= 500 || matches!(status_code, 408 | 409 | 429) {
                ProviderError::transient(message.trim())
            } else {
                ProviderError::permanent(message.trim())
            }
        }
        Error::RequestTimeoutError => ProviderError::transient("the Docker Engine did not answer in time"),
        Error::IOError { .. }
        | Error::HttpClientError { .. }
        | Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. } => ProviderError::unavailable(with_causes(error)),
        other => ProviderError::transient(with_causes(other)),
    }
}

/// Why an image could not be pulled. If a registry does not exist, or refuses or lacks the image, the error is
/// permanent. Trouble with the connection is transient.
fn pull_error(image: &str, error: &Error) -> ProviderError {
    const PERMANENT: [&str; 7] = [
        "not found",
        "manifest unknown",
        "denied",
        "unauthorized",
        "invalid reference",
        "no matching manifest",
        "no such host",
    ];
    // A registry with a rate limit denies images that it gives again later.
    const TRANSIENT: [&str; 3] = ["toomanyrequests", "too many requests", "rate limit"];
    let error = match error {
        Error::DockerStreamError { error } => ProviderError::transient(error.as_str()),
        other => provider_error(other),
    };
    let lower = error.message.to_ascii_lowercase();
    let says = |any: &[&str]| any.iter().any(|word| lower.contains(word));
    ProviderError {
        message: format!("the image {image} cannot be pulled: {}", error.message.trim()),
        retryable: error.is_unavailable || !says(&PERMANENT) || says(&TRANSIENT),
        ..error
    }
}

/// The layers of an image that is being pulled.
#[derive(Debug, Default)]
struct Layers(HashMap<String, Layer>);

#[derive(Debug, Default)]
struct Layer {
    bytes: u64,
    bytes_done: u64,
    done: bool,
}

impl Layers {
    fn note(&mut self, step: &CreateImageInfo) {
        let (Some(id), Some(status)) = (&step.id, step.status.as_deref()) else { return };
        // The first line names the tag, not a layer.
        if status.starts_with("Pulling from") {
            return;
        }
        let layer = self.0.entry(id.clone()).or_default();
        let detail = step.progress_detail.as_ref();
        let bytes = |count: Option<i64>| count.and_then(|count| u64::try_from(count).ok());
        if status == "Downloading" {
            layer.bytes = bytes(detail.and_then(|detail| detail.total)).unwrap_or(layer.bytes);
            layer.bytes_done = bytes(detail.and_then(|detail| detail.current)).unwrap_or(layer.bytes_done);
        }
        if matches!(status, "Download complete" | "Pull complete" | "Already exists") {
            layer.bytes_done = layer.bytes;
        }
        layer.done |= matches!(status, "Pull complete" | "Already exists");
    }

    fn pulled(&self) -> Pulled {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Pulled {
            layers: count(self.0.len()),
            layers_done: count(self.0.values().filter(|layer| layer.done).count()),
            bytes: self.0.values().map(|layer| layer.bytes).sum(),
            bytes_done: self.0.values().map(|layer| layer.bytes_done).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    fn step(id: &str, status: &str, detail: Option<(i64, i64)>) -> CreateImageInfo {
        let progress_detail =
            detail.map(|(current, total)| ProgressDetail { current: Some(current), total: Some(total) });
        let (id, status) = (Some(id.to_owned()), Some(status.to_owned()));
        CreateImageInfo { id, status, progress_detail, ..Default::default() }
    }

    #[test]
    fn a_pull_counts_layers_and_bytes() {
        let mut layers = Layers::default();
        layers.note(&step("latest", "Pulling from team/bot", None));
        layers.note(&step("a", "Already exists", None));
        layers.note(&step("b", "Pulling fs layer", None));
        layers.note(&step("b", "Downloading", Some((30, 100))));
        assert_eq!(layers.pulled(), Pulled { layers: 2, layers_done: 1, bytes: 100, bytes_done: 30 });
        layers.note(&step("b", "Download complete", None));
        layers.note(&step("b", "Pull complete", None));
        assert_eq!(layers.pulled(), Pulled { layers: 2, layers_done: 2, bytes: 100, bytes_done: 100 });
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        assert_eq!(named("team/bot"), "team/bot:latest");
        assert_eq!(named("localhost:5000/bot"), "localhost:5000/bot:latest");
        assert_eq!(named("team/bot:1.4"), "team/bot:1.4");
        assert_eq!(named("team/bot@sha256:ab"), "team/bot@sha256:ab");
    }

    #[test]
    fn an_image_that_a_registry_does_not_have_is_a_permanent_error() {
        let error = |status_code, message: &str| {
            let message = message.to_owned();
            pull_error("bot", &Error::DockerResponseServerError { status_code, message })
        };
        assert!(!error(404, "manifest for bot:1 not found: manifest unknown").retryable);
        assert!(!error(500, "unauthorized: authentication required").retryable);
        assert!(!error(404, "pull access denied for bot, repository does not exist").retryable);
        assert!(!error(500, "dial tcp: lookup registry.example: no such host").retryable);
        assert!(error(500, "dial tcp: lookup registry.example: server misbehaving").retryable);
        assert!(error(500, "toomanyrequests: access denied: You have reached your pull rate limit").retryable);
        assert!(error(500, "dial tcp 10.0.0.1:5000: connect: connection refused").retryable);
    }
}
