//! This module keeps one channel per key while it has listeners, so that a message costs only the listeners that it
//! concerns.

use std::collections::HashMap;
use std::hash::Hash;

use tokio::sync::broadcast;

#[derive(Debug)]
pub struct Channels<K, T>(HashMap<K, broadcast::Sender<T>>);

impl<K, T> Default for Channels<K, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, T: Clone> Channels<K, T> {
    /// Listens under a key. A listener that is more than `backlog` messages behind misses the oldest.
    pub fn subscribe(&mut self, key: K, backlog: usize) -> broadcast::Receiver<T> {
        let Self(channels) = self;
        // Channels without listeners are removed when the map would have to grow.
        if channels.len() == channels.capacity() && !channels.contains_key(&key) {
            channels.retain(|_, channel| channel.receiver_count() > 0);
        }
        channels.entry(key).or_insert_with(|| broadcast::Sender::new(backlog)).subscribe()
    }

    /// Sends a message to the listeners under a key.
    pub fn send(&mut self, key: &K, message: &T) {
        if let Some(channel) = self.0.get(key)
            && channel.send(message.clone()).is_err()
        {
            self.0.remove(key);
        }
    }

    /// The keys with listeners, and perhaps some whose last listener has gone.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
