//! The bus notifies other processes at once. With Redis, it publishes commands to the bots that listen there, and tells
//! other replicas about new events. Without Redis, it works only inside this process.
//!
//! Nothing depends on the bus, because Redis keeps no messages for a client that is not connected. A command is a row
//! until it is acknowledged, and answers to heartbeats contain it; every replica also reads events by itself. The bus
//! only makes both faster.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use domain::ConnectionId;
use futures_util::StreamExt;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::store::CommandRow;

/// If Redis does not answer within this time, it is unavailable.
const TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const PING_EVERY: Duration = Duration::from_secs(5);
const LISTENED_FOR: Duration = Duration::from_secs(60);
/// How many commands may wait to be published. The rest reach bots with the answers to heartbeats.
const BACKLOG: usize = 1_024;
/// The shortest pause between two messages to other replicas.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);

/// The channel for the commands of a connection.
pub fn channel(connection: ConnectionId) -> String {
    format!("bot_commands:{connection}")
}

#[derive(Clone, Debug, Default)]
pub struct Bus {
    redis: Option<Arc<Redis>>,
    /// Counts the messages of other replicas about new events.
    notifications: watch::Sender<u64>,
}

/// Receives the messages of other replicas from now on.
#[derive(Debug)]
pub struct BusListener(watch::Receiver<u64>);

impl BusListener {
    /// Returns when another replica has written events.
    pub async fn events_written(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

struct Redis {
    url_for_bots: Option<SecretString>,
    connection: ConnectionManager,
    client: redis::Client,
    commands: mpsc::Sender<(String, String)>,
    events_written: Notify,
    /// The channel of this installation's replicas, and this replica's name on it.
    channel: String,
    name: String,
    /// The current problem of the connection, if there is one.
    trouble: Mutex<Option<String>>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("channel", &self.channel).finish_non_exhaustive()
    }
}

/// The URL cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("`redis` is not a valid Redis URL: {0}")]
pub struct BadUrl(String);

impl Bus {
    /// Creates a bus over Redis, which may be unavailable, and the task that it needs until `ending`.
    pub fn over_redis(
        url: &SecretString,
        url_for_bots: Option<SecretString>,
        installation: &str,
        ending: CancellationToken,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), BadUrl> {
        let bad = |error: redis::RedisError| BadUrl(error.to_string());
        let client = redis::Client::open(url.expose_secret()).map_err(bad)?;
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connection = ConnectionManager::new_lazy_with_config(client.clone(), config).map_err(bad)?;
        let (commands, backlog) = mpsc::channel(BACKLOG);
        let redis = Redis {
            url_for_bots,
            connection,
            client,
            commands,
            events_written: Notify::new(),
            channel: format!("greenroom:{installation}:events"),
            name: Uuid::new_v4().simple().to_string(),
            trouble: Mutex::default(),
        };
        let bus = Self { redis: Some(Arc::new(redis)), notifications: watch::Sender::default() };
        let (redis, notifications) = (bus.redis.clone(), bus.notifications.clone());
        let work = async move {
            let Some(redis) = redis else { return };
            tokio::select! {
                () = redis.keep_publishing(backlog) => {}
                () = redis.keep_announcing_events() => {}
                () = redis.keep_pinging() => {}
                () = redis.keep_listening(&notifications) => {}
                () = ending.cancelled() => {}
            }
        };
        Ok((bus, work))
    }

    /// The URL at which bots listen for commands, if they do not use HTTP alone. It is never the server's own URL,
    /// whose password has all rights.
    pub fn url_for_bots(&self) -> Option<&str> {
        self.redis.as_ref()?.url_for_bots.as_ref().map(ExposeSecret::expose_secret)
    }

    /// Publishes a committed command. Never waits.
    pub fn publish(&self, connection: ConnectionId, command: &CommandRow) {
        let Some(redis) = &self.redis else { return };
        let text = serde_json::json!({"id": command.id, "action": command.action, "payload": command.payload});
        if redis.commands.try_send((channel(connection), text.to_string())).is_err() {
            metrics::counter!("greenroom_bus_dropped_total").increment(1);
        }
    }

