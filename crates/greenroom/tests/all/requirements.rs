//! Slots by requirements: which slots meet them, the smallest first, and the error if no slot can ever meet them.

mod no_capacity;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::{Attributes, BotId, Platform, Requirements, SlotName, SlotStatus, Status, UsageClass, requirements, slot};
use greenroom::admission::BotRequest;
use greenroom::placement::{PlacementError, Reserved};
use greenroom::store::{Changed, PoolRow, SlotRow};
use reqwest::StatusCode;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::placement_writes::write_slots;
use crate::support::{
    Backend, CoreFixture, Database, DeploymentFixture, Fake, Plan, Process, bot_request, configure, meet_link, pool,
    until,
};

pub const CLASSES: [(&str, u32, u32); 4] =
    [("large", 2, 4096), ("xlarge", 4, 8192), ("2xlarge", 8, 16_384), ("4xlarge", 16, 32_768)];

pub fn kind(class: &str, usage_class: UsageClass) -> Attributes {
    let (name, cpu, mem) = CLASSES.into_iter().find(|(name, ..)| *name == class).unwrap();
    let (resource_class, instance_type) = (Some(name.to_owned()), Some(format!("c6i.{name}")));
    Attributes { resource_class, usage_class, instance_type, cpu, mem }
}

fn of_kind(name: &str, kind: Attributes, max_slots: i64) -> PoolRow {
    PoolRow { max_slots, attribute_sets: vec![kind], ..pool(name) }
}

/// A request with requirements, as a user writes them.
fn request_with(number: usize, asked: Value) -> BotRequest {
    let needs: Requirements = serde_json::from_value(asked.clone()).unwrap();
    BotRequest { given_requirements: asked.as_object().cloned(), requirements: Some(needs), ..bot_request(number) }
}

fn cpus(number: usize, cpu: u32) -> BotRequest {
    request_with(number, json!({ "cpu": cpu }))
}

