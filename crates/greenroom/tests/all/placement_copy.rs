//! Placement's copy in memory agrees with the database after any event, in one process or two. If an answer of the
//! database is lost, nothing is done twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::planner::invariants::violations;
use domain::planner::{Ids, Job, QueueOrder, Settings, Snapshot, plan};
use domain::{BotId, SlotStatus, Status};
use greenroom::admission::BotRequest;
use greenroom::lifecycle::callbacks::Caller;
use greenroom::placement::{PlacementError, Reserved, SlotEvent};
use greenroom::store::{Applied, Changed, PoolRow, Store};
use jiff::Timestamp;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Backend, CoreFixture, Database, Plan, bot_request, pool};

/// A small generator of numbers, the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

/// A hot pool, and a pool whose slots are started for each bot.
fn pools() -> [PoolRow; 2] {
    let hot = PoolRow { hot: true, recycle_after: 2, max_slots: 3, min_idle: 1, ..pool("hot") };
    [hot, PoolRow { max_slots: 3, ..pool("cold") }]
}

/// The difference between a copy and the database.
fn difference(copy: &Snapshot, stored: &Snapshot) -> Option<String> {
    for slot in stored.slots() {
        if copy.slot(&slot.name) != Some(slot) {
            return Some(format!("{slot:?} is {:?} in the copy", copy.slot(&slot.name)));
        }
    }
    for bot in stored.bots() {
        // Placement does not write what a bot reports about itself.
        let mut known = copy.bot(bot.id).cloned();
        if let Some(known) = &mut known {
            known.status = bot.status;
        }
        if known.as_ref() != Some(bot) {
            return Some(format!("{bot:?} is {known:?} in the copy"));
        }
    }
    let counts = (copy.slots().len(), copy.bots().count());
    (counts != (stored.slots().len(), stored.bots().count())).then(|| format!("the copy has {counts:?} slots and bots"))
}

async fn expect_current(core: &CoreFixture) {
    // After a job, the copy is current, whatever the result of the job is.
    core.placement.keep_warm().await.unwrap();
    let (copy, wrong) = core.placement.read_snapshot(|copy, _| (copy.clone(), violations(copy))).await.unwrap();
    let stored = core.store.load_snapshot().await.unwrap();
    assert_eq!(difference(&copy, &stored), None);
    assert_eq!((wrong, violations(&stored)), (vec![], vec![]));
}

