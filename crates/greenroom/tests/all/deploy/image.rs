//! The images of `deploy/Dockerfile`. The stage that compiles needs an image that tests cannot pull. So the tests build
//! the stages after it, from the binaries under test.

use std::path::Path;
use std::process::Command;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse, HealthConfig, HealthStatusEnum, HostConfig};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateContainerOptions, InspectContainerOptions, StartContainerOptions,
};
use futures_util::TryStreamExt;

use super::{binary, read, succeed};
use crate::support::{Engine, found, libraries};

/// The Dockerfile from the first stage that needs no other image, with the files of the first stage in the context.
fn stages() -> String {
    let text = read("deploy/Dockerfile");
    let (_, stages) = text.split_once("FROM scratch AS agent").unwrap();
    format!("FROM scratch AS agent{stages}").replace(" --from=build", "").replace(" /out/", " out/")
}

/// What the first stage leaves in `/out`, with the libraries of the binaries, which are not static in tests.
fn put_output(folder: &Path) {
    for (image, name) in [("server", "greenroom"), ("agent", "greenroom-agent")] {
        let root = folder.join("out").join(image);
        let bin = root.join("usr/local/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::copy(binary(name), bin.join(name)).unwrap();
        // Half of a debug build is debug information. Without `strip`, images are only larger.
        let _ = Command::new("strip").arg(bin.join(name)).output();
        for library in libraries(&[binary(name)]) {
            let to = root.join(library.strip_prefix("/").unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&library, &to).unwrap();
        }
        succeed(Command::new("install").args(["-d", "-m", "1777"]).arg(root.join("tmp")));
    }
    std::fs::create_dir_all(folder.join("out/data")).unwrap();
}

/// Builds a stage of the Dockerfile on a real engine, under this name.
pub async fn build(engine: &Engine, stage: &str, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("Dockerfile"), stages()).unwrap();
    put_output(folder.path());
    let tar = succeed(
        Command::new("tar").args(["--create", "--owner=0", "--group=0", "--directory"]).arg(folder.path()).arg("."),
    );
    let options = BuildImageOptionsBuilder::new().t(name).target(stage).rm(true).forcerm(true).build();
    let lines = engine.docker.build_image(options, None, Some(bollard::body_full(tar.stdout.into())));
    let lines: Vec<_> = lines.try_collect().await.unwrap_or_else(|error| panic!("the stage {stage}: {error}"));
    assert!(lines.iter().any(|line| line.stream.as_deref().is_some_and(|text| text.contains("Successfully tagged"))));
}

/// Starts a container as compose.yaml does: without capabilities, and with a root that cannot be written.
async fn start(engine: &Engine, body: ContainerCreateBody) -> String {
    let host = HostConfig {
        readonly_rootfs: Some(true),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        tmpfs: Some([("/tmp".to_owned(), "mode=1777".to_owned())].into()),
        ..HostConfig::default()
    };
    let body = ContainerCreateBody { host_config: Some(host), ..body };
    let id = engine.docker.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
    engine.docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
    id
}

async fn inspect(engine: &Engine, id: &str) -> ContainerInspectResponse {
    engine.docker.inspect_container(id, None::<InspectContainerOptions>).await.unwrap()
}

#[tokio::test]
async fn the_docker_image_of_the_server_becomes_healthy_as_a_user_without_rights() {
    let engine = Engine::shared().await;
    build(&engine, "server", "greenroom-deploy-test:server").await;
    let labelled = engine.unique_label();
    let id = start(
        &engine,
        ContainerCreateBody {
            image: Some("greenroom-deploy-test:server".to_owned()),
            labels: Some([labelled.label()].into()),
            // The image's own check, more often.
            healthcheck: Some(HealthConfig { interval: Some(200_000_000), ..HealthConfig::default() }),
            ..ContainerCreateBody::default()
        },
    )
    .await;
    let healthy = found("the container is healthy, or has ended", async || {
        let state = inspect(&engine, &id).await.state?;
        let health = state.health.as_ref().and_then(|health| health.status);
        let is_over = state.running == Some(false) || health == Some(HealthStatusEnum::UNHEALTHY);
        (is_over || health == Some(HealthStatusEnum::HEALTHY)).then_some((is_over, state.health))
    })
    .await;
    let log = engine.log_of(&id).await;
    assert!(!healthy.0, "{:?}\n{log}", healthy.1);
    assert!(log.contains("Ready.") && log.contains("sqlite:greenroom.db"), "{log}");
    let container = inspect(&engine, &id).await;
    assert_eq!(container.config.unwrap().user.unwrap(), "65532:65532");
    let processes = engine.docker.top_processes(&id, None).await.unwrap();
    let users: Vec<_> = processes.processes.unwrap().into_iter().map(|mut row| row.swap_remove(0)).collect();
    assert!(users.iter().all(|user| user == "65532"), "{users:?}");
}

#[tokio::test]
async fn the_docker_image_of_the_agent_runs_alone() {
    let engine = Engine::shared().await;
    build(&engine, "agent", "greenroom-deploy-test:agent").await;
    let labelled = engine.unique_label();
    let body = ContainerCreateBody {
        image: Some("greenroom-deploy-test:agent".to_owned()),
        labels: Some([labelled.label()].into()),
        cmd: Some(vec!["--version".to_owned()]),
        ..ContainerCreateBody::default()
    };
    let id = start(&engine, body).await;
    assert_eq!(engine.exit_code(&id).await, 0);
    let log = engine.log_of(&id).await;
    assert!(log.contains(env!("CARGO_PKG_VERSION")), "{log}");
}

/// The build sees only the folders that `Dockerfile.dockerignore` lets through.
#[test]
fn every_file_that_the_code_embeds_is_in_the_context_of_the_build() {
    let ignore = read("deploy/Dockerfile.dockerignore");
    let allowed: Vec<&str> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let found = Command::new("grep")
        .args(["-rnoE", r#"(include_str|include_bytes|folder = )[^"]*"[^"]*""#, "--include=*.rs"])
        .args(
            ["agent", "aws", "cli", "config", "domain", "greenroom", "providers", "store"]
                .map(|name| format!("crates/{name}/src")),
        )
        .current_dir(crate::support::in_repository(""))
        .output()
        .unwrap();
    let text = String::from_utf8(found.stdout).unwrap();
    let outside = text.lines().filter_map(|line| line.split('"').nth(1)).filter(|path| path.contains("../../"));
    let folders: Vec<&str> = outside.filter_map(|path| path.trim_start_matches("../").split('/').next()).collect();
    assert!(folders.contains(&"migrations") && folders.contains(&"web"), "{folders:?}");
    for folder in folders {
        assert!(allowed.contains(&folder), "{folder} is not in the context: add it to Dockerfile.dockerignore");
    }
}

#[test]
fn the_dockerfile_compiles_with_the_rust_version_of_the_crates() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(read("deploy/Dockerfile").contains(&format!("FROM rust:{version}-")), "rust:{version}");
}
