//! What one test, or one installation, has in an engine that others use too.

use std::collections::HashMap;

use bollard::models::{ContainerSummary, Service};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListServicesOptionsBuilder, RemoveContainerOptionsBuilder,
};

use super::Engine;

/// Everything in an engine that has a label. It does not outlive its test.
#[derive(Debug)]
pub struct Ours {
    engine: Engine,
    label: String,
}

impl Ours {
    pub(super) fn new(engine: Engine, label: &str) -> Self {
        Self { engine, label: label.to_owned() }
    }

    /// The label's name and its value.
    pub fn label(&self) -> (String, String) {
        let (name, value) = self.label.split_once('=').unwrap_or((&self.label, ""));
        (name.to_owned(), value.to_owned())
    }

    fn filters(&self) -> HashMap<String, Vec<String>> {
        HashMap::from([("label".to_owned(), vec![self.label.clone()])])
    }

    /// Containers, whether they run or not.
    pub async fn containers(&self) -> Vec<ContainerSummary> {
        let options = ListContainersOptionsBuilder::new().all(true).filters(&self.filters()).build();
        self.engine.docker.list_containers(Some(options)).await.unwrap()
    }

    /// The ids of containers that run.
    pub async fn running(&self) -> Vec<String> {
        let options = ListContainersOptionsBuilder::new().filters(&self.filters()).build();
        let running = self.engine.docker.list_containers(Some(options)).await.unwrap();
        running.into_iter().filter_map(|container| container.id).collect()
    }

    /// Services of a swarm. The engine has to be a manager of one.
    pub async fn services(&self) -> Vec<Service> {
        let options = ListServicesOptionsBuilder::new().filters(&self.filters()).build();
        self.engine.docker.list_services(Some(options)).await.unwrap()
    }

    /// Removes whatever there is. What cannot be removed, as when the engine is away, stays until the engine goes.
    async fn remove(&self) {
        // Services first: they would make their containers anew.
        let options = ListServicesOptionsBuilder::new().filters(&self.filters()).build();
        for service in self.engine.docker.list_services(Some(options)).await.unwrap_or_default() {
            let _ = self.engine.docker.delete_service(&service.id.unwrap_or_default()).await;
        }
        let options = ListContainersOptionsBuilder::new().all(true).filters(&self.filters()).build();
        for container in self.engine.docker.list_containers(Some(options)).await.unwrap_or_default() {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let _ = self.engine.docker.remove_container(&container.id.unwrap_or_default(), Some(options)).await;
        }
    }
}

impl Drop for Ours {
    /// Also where a test fails. It may be inside of a runtime, in which nothing can be waited for here.
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(self.remove());
            });
            let _ = removing.join();
        });
    }
}
