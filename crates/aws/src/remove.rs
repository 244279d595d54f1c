//! Deletes the table and the queues of a pool that was made for a measurement. It does not touch groups.

use crate::clients::Clients;
use crate::queue::Queue;
use crate::{AwsError, Settings};

/// Deletes the table and the queues of a pool, with their contents.
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
