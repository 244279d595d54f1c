//! The registry that `./scripts/test` starts, which every engine can reach.

use std::path::PathBuf;

use bollard::query_parameters::{CreateImageOptionsBuilder, PushImageOptionsBuilder, TagImageOptionsBuilder};
use futures_util::TryStreamExt;

use super::Engine;

#[derive(Debug)]
pub struct Registry {
    address: String,
    log: PathBuf,
}

impl Registry {
    pub fn shared() -> Self {
        let variable = |name| {
            let value = std::env::var(name);
            value.unwrap_or_else(|_| panic!("{name} is not set; ./scripts/test starts a registry and sets it"))
        };
        Self { address: variable("TEST_REGISTRY"), log: variable("TEST_REGISTRY_LOG").into() }
    }

    /// Pushes an image of an engine to the registry, and returns its new, unique name. The engine does not keep the
    /// image under this name, so it has to pull it.
    pub async fn push(&self, engine: &Engine, image: &str) -> String {
        let repository = format!("{}/{}", self.address, uuid::Uuid::new_v4().simple());
        let tag = TagImageOptionsBuilder::new().repo(&repository).tag("1").build();
        engine.docker.tag_image(image, Some(tag)).await.unwrap();
        let options = PushImageOptionsBuilder::new().tag("1").build();
        let _: Vec<_> = engine.docker.push_image(&repository, Some(options), None).try_collect().await.unwrap();
        let name = format!("{repository}:1");
        engine.forget_image(&name).await;
        name
    }

    /// How often any engine has pulled this image since it was pushed. An engine requests the manifest when it pulls. A
    /// check for a newer manifest does not count. The registry writes its log after its answer, so a test has to wait
    /// for the expected number.
    pub fn pulls(&self, name: &str) -> usize {
        self.answered(name, "manifests")
    }

    /// How often a layer or the configuration of an image was fetched. An engine keeps layers, and fetches only missing
    /// ones.
    pub fn fetches(&self, name: &str) -> usize {
        self.answered(name, "blobs")
    }

    fn answered(&self, name: &str, what: &str) -> usize {
        let repository = name.strip_prefix(&self.address).and_then(|name| name.strip_suffix(":1"));
        let request = format!("\"GET /v2{}/{what}/", repository.expect("a name that push has returned"));
        let log = std::fs::read_to_string(&self.log).unwrap();
        log.lines().filter(|line| line.contains(&request) && line.contains("HTTP/1.1\" 200 ")).count()
    }
}

impl Engine {
    /// Pulls an image from the registry in its name.
    pub async fn pull(&self, name: &str) -> Result<(), bollard::errors::Error> {
        let options = CreateImageOptionsBuilder::new().from_image(name).build();
        self.docker.create_image(Some(options), None, None).try_collect::<Vec<_>>().await.map(drop)
    }
}
