//! The login of the server's user at a registry, as `docker login` stores it: in `~/.docker/config.json`, in the folder
//! that `DOCKER_CONFIG` names, or with the credential helper that the file names.
//!
//! A login that cannot be read does not stop a pull, because a public image needs none. The problem is logged, and it is
//! part of the error if the registry then refuses. Neither text contains what a helper printed: that may be a secret.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use docker_credential::{CredentialRetrievalError, DockerCredential};
use serde::Deserialize;

use crate::ProviderError;

/// The name of Docker's own registry in the file.
const DOCKER_HUB: &str = concat!("https://", "index.docker.io/v1/");
/// The same registry, as other tools write it.
const ALSO_DOCKER_HUB: [&str; 3] = ["index.docker.io", "index.docker.io/v1", "index.docker.io/v1/"];
/// The text that a helper prints when it knows no login for a registry. The helpers of all vendors print the same text.
const NOT_FOUND: &str = "credentials not found in native keychain";
/// A helper that takes longer probably asks a question that no user sees.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why the login at a registry could not be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("{file} cannot be read: {why}")]
    Unreadable { file: String, why: String },
    #[error("{file} is not valid: {why}")]
    Malformed { file: String, why: String },
    #[error("the login for {registry} in {file} is not valid: its `auth` must be user:password in base64")]
    Undecodable { file: String, registry: String },
    #[error("the login for {registry} in {file} contradicts itself: `auth` differs from `username` and `password`")]
    Contradictory { file: String, registry: String },
    #[error(
        "the credential helper `{helper}`, which {file} names, cannot be run: it must be on the PATH of the server"
    )]
    HelperNotRun { file: String, helper: String },
    #[error("the credential helper `{helper}` failed; to see why, run `echo {registry} | {helper} get`")]
    HelperFailed { helper: String, registry: String },
    #[error("the answer of the credential helper `{helper}` for {registry} is not a login")]
    HelperAnswer { helper: String, registry: String },
    #[error("the credential helper for {registry} failed, or did not answer within {} s", HELPER_TIMEOUT.as_secs())]
    HelperSilent { registry: String },
}

/// The login at the registry of an image.
pub struct Login {
    /// `None` when there is none, and when it could not be read.
    pub credentials: Option<DockerCredentials>,
    problem: Option<CredentialsError>,
}

/// The login itself is a secret.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { credentials, problem } = self;
        f.debug_struct("Login").field("found", &credentials.is_some()).field("problem", problem).finish()
    }
}

impl Login {
    /// Adds to the error of a registry why no login was sent.
    pub fn explain(&self, error: ProviderError) -> ProviderError {
        match &self.problem {
            Some(problem) => {
                ProviderError { message: format!("{}; no login was sent, because {problem}", error.message), ..error }
            }
            None => error,
        }
    }
}

/// The login for the registry of an image.
pub async fn of(image: &str) -> Login {
    let names = registry_names(image);
    let registry = names[0].clone();
    let found = match config_file() {
        Some(file) => read(file, names).await,
        None => Ok(None),
    };
    match found {
        Ok(credentials) => Login { credentials, problem: None },
        Err(problem) => {
            tracing::warn!(registry, error = %problem, "registry login not read");
            Login { credentials: None, problem: Some(problem) }
        }
    }
}

fn config_file() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))?;
    Some(folder.join("config.json"))
}

/// The names under which the file may have the registry that an image comes from, the usual one first. The registry is the
/// first part of the image's name, if that can be a host.
fn registry_names(image: &str) -> Vec<String> {
    match image.split_once('/') {
        Some((host, _))
            if !matches!(host, "docker.io" | "index.docker.io")
                && (host.contains(['.', ':']) || host == "localhost") =>
        {
            vec![host.to_owned(), format!("{host}/")]
        }
        _ => [DOCKER_HUB].into_iter().chain(ALSO_DOCKER_HUB).map(str::to_owned).collect(),
    }
}

/// Reads a file and runs the helper that it names, on a thread of its own: both wait.
async fn read(file: PathBuf, names: Vec<String>) -> Result<Option<DockerCredentials>, CredentialsError> {
    let shown = file.display().to_string();
    let text = match tokio::fs::read_to_string(&file).await {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CredentialsError::Unreadable { file: shown, why: error.to_string() }),
    };
    let registry = names[0].clone();
    let found = tokio::task::spawn_blocking(move || find(&shown, &text, &names));
    match tokio::time::timeout(HELPER_TIMEOUT, found).await {
        Ok(Ok(found)) => found,
        Ok(Err(_)) | Err(_) => Err(CredentialsError::HelperSilent { registry }),
    }
}

