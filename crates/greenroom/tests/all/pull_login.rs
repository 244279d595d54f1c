//! The login that a pull sends to a registry, with a credential helper as Docker's documentation describes it. The
//! engine is a stand-in that records its requests. Only a registry can check a login, and the test registry requires
//! none.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use serde_json::{Value, json};

use crate::support::{Backend, Database, Process};

const IMAGE: &str = "registry.example/team/bot:1";

/// A stand-in for an engine that does not have the image. Its registry refuses the login or not.
async fn engine(registry_refuses: bool) -> (String, Arc<Mutex<Option<String>>>) {
    let login = Arc::new(Mutex::new(None));
    let kept = login.clone();
    let answer = move |uri: Uri, headers: HeaderMap| {
        let kept = kept.clone();
        async move { answer(uri.path(), &headers, registry_refuses, &kept) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(answer)).await });
    (host, login)
}

fn answer(path: &str, headers: &HeaderMap, refuses: bool, login: &Mutex<Option<String>>) -> Response {
    if path.ends_with("/version") {
        return axum::Json(json!({"Version": "28.0.0", "ApiVersion": "1.48", "MinAPIVersion": "1.24"})).into_response();
    }
    if !path.contains("/distribution/") {
        return (StatusCode::NOT_FOUND, axum::Json(json!({"message": "no such thing"}))).into_response();
    }
    *login.lock().unwrap() = headers.get("x-registry-auth").map(|value| value.to_str().unwrap().to_owned());
    if refuses {
        return (StatusCode::UNAUTHORIZED, axum::Json(json!({"message": "unauthorized: login"}))).into_response();
    }
    let descriptor = json!({"mediaType": "application/vnd.oci.image.index.v1+json", "size": 1,
                            "digest": format!("sha256:{}", "0".repeat(64))});
    axum::Json(json!({"Descriptor": descriptor, "Platforms": []})).into_response()
}

/// Runs the doctor, which asks the registry for the image. The credential helper is this script.
async fn examine(host: &str, helper: &str) -> String {
    let database = Database::new(Backend::Sqlite).await;
    let folder = database.folder.path();
    let program = folder.join("docker-credential-vault");
    std::fs::write(&program, format!("#!/bin/sh\n{helper}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(folder.join("config.json"), json!({"credHelpers": {"registry.example": "vault"}}).to_string())
        .unwrap();
    let pool = format!(
        "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"docker\"\nmax_slots = 1\n\
         docker = {{ image = \"{IMAGE}\", host = \"{host}\" }}\n"
    );
    std::fs::write(folder.join("greenroom.toml"), pool).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut command = Process::command();
    command.args(["doctor", "--database", &database.url, "--config", "greenroom.toml"]).current_dir(folder);
    command.env("PATH", path).env("DOCKER_CONFIG", folder);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().await.unwrap();
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_pull_sends_the_login_that_a_credential_helper_gives() {
    let (host, login) = engine(false).await;
    let helper =
        r#"[ "$1" = get ] && [ "$(cat)" = registry.example ] && echo '{"Username": "bot", "Secret": "s3cret"}'"#;
    let said = examine(&host, helper).await;
    assert!(said.contains("is not pulled yet; the registry has it"), "{said}");
    let sent = login.lock().unwrap().clone().expect("a login");
    let sent: Value = serde_json::from_slice(&URL_SAFE.decode(sent).unwrap()).unwrap();
    assert_eq!((&sent["username"], &sent["password"]), (&json!("bot"), &json!("s3cret")));
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test]
async fn a_refusal_after_a_credential_helper_failed_names_the_cause() {
    let (host, login) = engine(true).await;
    let said = examine(&host, "cat >/dev/null; echo s3cret; echo s3cret >&2; exit 1").await;
    let sent = login.lock().unwrap().clone();
    assert!(
        sent.is_none_or(|sent| !String::from_utf8_lossy(&URL_SAFE.decode(sent).unwrap()).contains("username\":\""))
    );
    for words in ["unauthorized: login", "`docker-credential-vault` failed", "echo registry.example | "] {
        assert!(said.contains(words), "`{words}` is not in:\n{said}");
    }
    assert!(!said.contains("s3cret"), "{said}");
}

#[tokio::test]
async fn a_public_image_is_pulled_although_a_credential_helper_failed() {
    let (host, _) = engine(false).await;
    let said = examine(&host, "cat >/dev/null; exit 1").await;
    assert!(said.contains("is not pulled yet; the registry has it"), "{said}");
}
