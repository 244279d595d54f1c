//! What operators see live, and its compact encoding as JSON: arrays instead of objects, statuses as indexes, times in
//! whole seconds since 1970. `docs/api.md` describes the encoding for clients.

use std::collections::BTreeMap;

use domain::{Platform, ShownStatus, SlotName, SlotStatus};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

/// A slot by the index of its pool and its number.
pub type SlotKey = (usize, i64);

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveState {
    /// The names and platforms of the pools. Slots refer to them by index.
    pub pools: Vec<(String, Platform)>,
    pub slots: BTreeMap<SlotKey, SlotCell>,
    pub bots: BTreeMap<Uuid, BotCell>,
    pub queue: BTreeMap<Uuid, QueueCell>,
    pub gates: Vec<GateCell>,
    pub keepers: Vec<KeeperCell>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotCell {
    pub status: SlotStatus,
    pub since: i64,
    pub hot: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BotCell {
    pub status: ShownStatus,
    pub since: i64,
    pub slot: Option<SlotKey>,
}

/// A bot in the queue. The queue of a platform is in the order of priority, turn and arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueCell {
    pub platform: Platform,
    pub priority: i64,
    pub turn: i64,
    pub arrival: i64,
    pub pool: String,
    pub queued_at: i64,
    pub timeout_at: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateCell {
    pub host: String,
    pub active: usize,
    pub queued: usize,
    pub max_concurrent: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperCell {
    pub name: String,
    pub last_run: Option<i64>,
    pub took_ms: Option<i64>,
    pub error: Option<String>,
    pub next_run: Option<i64>,
    pub leader: Option<String>,
}

/// A time in the encoding.
pub fn seconds(time: Timestamp) -> i64 {
    time.as_second()
}

impl LiveState {
    /// The slot with this name, if its pool is known.
    pub fn slot_key(&self, name: &SlotName) -> Option<SlotKey> {
        let pool = name.pool()?;
        let number = name.as_str().rsplit_once('-')?.1.parse().ok()?;
        Some((self.pools.iter().position(|(known, _)| known == pool)?, number))
    }

    /// Everything, as the data of the event `snapshot`.
    pub fn snapshot(&self) -> String {
        let mut slots: Vec<Vec<Value>> = vec![Vec::new(); self.pools.len()];
        for ((pool, number), cell) in &self.slots {
            slots[*pool].push(json!([number, slot_index(cell.status), cell.since, u8::from(cell.hot)]));
        }
        let snapshot = json!({
            "slot_statuses": SlotStatus::ALL.map(SlotStatus::as_str),
            "bot_statuses": ShownStatus::ALL.map(ShownStatus::as_str),
            "pools": self.pools.iter().map(|(name, platform)| json!([name, platform.as_str()])).collect::<Vec<_>>(),
            "slots": slots,
            "bots": self.bots.iter().map(|(id, cell)| bot(*id, cell)).collect::<Vec<_>>(),
            "queue": self.queue.iter().map(|(id, cell)| waiting(*id, cell)).collect::<Vec<_>>(),
            "gates": gates(&self.gates),
            "keepers": keepers(&self.keepers),
        });
        snapshot.to_string()
    }

    /// What differs from an earlier state, as the data of the event `change`. `None` when nothing does. The pools must
    /// be the same, because slots refer to them by index.
    pub fn change_since(&self, earlier: &LiveState) -> Option<String> {
        let mut change = serde_json::Map::new();
        let mut add = |name: &str, values: Vec<Value>| {
            if !values.is_empty() {
                change.insert(name.to_owned(), values.into());
            }
        };
        let slot = |((pool, number), cell): (&SlotKey, &SlotCell)| {
            json!([pool, number, slot_index(cell.status), cell.since, u8::from(cell.hot)])
        };
        add("slots", changed(&self.slots, &earlier.slots).map(slot).collect());
        add("slots_gone", gone(&self.slots, &earlier.slots).map(|(pool, number)| json!([pool, number])).collect());
        add("bots", changed(&self.bots, &earlier.bots).map(|(id, cell)| bot(*id, cell)).collect());
        add("bots_gone", gone(&self.bots, &earlier.bots).map(|id| json!(id)).collect());
        add("queue", changed(&self.queue, &earlier.queue).map(|(id, cell)| waiting(*id, cell)).collect());
        add("queue_gone", gone(&self.queue, &earlier.queue).map(|id| json!(id)).collect());
        if self.gates != earlier.gates {
            change.insert("gates".to_owned(), gates(&self.gates).into());
        }
        if self.keepers != earlier.keepers {
            change.insert("keepers".to_owned(), keepers(&self.keepers).into());
        }
        (!change.is_empty()).then(|| Value::Object(change).to_string())
    }
}

/// The entries that are new or different.
fn changed<'a, K: Ord, V: PartialEq>(
    now: &'a BTreeMap<K, V>,
    earlier: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    now.iter().filter(|(key, value)| earlier.get(*key) != Some(*value))
}

/// The keys that are not there any more.
fn gone<'a, K: Ord, V>(now: &'a BTreeMap<K, V>, earlier: &'a BTreeMap<K, V>) -> impl Iterator<Item = &'a K> {
    earlier.keys().filter(|key| !now.contains_key(*key))
}

fn slot_index(status: SlotStatus) -> Option<usize> {
    SlotStatus::ALL.iter().position(|known| *known == status)
}

fn bot(id: Uuid, cell: &BotCell) -> Value {
    let status = ShownStatus::ALL.iter().position(|known| *known == cell.status);
    match cell.slot {
        Some((pool, number)) => json!([id, status, cell.since, pool, number]),
        None => json!([id, status, cell.since]),
    }
}

fn waiting(id: Uuid, cell: &QueueCell) -> Value {
    let QueueCell { platform, priority, turn, arrival, pool, queued_at, timeout_at } = cell;
    json!([id, platform.as_str(), priority, turn, arrival, pool, queued_at, timeout_at])
}

fn gates(gates: &[GateCell]) -> Vec<Value> {
    gates.iter().map(|gate| json!([gate.host, gate.active, gate.queued, gate.max_concurrent])).collect()
}

fn keepers(keepers: &[KeeperCell]) -> Vec<Value> {
    let one = |keeper: &KeeperCell| {
        let KeeperCell { name, last_run, took_ms, error, next_run, leader } = keeper;
        json!([name, last_run, took_ms, error, next_run, leader])
    };
    keepers.iter().map(one).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::live::message::{GzipStream, LiveMessage};

    fn cell(status: SlotStatus) -> SlotCell {
        SlotCell { status, since: 1_763_409_999, hot: true }
    }

    fn state(slots: i64) -> LiveState {
        let pools = vec![("google-meet".to_owned(), Platform::GoogleMeet)];
        let slots = (1..=slots).map(|number| ((0, number), cell(SlotStatus::Idle))).collect();
        LiveState { pools, slots, ..LiveState::default() }
    }

    /// Ten thousand bots in as many busy slots of three pools, most of which came within the last hour.
    fn busy(slots: u64) -> LiveState {
        let names = ["google-meet", "teams", "zoom"].map(|name| (name.to_owned(), Platform::GoogleMeet));
        let mut state = LiveState { pools: names.to_vec(), ..LiveState::default() };
        // A generator that returns the same numbers in every run.
        let mut seed: u64 = 1;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for number in 0..slots {
            let key = (usize::try_from(number % 3).unwrap(), i64::try_from(number / 3 + 1).unwrap());
            let since = 1_763_409_999 - i64::try_from(random(3_600)).unwrap();
            state.slots.insert(key, SlotCell { status: SlotStatus::Busy, since, hot: random(2) == 1 });
            let bytes = std::array::from_fn(|_| u8::try_from(random(256)).unwrap());
            let created_ms = u64::try_from(since).unwrap() * 1_000 - random(60_000);
            let id = uuid::Builder::from_unix_timestamp_millis(created_ms, &bytes).into_uuid();
            let status = if random(10) == 0 { ShownStatus::AwaitingAdmission } else { ShownStatus::Active };
            let since = since + i64::try_from(random(30)).unwrap();
            state.bots.insert(id, BotCell { status, since, slot: Some(key) });
        }
        state
    }

    #[test]
    fn a_snapshot_of_10_000_busy_slots_has_less_than_300_kb_as_it_is_sent() {
        let message = LiveMessage::snapshot(&busy(10_000).snapshot());
        let sent = GzipStream::default().add(message.text());
        assert!(sent.len() < 300_000, "{}", sent.len());
    }

    #[test]
    fn a_snapshot_of_10_000_slots_has_less_than_300_kb() {
        let text = state(10_000).snapshot();
        assert!(text.len() < 300_000, "{}", text.len());
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["slots"][0][41], json!([42, 1, 1_763_409_999, 1]));
        assert_eq!(read["slot_statuses"][1], "idle");
    }

    #[test]
    fn a_change_has_only_what_differs() {
        let (earlier, mut now) = (state(5), state(5));
        assert_eq!(now.change_since(&earlier), None);
        let id = Uuid::from_u128(1);
        now.slots.remove(&(0, 5));
        now.slots.insert((0, 2), cell(SlotStatus::Busy));
        now.bots.insert(id, BotCell { status: ShownStatus::Active, since: 7, slot: Some((0, 2)) });
        let change: Value = serde_json::from_str(&now.change_since(&earlier).unwrap()).unwrap();
        let active = ShownStatus::ALL.iter().position(|status| *status == ShownStatus::Active);
        let expected = json!({
            "slots": [[0, 2, 2, 1_763_409_999, 1]], "slots_gone": [[0, 5]], "bots": [[id, active, 7, 0, 2]],
        });
        assert_eq!(change, expected);
        let back: Value = serde_json::from_str(&earlier.change_since(&now).unwrap()).unwrap();
        assert_eq!(back["bots_gone"], json!([id]));
    }

    #[test]
    fn a_slot_is_found_by_its_name() {
        let state = state(1);
        assert_eq!(state.slot_key(&SlotName::new("google-meet", 1234)), Some((0, 1234)));
        assert_eq!(state.slot_key(&SlotName::new("zoom", 1)), None);
    }
}
