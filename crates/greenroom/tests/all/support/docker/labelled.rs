//! The resources of one test, or of one installation, in an engine that others use too.

use std::collections::HashMap;

use bollard::models::{ContainerSummary, Service};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListServicesOptionsBuilder, RemoveContainerOptionsBuilder,
};

use super::Engine;

/// Everything in an engine that has a label. It is removed with the test.
#[derive(Debug)]
pub struct Labelled {
    engine: Engine,
    label: String,
}

impl Labelled {
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

    /// Removes all resources. If the engine does not answer, they stay until the engine ends.
    async fn remove(&self) {
        // Services first, because they would create their containers again.
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

impl Drop for Labelled {
    /// Runs also when a test fails. The drop may happen inside a runtime, which must not be blocked here.
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
