//! Who we are at a registry, as `docker login` has kept it in `~/.docker/config.json`, or in the folder that
//! `DOCKER_CONFIG` names. Helpers that keep secrets elsewhere are not asked.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use serde_json::Value;

/// What Docker's own registry is called in that file, after its scheme.
const OWN_REGISTRY: &str = "index.docker.io/v1";

/// The credentials for the registry of an image, where there are some.
pub async fn of(image: &str) -> Option<DockerCredentials> {
    let file = tokio::fs::read_to_string(folder()?.join("config.json")).await.ok()?;
    read(&file, &registry(image))
}

fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))
}

/// The registry that an image comes from: the first part of its name, if that can be a host.
fn registry(image: &str) -> String {
    match image.split_once('/') {
        Some(("docker.io" | "index.docker.io", _)) => OWN_REGISTRY.to_owned(),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host.to_owned(),
        _ => OWN_REGISTRY.to_owned(),
    }
}

fn read(file: &str, registry: &str) -> Option<DockerCredentials> {
    let file: Value = serde_json::from_str(file).ok()?;
    let entries = file["auths"].as_object()?;
    let bare =
        |name: &str| name.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let (name, entry) = entries.iter().find(|(name, _)| bare(name) == bare(registry))?;
    let text = |key: &str| entry[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let (mut username, mut password) = (text("username"), text("password"));
    if let Some(auth) = text("auth").and_then(|auth| STANDARD.decode(auth).ok())
        && let Some((name, secret)) = String::from_utf8(auth).ok()?.split_once(':')
    {
        (username, password) = (Some(name.to_owned()), Some(secret.trim_end_matches('\0').to_owned()));
    }
    let identitytoken = text("identitytoken");
    if username.is_none() && identitytoken.is_none() {
        return None;
    }
    let serveraddress = Some(name.clone());
    Some(DockerCredentials { username, password, identitytoken, serveraddress, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_images_own_registry() {
        // "bot:secret"
        let own = format!("https://{OWN_REGISTRY}/");
        let file = serde_json::json!({"auths": {"registry.example:5000": {"auth": "Ym90OnNlY3JldA=="},
                                                own: {"username": "me", "password": "pass"}}});
        let file = &file.to_string();
        let found = |image| {
            let found = read(file, &registry(image))?;
            Some((found.username?, found.password?))
        };
        assert_eq!(found("registry.example:5000/bot:1"), Some(("bot".to_owned(), "secret".to_owned())));
        assert_eq!(found("team/bot"), Some(("me".to_owned(), "pass".to_owned())));
        assert_eq!(found("docker.io/team/bot"), Some(("me".to_owned(), "pass".to_owned())));
        assert_eq!(found("elsewhere.example/bot"), None);
    }
}
