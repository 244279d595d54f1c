//! A provider whose calls are measured, for the metrics. It adds nothing else: every call goes to the provider inside.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use domain::SlotName;

use super::budget::Budget;
use super::check::Check;
use super::{Found, HostMemory, Image, LogLine, Progress, Provider, ProviderError, Spec, Stopped};

#[derive(Debug)]
pub struct MeasuredProvider {
    /// The kind of the provider.
    kind: &'static str,
    inner: Arc<dyn Provider>,
}

impl MeasuredProvider {
    pub fn new(kind: &'static str, inner: Arc<dyn Provider>) -> Self {
        Self { kind, inner }
    }

    async fn measured<T>(
        &self,
        call: &'static str,
        work: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let mut measurement = Measurement { kind: self.kind, call, begun: Instant::now(), result: "cancelled" };
        let done = work.await;
        measurement.result = match &done {
            Ok(_) => "ok",
            Err(error) => error.kind(),
        };
        done
    }
}

impl ProviderError {
    /// What kind of error it is, in one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self { is_unavailable: true, .. } => "unavailable",
            Self { lacks_capacity: true, .. } => "no_capacity",
            Self { retryable: true, .. } => "transient",
            _ => "permanent",
        }
    }
}

/// A call in progress. It is counted when it ends, also when its caller no longer waits.
struct Measurement {
    kind: &'static str,
    call: &'static str,
    begun: Instant,
    result: &'static str,
}

impl Drop for Measurement {
    fn drop(&mut self) {
        let Self { kind, call, begun, result } = *self;
        metrics::histogram!(
            "greenroom_provider_call_duration_seconds",
            "provider" => kind, "call" => call, "result" => result
        )
        .record(begun.elapsed());
    }
}

#[async_trait]
impl Provider for MeasuredProvider {
    fn image(&self) -> Option<Image> {
        self.inner.image()
    }

    async fn has_image(&self) -> Result<bool, ProviderError> {
        self.measured("has_image", self.inner.has_image()).await
    }

    async fn pull_image(&self, progress: &Progress) -> Result<(), ProviderError> {
        self.measured("pull_image", self.inner.pull_image(progress)).await
    }

    fn keeps_environment(&self) -> bool {
        self.inner.keeps_environment()
    }

    fn keeps_idle_resources(&self) -> bool {
        self.inner.keeps_idle_resources()
    }

    fn restarts_slots(&self) -> bool {
        self.inner.restarts_slots()
    }

    fn recipe(&self) -> Option<String> {
        self.inner.recipe()
    }

    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        self.measured("create", self.inner.create(spec)).await
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        self.measured("start", self.inner.start(spec)).await
    }

    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError> {
        self.measured("stop", self.inner.stop(slot, fresh)).await
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        self.measured("delete", self.inner.delete(slot)).await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        self.measured("list", self.inner.list()).await
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        self.measured("inspect", self.inner.inspect(slot)).await
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        self.measured("log", self.inner.last_lines(slot)).await
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        self.measured("log", self.inner.log(slot)).await
    }

    async fn ping(&self) -> Result<(), ProviderError> {
        self.measured("ping", self.inner.ping()).await
    }

    async fn check(&self, slots: u32) -> Vec<Check> {
        self.inner.check(slots).await
    }

    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        self.measured("host_memory", self.inner.host_memory()).await
    }

    fn budgets(&self) -> Vec<Budget> {
        self.inner.budgets()
    }

    async fn describe(&self, slot: &SlotName, description: &str) {
        self.inner.describe(slot, description).await;
    }
}