    /// Tells the other replicas that this one has written events.
    pub fn announce_events(&self) {
        if let Some(redis) = &self.redis {
            redis.events_written.notify_one();
        }
    }

    pub fn listen(&self) -> BusListener {
        BusListener(self.notifications.subscribe())
    }

    /// Whether the bus works, as of a few seconds ago; `None` when it is only inside the process.
    pub fn health(&self) -> Option<Result<(), String>> {
        let trouble = self.redis.as_ref()?.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(trouble.map_or(Ok(()), |trouble| Err(format!("Redis is unavailable: {trouble}"))))
    }
}

/// Checks once whether a Redis answers.
pub async fn ping(url: &SecretString) -> Result<(), String> {
    let client = redis::Client::open(url.expose_secret()).map_err(|error| error_text(&error))?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(|error| error_text(&error))?;
    let answer = redis::cmd("PING").query_async::<String>(&mut connection).await;
    answer.map(drop).map_err(|error| error_text(&error))
}

fn error_text(error: &redis::RedisError) -> String {
    error.detail().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns the problem, if there is one.
fn trouble<T>(answer: Result<Result<T, redis::RedisError>, tokio::time::error::Elapsed>) -> Option<String> {
    match answer {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error_text(&error)),
        Err(_) => Some(format!("no answer within {} s", TIMEOUT.as_secs())),
    }
}

impl Redis {
    async fn keep_publishing(&self, mut backlog: mpsc::Receiver<(String, String)>) {
        while let Some((channel, text)) = backlog.recv().await {
            self.send(&channel, &text).await;
        }
    }

    /// Pings Redis regularly, because without traffic an outage would not be noticed.
    async fn keep_pinging(&self) {
        loop {
            let mut connection = self.connection.clone();
            let command = redis::cmd("PING");
            let asked = command.query_async::<String>(&mut connection);
            self.note(trouble(tokio::time::timeout(TIMEOUT, asked).await));
            tokio::time::sleep(PING_EVERY).await;
        }
    }

    async fn keep_announcing_events(&self) {
        loop {
            self.events_written.notified().await;
            self.send(&self.channel, &self.name).await;
            tokio::time::sleep(SHORTEST_PAUSE).await;
        }
    }

    /// Publishes a message. A message that cannot be published is dropped: by the time Redis is back, its content has
    /// arrived in another way.
    async fn send(&self, channel: &str, text: &str) {
        let mut connection = self.connection.clone();
        let mut command = redis::cmd("PUBLISH");
        command.arg(channel).arg(text);
        let sent = command.query_async::<i64>(&mut connection);
        self.note(trouble(tokio::time::timeout(TIMEOUT, sent).await));
    }

    /// Logs when Redis becomes unavailable, and when it is available again.
    fn note(&self, trouble: Option<String>) {
        metrics::gauge!("greenroom_bus_up").set(if trouble.is_none() { 1.0 } else { 0.0 });
        let before =
            std::mem::replace(&mut *self.trouble.lock().unwrap_or_else(PoisonError::into_inner), trouble.clone());
        match trouble {
            Some(error) if before.is_none() => {
                tracing::warn!(error, "Redis call failed; commands are sent with heartbeats");
            }
            None if before.is_some() => tracing::info!("Redis call succeeded again"),
            _ => {}
        }
    }

    async fn keep_listening(&self, notifications: &watch::Sender<u64>) {
        loop {
            let listening = async {
                let mut listener = self.client.get_async_pubsub().await?;
                listener.subscribe(&self.channel).await?;
                Ok::<_, redis::RedisError>(listener)
            };
            // The ping reports an outage.
            if let Ok(Ok(mut listener)) = tokio::time::timeout(TIMEOUT, listening).await {
                // Earlier messages were missed, so listeners read the events once.
                notifications.send_modify(|count| *count += 1);
                let mut messages = listener.on_message();
                // A broken connection may not be noticed, so it is opened again after a while.
                while let Ok(Some(message)) = tokio::time::timeout(LISTENED_FOR, messages.next()).await {
                    if message.get_payload_bytes() != self.name.as_bytes() {
                        notifications.send_modify(|count| *count += 1);
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}
