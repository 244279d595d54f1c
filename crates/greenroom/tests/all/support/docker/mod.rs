//! Docker for tests: the engine that `./scripts/test` starts for all tests, which a test reads without the server under
//! test. A test labels its resources, because other tests use the engine at the same time: see [`Labelled`].

mod fixture;
mod image;
mod labelled;
mod private;
mod registry;
mod stalling;
mod swarm;

pub use fixture::{DockerFixture, OBEDIENT};
pub use image::{Recipe, libraries};
pub use labelled::Labelled;
pub use private::PrivateEngine;
pub use registry::Registry;
pub use stalling::StallingRegistry;
pub use swarm::Swarm;

use std::path::PathBuf;

use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    CreateContainerOptions, LogsOptionsBuilder, RemoveImageOptions, StartContainerOptions, WaitContainerOptions,
};
use futures_util::TryStreamExt;

/// Longer than any call of the engine takes, in seconds.
const TIMEOUT: u64 = 60;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; ./scripts/test starts Docker and sets it"))
}

/// The address of this machine for containers of every engine. A server under test has to listen there: see
/// `Process::start_for_containers`.
pub fn gateway() -> String {
    variable("TEST_DOCKER_GATEWAY")
}

/// The folder of the engine that all tests share. It is removed after the run of the tests.
fn shared_folder() -> PathBuf {
    let socket = PathBuf::from(variable("TEST_DOCKER_HOST").replacen("unix://", "", 1));
    socket.parent().expect("a socket is in a folder").to_owned()
}

/// A dockerd.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The address as in a configuration: `unix://` and a path.
    pub host: String,
    pub docker: Docker,
}

impl Engine {
    /// The engine that all tests share. No test may stop it, or make it part of a swarm.
    pub async fn shared() -> Self {
        Self::at(&variable("TEST_DOCKER_HOST")).await
    }

    pub async fn at(host: &str) -> Self {
        let docker = Docker::connect_with_unix(host, TIMEOUT, bollard::API_DEFAULT_VERSION).unwrap();
        Self { host: host.to_owned(), docker: docker.negotiate_version().await.unwrap() }
    }

    /// All resources with this label, such as `a=b`. They are removed when the returned value is dropped.
    pub fn labelled(&self, label: &str) -> Labelled {
        Labelled::new(self.clone(), label)
    }

    /// A label that no other test has, and all resources with it.
    pub fn unique_label(&self) -> Labelled {
        self.labelled(&format!("test={}", uuid::Uuid::new_v4().simple()))
    }

    /// Starts a container with the label of this test, and returns its id. `environment` has lines of the form
    /// `NAME=value`.
    pub async fn run(&self, image: &str, labelled: &Labelled, environment: &[String]) -> String {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            env: Some(environment.to_vec()),
            labels: Some([labelled.label()].into()),
            ..ContainerCreateBody::default()
        };
        let id = self.docker.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
        self.docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
        id
    }

    /// Waits for the end of a container, and returns its exit code.
    pub async fn exit_code(&self, container: &str) -> i64 {
        let mut ends = Box::pin(self.docker.wait_container(container, None::<WaitContainerOptions>));
        match ends.try_next().await {
            Ok(end) => end.expect("an engine reports a container's end").status_code,
            Err(bollard::errors::Error::DockerContainerWaitError { code, .. }) => code,
            Err(error) => panic!("{error}"),
        }
    }

    /// The output of a container so far.
    pub async fn log_of(&self, container: &str) -> String {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let pieces: Vec<_> = self.docker.logs(container, Some(options)).try_collect().await.unwrap();
        pieces.into_iter().map(|piece| piece.to_string()).collect()
    }

    pub async fn has_image(&self, name: &str) -> bool {
        self.docker.inspect_image(name).await.is_ok()
    }

    /// Removes the name of an image, so that the next use must pull the image.
    pub async fn forget_image(&self, name: &str) {
        let options = RemoveImageOptions { force: true, ..RemoveImageOptions::default() };
        self.docker.remove_image(name, Some(options), None).await.unwrap();
    }
}