fn find(file: &str, text: &str, names: &[String]) -> Result<Option<DockerCredentials>, CredentialsError> {
    // The library does not say where a file is wrong.
    let helpers: Helpers = serde_json::from_str(text)
        .map_err(|error| CredentialsError::Malformed { file: file.to_owned(), why: place_of(&error) })?;
    for name in names {
        let (file, registry, helper) = (file.to_owned(), name.clone(), helpers.of(name));
        let error = match docker_credential::get_credential_from_reader(text.as_bytes(), name) {
            Ok(credential) => return Ok(Some(as_sent(credential, name))),
            Err(error) => error,
        };
        return Err(match error {
            CredentialRetrievalError::NoCredentialConfigured | CredentialRetrievalError::ConfigNotFound => continue,
            CredentialRetrievalError::HelperFailure { stdout, .. } if stdout.contains(NOT_FOUND) => return Ok(None),
            CredentialRetrievalError::HelperFailure { helper, .. } => {
                CredentialsError::HelperFailed { helper, registry }
            }
            CredentialRetrievalError::HelperCommunicationError => CredentialsError::HelperNotRun { file, helper },
            CredentialRetrievalError::MalformedHelperResponse => CredentialsError::HelperAnswer { helper, registry },
            CredentialRetrievalError::CredentialDecodingError => CredentialsError::Undecodable { file, registry },
            CredentialRetrievalError::CredentialMismatchError => CredentialsError::Contradictory { file, registry },
            CredentialRetrievalError::ConfigReadError => {
                CredentialsError::Malformed { file, why: "it does not have the format that Docker writes".to_owned() }
            }
        });
    }
    Ok(None)
}

/// Where a file is not valid. The message of serde for a wrong type repeats the value, which may be a secret.
fn place_of(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// The names of helpers in the file, for errors that name one.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Helpers {
    creds_store: Option<String>,
    cred_helpers: Option<HashMap<String, String>>,
}

impl Helpers {
    /// The program to run for a registry.
    fn of(&self, registry: &str) -> String {
        let own = self.cred_helpers.as_ref().and_then(|helpers| helpers.get(registry)).filter(|name| !name.is_empty());
        format!("docker-credential-{}", own.or(self.creds_store.as_ref()).map_or("", String::as_str))
    }
}

fn as_sent(credential: DockerCredential, registry: &str) -> DockerCredentials {
    let serveraddress = Some(registry.to_owned());
    match credential {
        DockerCredential::IdentityToken(token) => {
            DockerCredentials { identitytoken: Some(token), serveraddress, ..Default::default() }
        }
        DockerCredential::UsernamePassword(username, password) => DockerCredentials {
            username: Some(username),
            // Some versions of Docker have padded the password with zeros.
            password: Some(password.trim_end_matches('\0').to_owned()),
            serveraddress,
            ..Default::default()
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn found(file: &serde_json::Value, image: &str) -> Result<Option<DockerCredentials>, CredentialsError> {
        find("config.json", &file.to_string(), &registry_names(image))
    }

    #[test]
    fn credentials_are_those_of_the_images_own_registry() {
        // "bot:secret"
        let hub = [DOCKER_HUB].into_iter().chain(ALSO_DOCKER_HUB).chain(["docker.io"]);
        for name in hub {
            let file = serde_json::json!({"auths": {"registry.example:5000": {"auth": "Ym90OnNlY3JldA=="},
                                                    name: {"username": "me", "password": "pass"}}});
            let found = |image| {
                let found = found(&file, image).unwrap()?;
                Some((found.username?, found.password?))
            };
            assert_eq!(found("registry.example:5000/bot:1"), Some(("bot".to_owned(), "secret".to_owned())));
            assert_eq!(found("team/bot"), Some(("me".to_owned(), "pass".to_owned())), "{name}");
            assert_eq!(found("docker.io/team/bot"), Some(("me".to_owned(), "pass".to_owned())), "{name}");
            assert_eq!(found("elsewhere.example/bot"), None);
        }
    }

    #[test]
    fn the_scheme_of_a_registry_and_a_slash_behind_it_do_not_matter() {
        for name in ["registry.example", "https://registry.example", "http://registry.example/v2/", "registry.example/"]
        {
            let file = serde_json::json!({"auths": {name: {"auth": "Ym90OnNlY3JldA=="}}});
            let found = found(&file, "registry.example/team/bot").unwrap().unwrap();
            assert_eq!(found.username.as_deref(), Some("bot"), "{name}");
        }
    }

    #[test]
    fn an_identity_token_is_sent_as_one() {
        let file = serde_json::json!({"auths": {"registry.example": {"auth": "Ym90Og==", "identitytoken": "t0ken"}}});
        let found = found(&file, "registry.example/bot").unwrap().unwrap();
        assert_eq!((found.identitytoken.as_deref(), found.password), (Some("t0ken"), None));
    }

    #[test]
    fn errors_do_not_contain_the_secret() {
        let auth = |auth: &str| serde_json::json!({"auths": {"registry.example": {"auth": auth}}});
        let helper = serde_json::json!({"credHelpers": {"registry.example": "nobody-has-this"}});
        let differs = serde_json::json!({"auths": {"registry.example":
            {"auth": "Ym90OnNlY3JldA==", "username": "bot", "password": "hunter2"}}});
        let wrong_type = serde_json::json!({"auths": {}, "credsStore": ["hunter2"]});
        for (file, names) in [
            (auth("hunter2!"), "the login for registry.example in config.json is not valid"),
            (helper, "`docker-credential-nobody-has-this`, which config.json names, cannot be run"),
            (differs, "contradicts itself"),
            (wrong_type, "config.json is not valid: line 1, column"),
        ] {
            let error = found(&file, "registry.example/bot").unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("secret"), "{error}");
        }
    }
}