fn slot_of(answer: &Reserved) -> &str {
    answer.bot.slot.as_ref().map(SlotName::as_str).unwrap_or("none")
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_smallest_slot_that_fits_is_taken_then_the_least_recently_used(#[case] backend: Backend) {
    let on_demand = |name: &str| kind(name, UsageClass::OnDemand);
    let pools = [("huge", "4xlarge"), ("mid", "xlarge"), ("small", "large"), ("other", "large")];
    let pools = pools.map(|(name, class)| of_kind(name, on_demand(class), 2));
    let spot = of_kind("spot", kind("large", UsageClass::Spot), 2);
    let fixture = DeploymentFixture::new(backend, pools.into_iter().chain([spot])).await;
    let ask = async |bot_request| slot_of(&fixture.core.ask(bot_request).await).to_owned();
    // No slot exists yet: the smallest possible one is created, in the first pool that can have it.
    assert_eq!(ask(cpus(1, 2)).await, "pool-small-001");
    assert_eq!(ask(cpus(2, 3)).await, "pool-mid-001");
    assert_eq!(ask(request_with(3, json!({"mem": 20_000}))).await, "pool-huge-001");
    assert_eq!(ask(request_with(4, json!({"usage_class": "spot"}))).await, "pool-spot-001");
    assert_eq!(ask(request_with(5, json!({"resource_class": "xlarge"}))).await, "pool-mid-002");
    // Without requirements any slot is possible, and the smallest is taken.
    assert_eq!(ask(bot_request(6)).await, "pool-small-002");
    assert_eq!(ask(cpus(7, 1)).await, "pool-other-001");
    assert_eq!(ask(request_with(8, json!({"allowed_instance_types": "m* *.4XLARGE"}))).await, "pool-huge-002");
    assert_eq!(ask(cpus(9, 5)).await, "none", "the bot waits: all slots that fit are in use");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_larger_warm_slot_is_used_before_a_smaller_one_is_created(#[case] backend: Backend) {
    let small = of_kind("small", kind("large", UsageClass::OnDemand), 5);
    let large = PoolRow { min_idle: 1, ..of_kind("large", kind("2xlarge", UsageClass::OnDemand), 5) };
    let fixture = DeploymentFixture::new(backend, [small, large]).await;
    fixture.slot_is("pool-large-001", SlotStatus::Idle).await;
    let answer = fixture.core.ask(cpus(1, 2)).await;
    assert_eq!(slot_of(&answer), "pool-large-001");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_waits_for_a_slot_in_use_does_not_delay_others(#[case] backend: Backend) {
    let small = of_kind("small", kind("large", UsageClass::OnDemand), 1);
    let large = of_kind("large", kind("2xlarge", UsageClass::OnDemand), 1);
    let fixture = DeploymentFixture::new(backend, [small, large]).await;
    let first = fixture.core.ask(cpus(1, 8)).await;
    assert_eq!(slot_of(&first), "pool-large-001");
    let second = fixture.core.ask(cpus(2, 8)).await;
    assert_eq!(second.queue_position, Some(1));
    let small = fixture.core.ask(cpus(3, 2)).await;
    assert_eq!(slot_of(&small), "pool-small-001", "the bot passes others that wait for another slot");
    let third = fixture.core.ask(BotRequest { priority: 1, ..cpus(4, 2) }).await;
    assert_eq!(third.queue_position, Some(1), "the queue is ordered by priority, whatever the requirements are");
    fixture.lives(first.bot.id).await;
    // The free slot is larger than the third bot needs. But the third is before the second in the queue.
    assert_eq!(fixture.runs(third.bot.id).await.as_str(), "pool-large-001");
    fixture.lives(small.bot.id).await;
    fixture.slot_is("pool-small-001", SlotStatus::Idle).await;
    assert_eq!(fixture.queue().await, [second.bot.id]);
    fixture.lives(third.bot.id).await;
    assert_eq!(fixture.runs(second.bot.id).await.as_str(), "pool-large-001");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn of_many_attribute_sets_in_one_pool_the_one_that_fits_is_found(#[case] backend: Backend) {
    let core = CoreFixture::planned(
        Database::new(backend).await.into(),
        &Plan::of([of_kind("meet", Attributes::default(), 1)]),
    )
    .await;
    let kind = |cpu| Attributes { cpu, ..Attributes::default() };
    furnish(&core, "meet", (1..=100).map(|number| (number, kind(number as u32), None))).await;
    let answer = core.ask(cpus(1, 73)).await;
    assert_eq!(slot_of(&answer), "pool-meet-073");
    let answer = core.ask(cpus(2, 73)).await;
    assert_eq!(slot_of(&answer), "pool-meet-074");
    let answer = core.ask(bot_request(3)).await;
    assert_eq!(slot_of(&answer), "pool-meet-001");
    let impossible = core.placement.reserve(core.key(), cpus(4, 101)).await;
    assert!(matches!(impossible, Err(PlacementError::NoneFits(Platform::GoogleMeet))), "{impossible:?}");
}

/// Fills a pool with idle slots: their number, their attributes, and when they were last used.
async fn furnish(core: &CoreFixture, of: &str, slots: impl IntoIterator<Item = (i64, Attributes, Option<i64>)>) {
    let now = core.clock.now();
    let row = |(number, attributes, used): (i64, Attributes, Option<i64>)| SlotRow {
        name: SlotName::new(of, number),
        pool: of.to_owned(),
        number,
        status: SlotStatus::Idle,
        status_since: now,
        bot_id: None,
        incarnation: uuid::Uuid::new_v4(),
        generation: 1,
        token_number: 0,
        agent: None,
        bots_since_fresh: 0,
        provider_ref: Some("made".to_owned()),
        description: slot::idle(None),
        last_used_at: used.map(|ago| now - jiff::SignedDuration::from_secs(ago)),
        error_message: None,
        recovery_attempts: 0,
        created_at: now,
        attributes,
        expires_at: None,
        stopped: false,
        recipe: None,
        awaits_clearing: false,
    };
    let new_slots: Vec<SlotRow> = slots.into_iter().map(row).collect();
    let mut tx = core.store.begin_changing(&Changed::everything(), now).await.unwrap();
    let mut pool = tx.hold_pool(of).await.unwrap().unwrap();
    pool.slots = new_slots.len() as i64;
    pool.max_slots = pool.slots;
    for slot in &new_slots {
        if !pool.attribute_sets.contains(&slot.attributes) {
            pool.attribute_sets.push(slot.attributes.clone());
        }
    }
    tx.configure_pool(&pool).await.unwrap();
    tx.commit().await.unwrap();
    write_slots(&core.store, new_slots, true, now).await;
}

/// A small generator of numbers, the same in each run.
pub struct Dice(pub u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn usage(&mut self) -> UsageClass {
        if self.below(2) == 0 { UsageClass::OnDemand } else { UsageClass::Spot }
    }

    fn kind(&mut self) -> Attributes {
        let (class, ..) = CLASSES[self.below(4) as usize];
        let usage = self.usage();
        let family = ["c6i", "m5", "t3"][self.below(3) as usize];
        Attributes { instance_type: Some(format!("{family}.{class}")), ..kind(class, usage) }
    }

    /// Requirements as a user writes them. One in six is `None`.
    pub fn asked(&mut self) -> Option<Value> {
        if self.below(6) == 0 {
            return None;
        }
        let mut asked = serde_json::Map::new();
        if self.below(2) == 0 {
            asked.insert("usage_class".to_owned(), json!(self.usage().as_str()));
        }
        match self.below(4) {
            0 => asked.insert("resource_class".to_owned(), json!(CLASSES[self.below(4) as usize].0)),
            1 => asked.insert("cpu".to_owned(), json!(self.below(18))),
            2 => asked.insert("mem".to_owned(), json!(self.below(33_000))),
            _ => None,
        };
        let types = ["c*", "m* t*", "*.xlarge c6i.large", "t3.*"];
        if self.below(3) == 0 {
            asked.insert("allowed_instance_types".to_owned(), json!(types[self.below(4) as usize]));
        }
        Some(Value::Object(asked))
    }

    fn bot_request(&mut self, number: usize) -> BotRequest {
        match self.asked() {
            None => bot_request(number),
            Some(asked) => request_with(number, asked),
        }
    }
}

/// The slot that a bot should get, computed in the simplest way.
fn plainly_best(slots: &[(i64, Attributes, Option<i64>)], needs: Option<&Requirements>) -> Option<i64> {
    let fits = slots.iter().filter(|(_, kind, _)| requirements::fits(needs, kind));
    let order = |(number, kind, used): &&(i64, Attributes, Option<i64>)| {
        let spot = kind.usage_class == UsageClass::Spot;
        (spot, kind.cpu, kind.mem, used.map_or(i64::MIN, |ago| -ago), *number)
    };
    fits.min_by_key(order).map(|(number, ..)| *number)
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_assigned_slot_is_the_one_of_the_simplest_rule(#[case] backend: Backend) {
    let mut dice = Dice(41);
    let plan = Plan::of([of_kind("meet", dice.kind(), 1)]);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
    let used = |dice: &mut Dice| (dice.below(3) > 0).then(|| dice.below(1_000) as i64);
    let mut slots: Vec<_> = (1..=120).map(|number| (number, dice.kind(), used(&mut dice))).collect();
    furnish(&core, "meet", slots.clone()).await;
    let attribute_sets: BTreeSet<String> = slots.iter().map(|(_, kind, _)| kind.to_string()).collect();
    let (mut given, mut queued) = (0, Vec::new());
    for number in 0..200 {
        let bot_request = dice.bot_request(number);
        let needs = bot_request.requirements.clone();
        let could = attribute_sets.iter().any(|kind| requirements::fits(needs.as_ref(), &kind.parse().unwrap()));
        match core.placement.reserve(core.key(), bot_request).await {
            Err(PlacementError::NoneFits(_)) => assert!(!could, "{needs:?}"),
            Err(error) => panic!("{error}"),
            Ok(answer) => {
                assert!(could, "{needs:?}");
                let best = plainly_best(&slots, needs.as_ref());
                let name = best.map(|number| SlotName::new("meet", number));
                assert_eq!(answer.bot.slot, name, "{needs:?}");
                slots.retain(|(number, ..)| Some(*number) != best);
                given += usize::from(name.is_some());
                queued.extend(name.is_none().then_some(answer.bot.id));
            }
        }
    }
    assert!(given > 60 && !queued.is_empty(), "{given} {}", queued.len());
    let in_queue: Vec<BotId> = core.store.queue().await.unwrap().into_iter().map(|entry| entry.bot_id).collect();
    assert_eq!(in_queue, queued, "bots without a slot wait, in the order of arrival");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_mixed_requests_on_two_hundred_slots_each_run_where_they_fit(#[case] backend: Backend) {
    let attribute_sets = CLASSES.into_iter().flat_map(|(class, ..)| UsageClass::ALL.map(|usage| kind(class, usage)));
    let attribute_sets: Vec<Attributes> = attribute_sets.collect();
    let pools = attribute_sets.iter().map(|kind| {
        let name = format!("{}-{}", kind.resource_class.as_deref().unwrap(), kind.usage_class);
        PoolRow { min_idle: 25, ..of_kind(&name, kind.clone(), 25) }
    });
    let fixture = DeploymentFixture::with(backend, pools, 16, Fake::default()).await;
    until("all slots are there", async || {
        let slots = fixture.slots().await;
        fixture.reconcile();
        slots.len() == 200 && slots.iter().all(|(_, status)| *status == SlotStatus::Idle)
    })
    .await;
    let mut dice = Dice(7);
    let bot_requests: Vec<BotRequest> = (0..500).map(|number| dice.bot_request(number)).collect();
    let fits_none = |bot_request: &&BotRequest| {
        !attribute_sets.iter().any(|kind| requirements::fits(bot_request.requirements.as_ref(), kind))
    };
    let impossible = bot_requests.iter().filter(fits_none).count();
    assert!(impossible > 10, "some requirements cannot be met: {impossible}");

    let mut requests = tokio::task::JoinSet::new();
    for bot_request in bot_requests {
        let (placement, key) = (fixture.core.placement.clone(), fixture.core.key());
        let needs = bot_request.requirements.clone();
        requests.spawn(async move { (needs, placement.reserve(key, bot_request).await) });
    }
    let (mut bots, mut refused) = (BTreeMap::new(), 0);
    for (needs, answer) in requests.join_all().await {
        match answer {
            Ok(answer) => drop(bots.insert(answer.bot.id, needs)),
            Err(PlacementError::NoneFits(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((refused, bots.len()), (impossible, 500 - impossible));
    let mut open: BTreeSet<BotId> = bots.keys().copied().collect();
    until("all bots have run", async || {
        let now = fixture.core.store.slots(None, Some(SlotStatus::Busy)).await.unwrap();
        for slot in now {
            let Some(bot) = slot.bot_id.filter(|bot| open.contains(bot)) else { continue };
            let needs = bots[&bot].as_ref();
            assert!(requirements::fits(needs, &slot.attributes), "{needs:?} in {}", slot.attributes);
            assert_eq!(fixture.bot(bot).await.slot.as_ref(), Some(&slot.name));
            fixture.lives(bot).await;
            open.remove(&bot);
        }
        open.is_empty()
    })
    .await;
    for bot in bots.keys() {
        assert_eq!(fixture.core.stands(*bot).await.0, Status::Completed);
    }
    assert_eq!(fixture.slots().await.len(), 200);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_expired_slot_is_not_assigned_and_is_deleted(#[case] backend: Backend) {
    let meet = PoolRow { max_slots: 6, min_idle: 3, expire_after_ms: Some(60_000), ..pool("meet") };
    let fixture = DeploymentFixture::new(backend, [meet]).await;
    let names = ["pool-meet-001", "pool-meet-002", "pool-meet-003"];
    for name in names {
        let slot = fixture.slot_is(name, SlotStatus::Idle).await;
        assert_eq!(slot.expires_at, slot.status_since.checked_add(Duration::from_secs(60)).ok());
    }
    fixture.core.clock.advance(Duration::from_secs(40));
    let bot = fixture.core.reserved(1).await;
    assert_eq!(fixture.runs(bot).await.as_str(), "pool-meet-001");
    fixture.lives(bot).await;
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    fixture.core.clock.advance(Duration::from_secs(30));
    // The slot that was used since has a new time. The others are too old.
    let next = fixture.core.reserved(2).await;
    assert_eq!(fixture.place_of(next).await.unwrap(), "pool-meet-001");
    let after = fixture.core.reserved(3).await;
    assert_eq!(
        fixture.place_of(after).await.unwrap(),
        "pool-meet-004",
        "a new slot is created, because the others are too old"
    );
    assert_eq!(fixture.core.placement.keep_warm().await.unwrap().let_go, 2);
    assert_eq!(fixture.core.placement.keep_warm().await.unwrap().let_go, 0);
    until("three fresh ones are ready", async || {
        fixture.reconcile();
        let all = fixture.core.store.slots(None, Some(SlotStatus::Idle)).await.unwrap();
        all.iter().filter(|slot| slot.expires_at > Some(fixture.core.clock.now())).count() == 3
    })
    .await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn many_waiting_bots_served_at_once_get_the_same_slots_as_one_by_one(#[case] backend: Backend) {
    let mut dice = Dice(5);
    let plan = Plan::of([of_kind("meet", dice.kind(), 1)]);
    let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
    let slots: Vec<_> = (1..=60).map(|number| (number, dice.kind(), None)).collect();
    // All attribute sets are known, and no slot is free yet.
    furnish(&core, "meet", slots.clone()).await;
    core.occupy("meet", SlotStatus::Busy).await;
    let mut waiting = Vec::new();
    for number in 0..150 {
        let bot_request = BotRequest { priority: dice.below(5) as i64, ..dice.bot_request(number) };
        let (priority, needs) = (bot_request.priority, bot_request.requirements.clone());
        if let Ok(answer) = core.placement.reserve(core.key(), bot_request).await {
            waiting.push((priority, waiting.len(), answer.bot.id, needs));
        }
    }
    assert!(waiting.len() > 80);
    core.occupy("meet", SlotStatus::Idle).await;
    core.placement.keep_warm().await.unwrap();
    waiting.sort_by_key(|(priority, arrival, ..)| (*priority, *arrival));
    let mut open = slots;
    for (_, _, bot, needs) in waiting {
        let best = plainly_best(&open, needs.as_ref());
        open.retain(|(number, ..)| Some(*number) != best);
        let slot = core.store.bot(bot).await.unwrap().unwrap().slot;
        assert_eq!(slot, best.map(|number| SlotName::new("meet", number)), "{needs:?}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_longest_allowed_requirements_can_wait_in_the_queue(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [of_kind("meet", kind("large", UsageClass::OnDemand), 1)]).await;
    fixture.core.reserved(0).await;
    let types = format!("c* {}", "x".repeat(50).to_owned() + &" abcdefgh*".repeat(45));
    let asked = json!({"resource_class": "large", "allowed_instance_types": types, "cpu": 2, "mem": 4096});
    assert_eq!(fixture.core.ask(request_with(1, asked)).await.queue_position, Some(1));
}

#[tokio::test]
async fn requirements_that_nothing_can_meet_do_not_affect_others() {
    let core = CoreFixture::new(Backend::Sqlite).await;
    for number in 0..20 {
        let impossible = core.placement.reserve(core.key(), cpus(number, 100_000));
        let possible = core.placement.reserve(core.key(), bot_request(number));
        let (impossible, possible) = tokio::join!(impossible, possible);
        assert!(matches!(impossible, Err(PlacementError::NoneFits(_))), "{impossible:?}");
        assert!(possible.is_ok(), "they have the same meeting: {possible:?}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn idle_slots_with_old_attributes_are_replaced(#[case] backend: Backend) {
    let attribute_sets = ["large", "2xlarge"].map(|class| kind(class, UsageClass::OnDemand));
    let old = PoolRow { min_idle: 2, ..of_kind("meet", attribute_sets[0].clone(), 2) };
    let fixture = DeploymentFixture::new(backend, [old.clone()]).await;
    for name in ["pool-meet-001", "pool-meet-002"] {
        fixture.slot_is(name, SlotStatus::Idle).await;
    }
    configure(&fixture.core.store, &PoolRow { attribute_sets: vec![attribute_sets[1].clone()], ..old }).await;
    let waits = fixture.core.ask(cpus(1, 8)).await.bot.id;
    until("all slots have the attributes of the pool", async || {
        fixture.reconcile();
        let slots = fixture.core.store.slots(None, None).await.unwrap();
        slots.len() == 2 && slots.iter().all(|slot| slot.attributes == attribute_sets[1])
    })
    .await;
    fixture.runs(waits).await;
    let now = fixture.core.store.pools().await.unwrap().remove(0).attribute_sets;
    assert_eq!(now, [attribute_sets[1].clone()], "requirements that no slot meets are refused");
}

#[tokio::test]
async fn slots_follow_a_change_of_how_long_they_may_wait() {
    let database = Database::new(Backend::Sqlite).await;
    let pool =
        |more: &str| crate::support::process_pool("meet", &format!("max_slots = 1\nmin_idle = 1\n{more}"), "read x");
    let expires_at = async |server: &Process| {
        crate::support::found("the slot is idle", async || {
            let slots = server.admin().get("/admin/slots").await;
            let slot = slots["slots"].as_array()?.first().filter(|slot| slot["status"] == "idle")?.clone();
            Some(slot["threshold"].clone())
        })
        .await
    };
    let server = Process::start_configured(&database, &pool("expire_after = \"1h\"")).await;
    let first: jiff::Timestamp = serde_json::from_value(expires_at(&server).await).unwrap();
    server.kill().await;
    let server = Process::start_configured(&database, &pool("expire_after = \"12h\"")).await;
    let second: jiff::Timestamp = serde_json::from_value(expires_at(&server).await).unwrap();
    assert!(second.duration_since(first).as_hours() >= 10);
    server.kill().await;
    let server = Process::start_configured(&database, &pool("")).await;
    assert_eq!(expires_at(&server).await, Value::Null);
}

#[tokio::test]
async fn requirements_are_checked_by_field_and_shown_as_they_were_requested() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(20).await;
    let link = meet_link(1);
    let cases = [
        (json!("large"), "`requirements`"),
        (json!({"colour": "red"}), "unknown field `colour`"),
        (json!({"usage_class": "cheap"}), "`requirements.usage_class`"),
        (json!({"allowed_instance_types": "c[5]*"}), "`requirements.allowed_instance_types`"),
        (json!({"allowed_instance_types": " "}), "`requirements.allowed_instance_types`"),
        (json!({"resource_class": "very large"}), "`requirements.resource_class`"),
        (json!({"cpu": -1}), "`requirements.cpu`"),
        (json!({"cpu": "two"}), "`requirements.cpu`"),
        (json!({"mem": 1.5}), "`requirements.mem`"),
        (json!({"mem": 5_000_000_000_u64}), "`requirements.mem`"),
        (json!({"resource_class": "large"}), "no slot for google_meet"),
        (json!({"cpu": 100_000}), "no slot for google_meet"),
    ];
    for (asked, expected) in cases {
        let ask = json!({"meeting_url": link, "requirements": asked});
        let (status, body) = user.post("/bots", ask.clone()).await;
        assert_eq!((status, &body["code"]), (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid")), "{ask}: {body}");
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(expected) && detail.contains("requirements"), "{ask}: {body}");
    }
    assert_eq!(user.get("/bots").await["bots"], json!([]));
    // A slot of this machine has the size of the machine.
    let asked = json!({"cpu": 1, "mem": 64, "usage_class": "on-demand"});
    let (status, body) = user.post("/bots", json!({"meeting_url": link, "requirements": asked})).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    assert_eq!(body["bot"]["requirements"], asked);
    let (status, _) = user.post("/bots", json!({"meeting_url": meet_link(2), "requirements": {}})).await;
    assert_eq!(status, StatusCode::CREATED);
    let slots = server.admin().get("/admin/slots").await;
    assert!(slots["slots"][0]["attributes"]["cpu"].as_u64().unwrap() >= 1, "{slots}");
}