/// A random event of the bots and slots of a core.
async fn happen(dice: &mut Dice, core: &CoreFixture, bots: &mut Vec<BotId>, number: usize) {
    let some = |dice: &mut Dice, bots: &[BotId]| (!bots.is_empty()).then(|| bots[dice.below(bots.len())]);
    let slots = core.store.slots(None, None).await.unwrap();
    let slot = (!slots.is_empty()).then(|| slots[dice.below(slots.len())].clone());
    match dice.below(10) {
        0..=3 => {
            let request = BotRequest { priority: dice.below(3) as i64, ..bot_request(number) };
            match core.placement.reserve(core.key(), request).await {
                Ok(Reserved { bot, .. }) => bots.push(bot.id),
                Err(PlacementError::LimitReached { .. } | PlacementError::DuplicateBot(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        4 | 5 => {
            let Some(bot) = some(dice, bots) else { return };
            let row = core.store.bot(bot).await.unwrap().unwrap();
            let Some(connection_id) = row.connection_id else { return };
            let claim = greenroom::lifecycle::tokens::Claim { bot, connection: connection_id };
            let caller = Caller { claim, connection_id };
            if dice.below(2) == 0 {
                let _ = core.lifecycle.started(caller, None).await;
            }
            let _ = core.exited(caller, dice.below(2) as i64).await;
        }
        6 => {
            if let Some(bot) = some(dice, bots) {
                core.lifecycle.stop(core.user, bot).await.unwrap();
            }
        }
        7 => {
            if let Some(bot) = some(dice, bots) {
                let _ = core.lifecycle.assign(bot, None).await;
            }
        }
        _ => {
            let Some(slot) = slot else { return };
            let since = slot.status_since;
            let event = match (slot.bot_id, dice.below(6)) {
                (Some(bot), 0..=2) if core.stands(bot).await.0.is_ended() => SlotEvent::Cleared { bot },
                (bot, 3) => {
                    SlotEvent::Started { bot, provider_ref: "made".to_owned(), recipe: None, holder: uuid::Uuid::nil() }
                }
                (None, 0) if slot.status == SlotStatus::Creating => crate::support::waits(&slot),
                (None, 1) => SlotEvent::Failed { since, message: "it failed".to_owned() },
                (None, 2) => SlotEvent::Recovered { since },
                (_, 4) => SlotEvent::Drain,
                _ => SlotEvent::Gone,
            };
            core.placement.report(slot.name, event).await.unwrap();
        }
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite, QueueOrder::Arrival)]
#[case::sqlite_fair(Backend::Sqlite, QueueOrder::Fair)]
#[case::postgres(Backend::Postgres, QueueOrder::Arrival)]
#[tokio::test]
async fn the_copy_agrees_with_the_database_after_random_histories(#[case] backend: Backend, #[case] order: QueueOrder) {
    for seed in 0..12 {
        let plan = Plan { queue_order: order, ..Plan::of(pools()) };
        let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
        let (mut dice, mut bots) = (Dice(seed), Vec::new());
        for number in 0..60 {
            happen(&mut dice, &core, &mut bots, number).await;
            if number % 5 == 4 {
                expect_current(&core).await;
            }
        }
    }
}

#[tokio::test]
async fn two_replicas_on_postgres_follow_each_other_through_random_histories() {
    for seed in 0..6 {
        let database: Arc<Database> = Database::new(Backend::Postgres).await.into();
        let plan = Plan::of(pools());
        let left = CoreFixture::planned(database.clone(), &plan).await;
        let right = CoreFixture::planned(database, &plan).await;
        let (mut dice, mut bots) = (Dice(seed), [Vec::new(), Vec::new()]);
        for number in 0..50 {
            let side = dice.below(2);
            let core = if side == 0 { &left } else { &right };
            happen(&mut dice, core, &mut bots[side], number).await;
            if number % 10 == 9 {
                expect_current(&left).await;
                expect_current(&right).await;
            }
        }
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn users_of_one_priority_take_turns_in_a_fair_queue(#[case] backend: Backend) {
    let hot = PoolRow { max_slots: 1, ..pool("meet") };
    let plan = Plan { queue_order: QueueOrder::Fair, ..Plan::of([hot]) };
    let core = CoreFixture::planned(Database::new(backend).await.into(), &plan).await;
    let eve = core.another_user(10).await;
    let running = core.reserved(0).await;
    let mut first = Vec::new();
    for number in 1..=5 {
        first.push(core.reserved(number).await);
    }
    let theirs = core.placement.reserve(eve, BotRequest { priority: 100, ..bot_request(6) }).await.unwrap();
    assert_eq!(theirs.queue_position, Some(2), "after the first bot of the other user, before its second");
    let queued: Vec<BotId> = core.store.queue().await.unwrap().into_iter().map(|row| row.bot_id).collect();
    let expected = [vec![first[0], theirs.bot.id], first[1..].to_vec()].concat();
    assert_eq!(queued, expected);
    core.ended(running).await;
    core.placement
        .report(core.store.slots(None, None).await.unwrap()[0].name.clone(), SlotEvent::Cleared { bot: running })
        .await
        .unwrap();
    assert_eq!(core.stands(first[0]).await.0, Status::Reserved);
    assert!(core.store.bot(first[0]).await.unwrap().unwrap().slot.is_some(), "the first bot has it");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_user_cannot_use_a_priority_below_its_minimum(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let eve = core.another_user(10).await;
    let refused = core.placement.reserve(eve.clone(), BotRequest { priority: -1, ..bot_request(1) }).await;
    assert!(refused.unwrap_err().to_string().contains("at least 0"));
    core.placement.reserve(eve, BotRequest { priority: 0, ..bot_request(1) }).await.unwrap();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn bots_are_placed_while_others_change_what_placement_decides_on_without_pause(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let mut changing = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let (store, user) = (core.store.clone(), core.user);
        changing.spawn(async move {
            loop {
                let tx = store.begin_changing(&Changed::user(user), Timestamp::now()).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    for number in 0..30 {
        let bot = core.reserved(number).await;
        core.ended(bot).await;
    }
    changing.shutdown().await;
    expect_current(&core).await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_idempotency_key_finds_its_bot_at_a_server_that_has_not_seen_it(#[case] backend: Backend) {
    let database: Arc<Database> = Database::new(backend).await.into();
    let plan = Plan::of([PoolRow { max_slots: 5, ..pool("meet") }]);
    let first = CoreFixture::planned(database.clone(), &plan).await;
    let request = BotRequest { idempotency: Some(("a key".to_owned(), "hash".to_owned())), ..bot_request(7) };
    let made = first.ask(request.clone()).await;
    // The bot runs, so without its key the request would be for a second bot in the same meeting.
    let second = CoreFixture::planned(database, &plan).await;
    let repeated = second.placement.reserve(first.key(), request.clone()).await.unwrap();
    assert_eq!((repeated.bot.id, repeated.is_new), (made.bot.id, false));
    let other = BotRequest { idempotency: Some(("a key".to_owned(), "another".to_owned())), ..request.clone() };
    let refused = second.placement.reserve(first.key(), other).await.unwrap_err();
    assert!(refused.to_string().contains("another body"), "{refused}");
    let other = BotRequest { idempotency: Some(("another key".to_owned(), "hash".to_owned())), ..request };
    let refused = second.placement.reserve(first.key(), other).await.unwrap_err();
    assert!(refused.to_string().contains("already have a bot at this meeting"), "{refused}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_that_is_missing_in_the_table_does_not_prevent_placement(#[case] backend: Backend) {
    let core = CoreFixture::planned(
        Database::new(backend).await.into(),
        &Plan::of([PoolRow { max_slots: 1, ..pool("meet") }]),
    )
    .await;
    let first = core.reserved(1).await;
    let slot = core.store.slots(None, None).await.unwrap().remove(0).name;
    core.ended(first).await;
    assert!(core.placement.report(slot, SlotEvent::Cleared { bot: first }).await.unwrap());
    core.occupy("meet", SlotStatus::Idle).await;
    let idle =
        core.placement.read_snapshot(|copy, _| copy.slots().filter(|slot| slot.status == SlotStatus::Idle).count());
    assert_eq!(idle.await.unwrap(), 1);
    // Without the store and without a new token: the copy still has the slot, and it is idle.
    core.database.reader().await.execute("DELETE FROM slots;".to_owned()).await;
    let placed = core.ask(bot_request(2)).await;
    assert!(placed.bot.slot.is_some(), "a slot was created again");
    expect_current(&core).await;
}

#[rstest]
#[case::assigned("assign")]
#[case::stopped("stop")]
#[tokio::test]
async fn a_slot_assigned_while_its_bot_is_changed_on_postgres_is_read_again(#[case] change: &str) {
    let database: Arc<Database> = Database::new(Backend::Postgres).await.into();
    let core = CoreFixture::planned(database.clone(), &Plan::of([PoolRow { max_slots: 1, ..pool("meet") }])).await;
    core.reserved(1).await;
    let waiting = core.reserved(2).await;
    let mut other = database.reader().await;
    other.execute("UPDATE pools SET max_slots = 2;".to_owned()).await;
    // Another replica holds the token and is about to give the bot a slot.
    let replica = database.open().await;
    let held = replica.hold_token().await.unwrap();
    let changing = {
        let (lifecycle, user, change) = (core.lifecycle.clone(), core.user, change.to_owned());
        tokio::spawn(async move {
            match change.as_str() {
                "assign" => drop(lifecycle.assign(waiting, None).await.unwrap()),
                _ => drop(lifecycle.stop(user, waiting).await.unwrap()),
            }
        })
    };
    let blocked = "SELECT 'waits', query FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%placement%'";
    crate::support::until("the change waits for the token", async || !other.pairs(blocked).await.is_empty()).await;
    let (now, before) = (core.clock.now(), replica.placement_position().await.unwrap().token);
    let snapshot = replica.load_snapshot().await.unwrap();
    let settings = Settings {
        queue_order: QueueOrder::Arrival,
        deploy_timeout: std::time::Duration::from_secs(60),
        expected_duration: std::time::Duration::from_secs(60),
    };
    let changes = plan(&snapshot, &[Job::ServeQueues], now, Ids::new(now, 1), &settings);
    assert_eq!(changes.grants.len(), 1);
    let journal = Changed::of(&changes);
    let details = Default::default();
    let write = replica.prepare(&changes, &details, (before, uuid::Uuid::new_v4()), Some(&journal), now).unwrap();
    assert_eq!(replica.write(write, Some(held)).await.unwrap(), Applied::Committed);
    changing.await.unwrap();
    // A replica that had followed so far reads again what the last row names.
    let rows = other.pairs("SELECT changed, CAST(id AS TEXT) FROM placement_journal ORDER BY id DESC LIMIT 1").await;
    let last: Changed = serde_json::from_str(&rows[0].0).unwrap();
    let given = changes.grants[0].slot.to_string();
    assert_eq!((last.bots, last.slots), (vec![waiting], vec![given]));
    expect_current(&core).await;
}

#[tokio::test]
async fn a_batch_that_breaks_an_invariant_ends_the_placer_of_a_debug_build() {
    use domain::planner::model::{Bug, plant};
    let core = CoreFixture::new(Backend::Sqlite).await;
    let eve = core.another_user(1).await;
    core.placement.reserve(eve.clone(), bot_request(1)).await.unwrap();
    // The bug is set on this thread, which is the one that runs placement.
    plant(Some(Bug::LimitIgnored));
    let broken = core.placement.reserve(eve, bot_request(2)).await;
    plant(None);
    assert!(matches!(broken, Err(PlacementError::Stopping)), "{broken:?}");
}

/// A proxy for PostgreSQL that can drop answers of the database.
struct Proxy {
    url: String,
    lost: Arc<AtomicUsize>,
}

impl Proxy {
    /// Drops the answer to a statement that contains `marker`, as often as [`Proxy::lose`] says.
    async fn to(url: &str, marker: &'static str) -> Self {
        let (user, rest) = url.split_once('@').unwrap_or(("postgres://postgres", url));
        let (address, name) = rest.split_once('/').unwrap();
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap();
        let lost = Arc::<AtomicUsize>::default();
        let shared = lost.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                tokio::spawn(carry(client, server, marker, shared.clone()));
            }
        });
        Self { url: format!("{user}@{own}/{name}"), lost }
    }

    fn lose(&self, count: usize) {
        self.lost.store(count, Ordering::SeqCst);
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, marker: &str, lost: Arc<AtomicUsize>) {
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let mut loses = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(count @ 1..) = read else { return };
                let names = asked[..count].windows(marker.len()).any(|window| window == marker.as_bytes());
                loses |= names && lost.load(Ordering::SeqCst) > 0;
                if server.write_all(&asked[..count]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(count @ 1..) = read else { return };
                // The statement is done and committed when the server is ready for the next one.
                if loses && answered[..count].windows(6).any(|window| window == b"Z\0\0\0\x05I") {
                    lost.fetch_sub(1, Ordering::SeqCst);
                    return;
                }
                if !loses && client.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_lost_answer_of_postgres_makes_nothing_twice() {
    let database: Arc<Database> = Database::new(Backend::Postgres).await.into();
    drop(database.open().await);
    let request = bot_request(7);
    let marker: &'static str = request.meeting.native_id.clone().leak();
    let proxy = Proxy::to(&database.url, marker).await;
    let store = Store::open(&proxy.url).await.unwrap();
    let core = CoreFixture::on(store, database, &Plan::of([PoolRow { max_slots: 5, ..pool("meet") }])).await;
    core.reserved(1).await;
    proxy.lose(1);
    let reserved = core.ask(request.clone()).await;
    assert_eq!(proxy.lost.load(Ordering::SeqCst), 0, "the answer was lost");
    assert!(reserved.is_new);
    let mut found = core.store.bots(None, 100).await.unwrap().iter().map(|bot| bot.unwrap().id).collect::<Vec<_>>();
    found.sort();
    assert_eq!(found.len(), 2, "nothing was created twice");
    assert!(found.contains(&reserved.bot.id));
    assert_eq!(core.store.slots(None, None).await.unwrap().len(), 2);
    expect_current(&core).await;
}
