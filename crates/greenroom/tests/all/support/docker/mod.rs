//! Docker as a test sees it: the engine that `./scripts/test` starts for all of them, at which it looks past the server
//! under test. What a test makes in it has to be told apart from what other tests make at the same time: see [`Ours`].

mod fixture;
mod image;
mod ours;
mod private;
mod registry;
mod stalling;
mod swarm;

pub use fixture::{DockerFixture, OBEDIENT};
pub use image::Recipe;
pub use ours::Ours;
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

/// Longer than the engine takes for anything, in seconds.
const TIMEOUT: u64 = 60;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; ./scripts/test starts Docker and sets it"))
}

/// The address of this machine that containers reach, whichever engine they run in. A server under test has to listen
/// there: see `Process::start_for_containers`.
pub fn gateway() -> String {
    variable("TEST_DOCKER_GATEWAY")
}

/// The folder of the engine that all tests share. It is gone with the run of the tests.
fn shared_folder() -> PathBuf {
    let socket = PathBuf::from(variable("TEST_DOCKER_HOST").replacen("unix://", "", 1));
    socket.parent().expect("a socket is in a folder").to_owned()
}

/// A dockerd.
#[derive(Clone, Debug)]
pub struct Engine {
    /// As in a configuration: `unix://` and a path.
    pub host: String,
    pub docker: Docker,
}

impl Engine {
    /// The one that all tests share. No test may stop it, nor make it part of a swarm.
    pub async fn shared() -> Self {
        Self::at(&variable("TEST_DOCKER_HOST")).await
    }

    pub async fn at(host: &str) -> Self {
        let docker = Docker::connect_with_unix(host, TIMEOUT, bollard::API_DEFAULT_VERSION).unwrap();
        Self { host: host.to_owned(), docker: docker.negotiate_version().await.unwrap() }
    }

    /// What has this label, such as `a=b`. It is removed when this is dropped, and whatever gets the label until then.
    pub fn ours(&self, label: &str) -> Ours {
        Ours::new(self.clone(), label)
    }

    /// A label that no other test has, and what has it.
    pub fn only_ours(&self) -> Ours {
        self.ours(&format!("test={}", uuid::Uuid::new_v4().simple()))
    }

    /// The id of a new container of a test's own, which runs. Its environment is lines of `NAME=value`.
    pub async fn run(&self, image: &str, ours: &Ours, environment: &[String]) -> String {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            env: Some(environment.to_vec()),
            labels: Some([ours.label()].into()),
            ..ContainerCreateBody::default()
        };
        let id = self.docker.create_container(None::<CreateContainerOptions>, body).await.unwrap().id;
        self.docker.start_container(&id, None::<StartContainerOptions>).await.unwrap();
        id
    }

    /// Waits for the end of a container. Its exit code.
    pub async fn exit_code(&self, container: &str) -> i64 {
        let mut ends = Box::pin(self.docker.wait_container(container, None::<WaitContainerOptions>));
        match ends.try_next().await {
            Ok(end) => end.expect("an engine tells of a container's end").status_code,
            Err(bollard::errors::Error::DockerContainerWaitError { code, .. }) => code,
            Err(error) => panic!("{error}"),
        }
    }

    /// What a container has printed so far.
    pub async fn log_of(&self, container: &str) -> String {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
        let pieces: Vec<_> = self.docker.logs(container, Some(options)).try_collect().await.unwrap();
        pieces.into_iter().map(|piece| piece.to_string()).collect()
    }

    pub async fn has_image(&self, name: &str) -> bool {
        self.docker.inspect_image(name).await.is_ok()
    }

    /// Takes an image's name from it, so that whoever wants the image has to pull it.
    pub async fn forget_image(&self, name: &str) {
        let options = RemoveImageOptions { force: true, ..RemoveImageOptions::default() };
        self.docker.remove_image(name, Some(options), None).await.unwrap();
    }
}
