//! Writes many idle runners at once, without machines or agents, as the start of a pickup measurement.

use domain::Attributes;
use futures_util::future::try_join_all;

use crate::message::Announcement;
use crate::queue::Outgoing;
use crate::{AwsError, Runner, RunnerPool};

/// How many runners are written at the same time.
const AT_ONCE: usize = 32;

impl RunnerPool {
    /// Writes idle runners with a current heartbeat and announces them. Each entry is a name and its attributes. The
    /// announcements expire as the pool's pace says.
    pub async fn fill(&self, runners: &[(String, Attributes)]) -> Result<(), AwsError> {
        let (now, expires_at) = (self.now(), self.new_expiry());
        let announced =
            |(instance, attributes): &(String, Attributes)| Announcement::new(instance, attributes, expires_at);
        let announced: Vec<_> = runners.iter().map(announced).collect();
        for announced in announced.chunks(AT_ONCE) {
            let write = async |announcement: &Announcement| {
                let runner = Runner::announced(&self.0.settings, announcement, now);
                self.0.table.beat(&runner.instance, now).await?;
                self.0.table.insert(&runner.idle(now, expires_at, self.0.settings.pace.idle)).await
            };
            try_join_all(announced.iter().map(write)).await?;
        }
        for (class, queue) in &self.0.queues {
            let is_of_class = |one: &&Announcement| one.attributes.resource_class.as_ref() == Some(class);
            let messages = announced.iter().filter(is_of_class);
            let messages = messages.map(|one| Outgoing { body: one.body().to_owned(), delay: 0 });
            queue.send(&messages.collect::<Vec<_>>()).await?;
        }
        Ok(())
    }
}
