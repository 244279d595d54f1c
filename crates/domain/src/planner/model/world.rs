//! The state of a history: users and pools from its seed, the planner's snapshot, and the reference. The snapshot's
//! deployments and ended bots stand for the database.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::random::Random;
use super::reference::Reference;
use crate::planner::job::Job;
use crate::planner::snapshot::{KnownKey, Snapshot, User};
use crate::planner::{QueueOrder, Settings};
use crate::requirements::Patterns;
use crate::{Attributes, ConnectionId, KeyId, PROBE_USER, Platform, Pool, Requirements, UsageClass, UserId};

pub struct World {
    pub settings: Settings,
    pub now: Timestamp,
    pub snapshot: Snapshot,
    pub reference: Reference,
    /// Earlier jobs, which may be repeated.
    pub past: Vec<Job>,
    pub connections: Vec<ConnectionId>,
    /// Ids that a plan has created: none may be created twice.
    pub made: HashSet<Uuid>,
    pub ids: u64,
    /// Few users request bots, so slots stay idle.
    pub is_quiet: bool,
    /// The count of each kind of job with each answer, if it is needed.
    pub seen: Option<BTreeMap<String, u64>>,
}

pub fn user_id(number: u64) -> UserId {
    UserId(Uuid::from_u64_pair(1, number))
}

pub fn key_id(number: u64) -> KeyId {
    KeyId(Uuid::from_u64_pair(2, number))
}

pub fn attribute_sets() -> Vec<Attributes> {
    let set = |class: Option<&str>, spot: bool, kind: Option<&str>, cpu, mem| Attributes {
        resource_class: class.map(str::to_owned),
        usage_class: if spot { UsageClass::Spot } else { UsageClass::OnDemand },
        instance_type: kind.map(str::to_owned),
        cpu,
        mem,
    };
    vec![
        set(None, false, None, 2, 4096),
        set(Some("large"), false, Some("c6i.large"), 2, 8192),
        set(Some("xlarge"), false, Some("m5.xlarge"), 4, 16384),
        set(Some("large"), true, Some("t3.large"), 1, 1024),
        Attributes::default(),
    ]
}

pub fn requirements(random: &mut Random) -> Option<Requirements> {
    let of = |class: Option<&str>, types: Option<&str>, cpu| Requirements {
        resource_class: class.map(str::to_owned),
        allowed_instance_types: types.and_then(|types| Patterns::try_from(types.to_owned()).ok()),
        cpu,
        ..Requirements::default()
    };
    match random.below(20) {
        0..14 => None,
        14 => Some(of(None, None, None)),
        15 => Some(of(None, None, Some(2))),
        16 => Some(of(Some("large"), None, None)),
        17 => Some(of(None, Some("m*"), None)),
        18 => Some(Requirements { usage_class: UsageClass::Spot, ..of(None, Some("*"), None) }),
        _ => Some(of(Some("none"), None, Some(64))),
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xA11C_E5ED);
        let queue_order = if random.percent(50) { QueueOrder::Fair } else { QueueOrder::Arrival };
        let settings = Settings {
            queue_order,
            deploy_timeout: Duration::from_secs(1800),
            expected_duration: Duration::from_secs(1800),
        };
        let mut world = Self {
            settings,
            now: Timestamp::from_second(1_800_000_000).unwrap_or_default(),
            snapshot: Snapshot::default(),
            reference: Reference::default(),
            past: Vec::new(),
            connections: Vec::new(),
            made: HashSet::new(),
            ids: seed,
            is_quiet: seed.is_multiple_of(4),
            seen: None,
        };
        for number in 0..3 {
            let end = (number == 2).then(|| world.now + Duration::from_secs(600));
            let user = User {
                max_concurrent_bots: 1 + random.int(5),
                min_priority: if random.percent(30) { 50 } else { 0 },
                api_keys: vec![(key_id(number), end)],
            };
            world.set_user(user_id(number), user);
        }
        let probes = User { max_concurrent_bots: 1 + random.int(3), min_priority: 0, api_keys: Vec::new() };
        world.set_user(PROBE_USER, probes);
        for number in 0..1 + random.int(4) {
            let pool = pool(&mut random, number);
            world.set_pool(pool);
        }
        world
    }

    pub fn set_user(&mut self, id: UserId, user: User) {
        self.snapshot.set_user(id, Some(user.clone()));
        self.reference.users.retain(|(other, _)| *other != id);
        self.reference.users.push((id, user));
    }

    pub fn set_pool(&mut self, pool: Pool) {
        self.snapshot.set_pool(&pool.name, Some(pool.clone()));
        self.reference.pools.retain(|other| other.name != pool.name);
        self.reference.pools.push(pool);
        self.reference.pools.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Rebuilds the snapshot from its own rows.
    pub fn reload(&mut self) {
        let mut anew = Snapshot::default();
        for state in self.snapshot.pools() {
            anew.set_pool(&state.pool.name, Some(state.pool.clone()));
        }
        for slot in self.snapshot.slots() {
            anew.set_slot(&slot.name, Some(slot.clone()));
        }
        for bot in self.snapshot.bots() {
            anew.set_bot(bot.id, Some(bot.clone()));
        }
        for (id, user) in &self.reference.users {
            anew.set_user(*id, Some(user.clone()));
        }
        for key in &self.reference.keys {
            let known = KnownKey { body_hash: key.body_hash.clone(), bot_id: key.bot };
            anew.set_key(key.user, key.key.clone(), known);
        }
        anew.facts = std::mem::take(&mut self.snapshot.facts);
        self.snapshot = anew;
    }
}

fn pool(random: &mut Random, number: i64) -> Pool {
    let sets = attribute_sets();
    let (provider, hot) = match random.below(10) {
        0..4 => ("process", true),
        4..7 => ("docker", false),
        _ => ("ec2", false),
    };
    let first = usize::try_from(random.below(4)).unwrap_or(0);
    let attribute_sets = if provider == "ec2" { sets[first..4].to_vec() } else { vec![sets[first].clone()] };
    Pool {
        name: format!("{}-{number}", ["b", "a", "d", "c"][usize::try_from(number).unwrap_or(0) % 4]),
        platform: if random.percent(75) { Platform::GoogleMeet } else { Platform::Zoom },
        provider: provider.to_owned(),
        host: format!("host-{}", number % 2),
        hot,
        recycle_after: random.int(3),
        max_slots: 1 + random.int(4),
        min_idle: if random.percent(40) { random.int(3) } else { 0 },
        fill_order: (!random.percent(8)).then_some(number),
        slots: 0,
        mean_hold_ms: None,
        attribute_sets,
        expire_after_ms: random.percent(35).then_some(20_000),
        idle_timeout_ms: random.percent(60).then(|| random.int(2) * 1_000),
        ready_timeout_ms: random.percent(50).then_some(1_000),
        max_warm_age_ms: random.percent(50).then(|| random.int(3) * 4_000),
        recipe: random.percent(70).then(|| "a".to_owned()),
    }
}
