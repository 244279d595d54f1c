//! The queue of a class: what SQS is asked, ten messages at a time. A queue is only a cache of the table, so that nothing is
//! lost with a message: the keeper announces its runner again.

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, DeleteMessageBatchRequestEntry, Message, SendMessageBatchRequestEntry,
};
use tokio::sync::OnceCell;

use crate::AwsError;

/// So many messages go into one call.
pub(crate) const AT_ONCE: usize = 10;
/// All messages of one call together may have so many bytes.
const BATCH_BYTES_MAX: usize = 256 * 1024;

#[derive(Debug)]
pub(crate) struct Queue {
    client: Client,
    pub name: String,
    url: OnceCell<String>,
}

/// A message that is to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub body: String,
    /// For how many seconds nobody receives it.
    pub delay: i32,
}

impl Queue {
    pub fn new(client: Client, name: String) -> Self {
        Self { client, name, url: OnceCell::new() }
    }

    /// Where it is.
    pub async fn url(&self) -> Result<&str, AwsError> {
        let ask = async || {
            let answer = self.client.get_queue_url().queue_name(&self.name).send().await;
            let answer = answer.map_err(|error| AwsError::new("GetQueueUrl", error))?;
            answer.queue_url.ok_or_else(|| AwsError::malformed("GetQueueUrl", "the answer has no address in it"))
        };
        self.url.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Up to `most` messages that are there now, without waiting for any.
    pub async fn receive(&self, most: usize) -> Result<Vec<Message>, AwsError> {
        let most = i32::try_from(most.clamp(1, AT_ONCE)).unwrap_or(1);
        let call = self.client.receive_message().queue_url(self.url().await?);
        let answer = call.max_number_of_messages(most).wait_time_seconds(0).send().await;
        let answer = answer.map_err(|error| AwsError::new("ReceiveMessage", error))?;
        Ok(answer.messages.unwrap_or_default())
    }

    /// Deletes messages that were received.
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

    /// Sends messages. What cannot be sent does not keep the others; the first error is told.
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

/// Parts messages into batches that SQS takes. One that is too large by itself is alone, and is refused alone.
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

/// A batch is answered even when a part of it failed.
fn all_done(operation: &'static str, failed: &[BatchResultErrorEntry]) -> Result<(), AwsError> {
    let Some(first) = failed.first() else { return Ok(()) };
    let message = format!("{}: {}", first.code(), first.message().unwrap_or("of one message in the batch"));
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
