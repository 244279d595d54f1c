//! The SQS queue of a class, with up to ten messages in each call. A queue is only a cache of the table. If a message
//! is lost, the keeper announces its runner again.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, DeleteMessageBatchRequestEntry, Message, SendMessageBatchRequestEntry,
};
use tokio::sync::OnceCell;

use crate::AwsError;

/// The most messages in one call.
pub(crate) const AT_ONCE: usize = 10;
/// The most bytes in one call, over all messages.
const BATCH_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Queue {
    client: Client,
    pub name: String,
    url: OnceCell<String>,
}

/// A message to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub body: String,
    /// How many seconds the message stays invisible.
    pub delay: i32,
}

impl Queue {
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name, url: OnceCell::new() }
    }

    /// The URL of the queue.
    pub async fn url(&self) -> Result<&str, AwsError> {
        let ask = async || {
            let answer = self.client.get_queue_url().queue_name(&self.name).send().await;
            let answer = answer.map_err(|error| AwsError::new("GetQueueUrl", error))?;
            answer.queue_url.ok_or_else(|| AwsError::malformed("GetQueueUrl", "the answer contains no queue URL"))
        };
        self.url.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Receives up to `most` messages that are there now, without waiting.
    pub async fn receive(&self, most: usize) -> Result<Vec<Message>, AwsError> {
        let most = i32::try_from(most.clamp(1, AT_ONCE)).unwrap_or(1);
        let call = self.client.receive_message().queue_url(self.url().await?);
        let answer = call.max_number_of_messages(most).wait_time_seconds(0).send().await;
        let answer = answer.map_err(|error| AwsError::new("ReceiveMessage", error))?;
        Ok(answer.messages.unwrap_or_default())
    }

    /// Deletes received messages.
    pub async fn delete(&self, messages: &[Message]) -> Result<(), AwsError> {
        for messages in messages.chunks(AT_ONCE) {
            let mut entries = Vec::new();
            for (index, message) in messages.iter().enumerate() {
                let entry = DeleteMessageBatchRequestEntry::builder()
                    .id(index.to_string())
                    .receipt_handle(message.receipt_handle().unwrap_or_default());
                entries
                    .push(entry.build().map_err(|error| AwsError::malformed("DeleteMessageBatch", error.to_string()))?);
            }
            let call = self.client.delete_message_batch().queue_url(self.url().await?);
            let answer = call.set_entries(Some(entries)).send().await;
            let answer = answer.map_err(|error| AwsError::new("DeleteMessageBatch", error))?;
            all_done("DeleteMessageBatch", answer.failed())?;
        }
        Ok(())
    }

    /// Sends messages. A message that fails does not stop the others; the first error is returned.
    pub async fn send(&self, messages: &[Outgoing]) -> Result<(), AwsError> {
        let mut outcome = Ok(());
        for batch in batches(messages) {
            let sent = self.send_batch(batch).await;
            outcome = outcome.and(sent);
        }
        outcome
    }

    async fn send_batch(&self, messages: &[Outgoing]) -> Result<(), AwsError> {
        let mut entries = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder()
                .id(index.to_string())
                .message_body(&message.body)
                .delay_seconds(message.delay);
            entries.push(entry.build().map_err(|error| AwsError::malformed("SendMessageBatch", error.to_string()))?);
        }
        let call = self.client.send_message_batch().queue_url(self.url().await?);
        let answer = call.set_entries(Some(entries)).send().await;
        let answer = answer.map_err(|error| AwsError::new("SendMessageBatch", error))?;
        all_done("SendMessageBatch", answer.failed())
    }
}

/// Splits messages into batches that SQS accepts. A message that is too large gets its own batch, so only that batch is
/// refused.
fn batches(messages: &[Outgoing]) -> Vec<&[Outgoing]> {
    let (mut batches, mut begin, mut bytes) = (Vec::new(), 0, 0);
    for (at, message) in messages.iter().enumerate() {
        let is_full = at - begin == AT_ONCE || bytes + message.body.len() > BATCH_BYTES_MAX;
        if is_full && at > begin {
            batches.push(&messages[begin..at]);
            (begin, bytes) = (at, 0);
        }
        bytes += message.body.len();
    }
    if begin < messages.len() {
        batches.push(&messages[begin..]);
    }
    batches
}

/// SQS answers a batch with success even if a part of it failed.
fn all_done(operation: &'static str, failed: &[BatchResultErrorEntry]) -> Result<(), AwsError> {
    let Some(first) = failed.first() else { return Ok(()) };
    let message = format!("{}: {}", first.code(), first.message().unwrap_or("one message of the batch failed"));
    if first.sender_fault() {
        Err(AwsError::Refused { operation, message })
    } else {
        Err(AwsError::Busy { operation, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_sizes(sizes: &[usize]) -> Vec<Outgoing> {
        sizes.iter().map(|size| Outgoing { body: "x".repeat(*size), delay: 0 }).collect()
    }

    fn lengths(sizes: &[usize]) -> Vec<usize> {
        batches(&of_sizes(sizes)).iter().map(|batch| batch.len()).collect()
    }

    #[test]
    fn a_batch_has_at_most_ten_messages_and_256_kib() {
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[1; 25]), [10, 10, 5]);
        let half = BATCH_BYTES_MAX / 2;
        assert_eq!(lengths(&[half, half, 1, half]), [2, 2]);
        assert_eq!(lengths(&[1, BATCH_BYTES_MAX + 1, 1, 1]), [1, 1, 2]);
    }
}
