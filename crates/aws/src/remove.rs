//! The end of a pool that was only made to be measured: its table and its queues are deleted. Groups are left alone.

use crate::clients::Clients;
use crate::queue::Queue;
use crate::{AwsError, Settings};

/// Deletes the table and the queues of a pool, with all that is in them.
pub async fn remove(settings: &Settings) -> Result<(), AwsError> {
    let clients = Clients::connect(settings).await;
    for class in &settings.classes {
        let queue = Queue::new(clients.sqs.clone(), settings.queue(&class.name));
        let deleted = clients.sqs.delete_queue().queue_url(queue.url().await?).send().await;
        deleted.map_err(|error| AwsError::new("DeleteQueue", error))?;
    }
    let deleted = clients.dynamodb.delete_table().table_name(&settings.table).send().await;
    deleted.map_err(|error| AwsError::new("DeleteTable", error)).map(drop)
}
