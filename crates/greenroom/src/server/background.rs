//! This module runs the background tasks of a server, from its start to its end. If a task ends early, for example by a
//! panic, the server would still answer but not do its work. So the whole server stops, and its supervisor can start it
//! again.

use std::pin::Pin;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub struct Background {
    parts: JoinSet<()>,
    /// Cancelled when all tasks have to end.
    pub ending: CancellationToken,
    /// Cancelled when a task ended by itself.
    pub broken: CancellationToken,
}

/// Detects the end of a task, however it ends.
struct Watch {
    name: &'static str,
    ending: CancellationToken,
    broken: CancellationToken,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.ending.is_cancelled() {
            tracing::error!(part = self.name, "background task ended unexpectedly; server is stopping");
            self.broken.cancel();
        }
    }
}

impl Background {
    pub fn new() -> Self {
        Self { parts: JoinSet::new(), ending: CancellationToken::new(), broken: CancellationToken::new() }
    }

    pub fn spawn(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(name, Box::pin(part));
    }

    // One kind of task for all parts: the runtime's code for a task is compiled for each kind.
    fn spawn_boxed(&mut self, name: &'static str, part: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let watch = Watch { name, ending: self.ending.clone(), broken: self.broken.clone() };
        self.parts.spawn(async move {
            let _watch = watch;
            part.await;
        });
    }

    /// Starts a task on its own thread, for a task that all others wait for: it never has to wait for their steps.
    pub fn spawn_thread(
        &mut self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let watch = Watch { name, ending: self.ending.clone(), broken: self.broken.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (done, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _dropped_last = (done, watch);
            runtime.block_on(part);
        })?;
        self.parts.spawn(async move {
            let _ = ended.await;
        });
        Ok(())
    }

    /// Asks all tasks to end, and waits for them.
    pub async fn end(&mut self) {
        self.ending.cancel();
        while self.parts.join_next().await.is_some() {}
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // From now on, the end of a task is no fault.
        self.ending.cancel();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_breaks_the_whole() {
        let mut background = Background::new();
        background.spawn("well", std::future::pending());
        background.spawn("ill", async { panic!("on purpose") });
        background.broken.cancelled().await;
    }

    #[tokio::test]
    async fn a_part_that_panics_on_its_own_thread_breaks_the_whole() {
        let mut background = Background::new();
        background.spawn_thread("ill", async { panic!("on purpose") }).unwrap();
        background.broken.cancelled().await;
    }

    #[tokio::test]
    async fn a_part_that_ends_with_the_rest_breaks_nothing() {
        let mut background = Background::new();
        let [ending, other] = [background.ending.clone(), background.ending.clone()];
        background.spawn("well", async move { ending.cancelled().await });
        background.spawn_thread("well too", async move { other.cancelled().await }).unwrap();
        background.end().await;
        assert!(!background.broken.is_cancelled());
    }
}
