//! Which bot gets which slot: the maximum size, the names, the queue and its order.

use std::time::Duration;

use domain::{BotId, Meeting, Platform, SlotStatus, Status};
use greenroom::admission::BotRequest;
use greenroom::placement::SlotEvent;
use greenroom::store::{Changed, PoolRow};
use rstest::rstest;

use crate::support::{Backend, Call, DeploymentFixture, bot_request, pool, until};

fn sized(name: &str, max_slots: i64) -> PoolRow {
    PoolRow { max_slots, ..pool(name) }
}

/// Drains a slot, as an operator does.
async fn drain(fixture: &DeploymentFixture, name: &str) {
    let slot = fixture.slot(name).await.unwrap();
    fixture.core.placement.report(slot.name, SlotEvent::Drain).await.unwrap();
    fixture.reconcile();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_parallel_requests_on_five_slots_make_five_slots_and_a_queue_of_95(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 5)]).await;
    let answers = fixture.core.ask_at_once((0..100).map(bot_request)).await;
    let mut slots: Vec<_> =
        answers.iter().filter_map(|answer| answer.bot.slot.as_ref()).map(ToString::to_string).collect();
    slots.sort();
    assert_eq!(slots, ["pool-meet-001", "pool-meet-002", "pool-meet-003", "pool-meet-004", "pool-meet-005"]);
    let mut positions: Vec<_> = answers.iter().filter_map(|answer| answer.queue_position).collect();
    positions.sort_unstable();
    assert_eq!(positions, (1..=95).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer.bot.slot.is_some() != answer.queue_position.is_some()));
    // The position in each answer is the position in the queue.
    for (position, entry) in fixture.core.store.queue().await.unwrap().into_iter().enumerate() {
        let answer = answers.iter().find(|answer| answer.bot.id == entry.bot_id).unwrap();
        assert_eq!((answer.queue_position, entry.position), (Some(entry.position), position as i64 + 1));
    }
    for answer in answers.iter().filter(|answer| answer.bot.slot.is_some()) {
        fixture.runs(answer.bot.id).await;
    }
    assert_eq!(fixture.slots().await.len(), 5);
    assert_eq!(fixture.fake.starts().len(), 5);
    assert_eq!(fixture.core.store.pools().await.unwrap()[0].slots, 5);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_first_free_number_is_taken_again(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 4)]).await;
    for number in 0..3 {
        let bot = fixture.core.reserved(number).await;
        fixture.runs(bot).await;
    }
    let second = fixture.slot("pool-meet-002").await.unwrap().bot_id.unwrap();
    drain(&fixture, "pool-meet-002").await;
    assert_eq!(fixture.slot("pool-meet-002").await.unwrap().status, SlotStatus::Draining, "the slot waits for its bot");
    fixture.lives(second).await;
    until("the slot is gone", async || {
        fixture.reconcile();
        fixture.slot("pool-meet-002").await.is_none()
    })
    .await;
    let next = [fixture.core.reserved(3).await, fixture.core.reserved(4).await];
    assert_eq!(fixture.place_of(next[0]).await.as_deref(), Some("pool-meet-002"));
    assert_eq!(fixture.place_of(next[1]).await.as_deref(), Some("pool-meet-004"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_deleted_slot_is_replaced_under_its_number_for_the_next_in_the_queue(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 2)]).await;
    let first = fixture.core.reserved(0).await;
    fixture.runs(fixture.core.reserved(1).await).await;
    let waiting = fixture.core.reserved(2).await;
    fixture.runs(first).await;
    drain(&fixture, "pool-meet-001").await;
    fixture.lives(first).await;
    until("the next in the queue has a slot", async || {
        fixture.reconcile();
        fixture.place_of(waiting).await.is_some()
    })
    .await;
    assert_eq!(fixture.place_of(waiting).await.as_deref(), Some("pool-meet-001"));
    fixture.lives(waiting).await;
    let names: Vec<_> = fixture.slots().await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["pool-meet-001", "pool-meet-002"]);
    assert_eq!(fixture.core.store.pools().await.unwrap()[0].slots, 2);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_least_recently_used_slot_goes_first_and_one_never_used_before_all(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { min_idle: 3, ..sized("meet", 3) }]).await;
    until("three slots are idle", async || {
        fixture.slots().await.iter().filter(|(_, status)| *status == SlotStatus::Idle).count() == 3
    })
    .await;
    let mut taken = Vec::new();
    for number in 0..7 {
        fixture.core.clock.advance(Duration::from_secs(1));
        let bot = fixture.core.reserved(number).await;
        let slot = fixture.place_of(bot).await.unwrap();
        fixture.core.clock.advance(Duration::from_secs(1));
        fixture.lives(bot).await;
        fixture.slot_is(&slot, SlotStatus::Idle).await;
        taken.push(slot.rsplit_once('-').unwrap().1.to_owned());
    }
    assert_eq!(taken, ["001", "002", "003", "001", "002", "003", "001"]);
}

/// Takes the only slot, so that later bots wait.
async fn blocked(fixture: &DeploymentFixture) -> BotId {
    let blocker = fixture.core.reserved(999).await;
    assert!(fixture.place_of(blocker).await.is_some());
    blocker
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn waiting_bots_are_served_by_priority_and_then_by_arrival(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 1)]).await;
    let blocker = blocked(&fixture).await;
    let mut arrived = Vec::new();
    for (number, priority) in [100, 50, 100, -5, 50, 100].into_iter().enumerate() {
        let answer = fixture.core.ask(BotRequest { priority, ..bot_request(number) }).await;
        arrived.push(answer.bot.id);
        let position = fixture.queue().await.iter().position(|bot| *bot == answer.bot.id).unwrap();
        assert_eq!(answer.queue_position, Some(position as i64 + 1), "the answer has the position in the queue");
    }
    let expected: Vec<_> = [3, 1, 4, 0, 2, 5].map(|number: usize| arrived[number]).into();
    assert_eq!(fixture.queue().await, expected);
    fixture.lives(blocker).await;
    for (served, bot) in expected.iter().enumerate() {
        fixture.runs(*bot).await;
        assert_eq!(fixture.queue().await, expected[served + 1..]);
        fixture.lives(*bot).await;
    }
    assert_eq!(fixture.slots().await.len(), 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_stop_in_the_queue_ends_the_bot_at_once_and_the_others_move_up(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 1)]).await;
    blocked(&fixture).await;
    let bots = [fixture.core.reserved(0).await, fixture.core.reserved(1).await, fixture.core.reserved(2).await];
    let stopped = fixture.core.lifecycle.stop(fixture.core.user, bots[1]).await.unwrap();
    assert_eq!(stopped.bot.status, Status::Completed);
    assert_eq!(fixture.core.stands(bots[1]).await, (Status::Completed, Some("stopped".to_owned())));
    assert_eq!(fixture.queue().await, [bots[0], bots[2]]);
    let positions = fixture
        .core
        .placement
        .read_view(&fixture.core.store, |view| bots.map(|bot| view.queue_place(bot).map(|place| place.position)));
    assert_eq!(positions.await.unwrap(), [Some(1), None, Some(2)]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_waits_longer_than_it_may_fails_and_those_behind_it_move_up(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 1)]).await;
    blocked(&fixture).await;
    let hasty = fixture.core.ask(BotRequest { queue_timeout_ms: 5_000, ..bot_request(0) }).await.bot.id;
    let patient = fixture.core.reserved(1).await;
    fixture.core.clock.advance(Duration::from_secs(5));
    // Nothing polls: the queue timeout ends the bot.
    assert_eq!(fixture.end_of(hasty).await, (Status::Failed, Some("queue_timeout".to_owned())));
    assert_eq!(fixture.queue().await, [patient]);
    assert_eq!(fixture.bot(patient).await.status, Status::Reserved);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn the_wait_is_estimated_once_a_bot_has_held_a_slot(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [sized("meet", 1)]).await;
    let first = blocked(&fixture).await;
    let waiting = fixture.core.ask(bot_request(0)).await;
    assert_eq!((waiting.queue_position, waiting.estimated_wait_ms), (Some(1), Some(30 * 60_000)));
    fixture.runs(first).await;
    fixture.core.clock.advance(Duration::from_secs(60));
    fixture.lives(first).await;
    fixture.runs(waiting.bot.id).await;
    let next = [fixture.core.ask(bot_request(1)).await, fixture.core.ask(bot_request(2)).await];
    assert_eq!(next[0].estimated_wait_ms, Some(60_000));
    assert_eq!(next[1].estimated_wait_ms, Some(120_000));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_pools_of_a_platform_serve_one_queue(#[case] backend: Backend) {
    let zoom = PoolRow { platform: Platform::Zoom, ..sized("zoom", 1) };
    let fixture = DeploymentFixture::new(backend, [sized("near", 1), zoom, sized("far", 1)]).await;
    let bots = [fixture.core.reserved(0).await, fixture.core.reserved(1).await];
    assert_eq!(fixture.place_of(bots[0]).await.as_deref(), Some("pool-near-001"), "in the order of the configuration");
    assert_eq!(fixture.place_of(bots[1]).await.as_deref(), Some("pool-far-001"));
    let waiting = [fixture.core.reserved(2).await, fixture.core.reserved(3).await];
    assert!(fixture.slot("pool-zoom-001").await.is_none(), "they cannot use a slot of another platform");
    let meeting = Meeting::from_link("https://zoom.us/j/81234567890").unwrap();
    let stranger = fixture.core.ask(BotRequest { meeting, priority: 1_000, ..bot_request(4) }).await;
    assert_eq!(fixture.place_of(stranger.bot.id).await.as_deref(), Some("pool-zoom-001"));
    // A free slot goes to the first bot in the queue. A free slot of another platform goes to no bot here.
    fixture.lives(stranger.bot.id).await;
    fixture.slot_is("pool-zoom-001", SlotStatus::Idle).await;
    assert_eq!(fixture.queue().await, waiting);
    fixture.lives(bots[1]).await;
    assert_eq!(fixture.runs(waiting[0]).await.as_str(), "pool-far-001");
    fixture.lives(bots[0]).await;
    assert_eq!(fixture.runs(waiting[1]).await.as_str(), "pool-near-001");
}

fn in_status(slots: &[(String, SlotStatus)], status: SlotStatus) -> usize {
    slots.iter().filter(|(_, found)| *found == status).count()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_pool_keeps_slots_ready_and_deletes_them_when_it_shrinks(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [PoolRow { min_idle: 2, ..sized("meet", 4) }]).await;
    let count = async |idle: usize, all: usize| {
        until(&format!("{idle} of {all} slots are idle"), async || {
            fixture.reconcile();
            let slots = fixture.slots().await;
            (in_status(&slots, SlotStatus::Idle), slots.len()) == (idle, all)
        })
        .await;
    };
    count(2, 2).await;
    let first = fixture.core.reserved(0).await;
    count(2, 3).await;
    let second = fixture.core.reserved(1).await;
    count(2, 4).await;
    fixture.core.reserved(2).await;
    count(1, 4).await;
    // Slots that are ready without a bot cost nothing: the provider started nothing.
    fixture.gate_is_free().await;
    assert_eq!(fixture.fake.starts().len(), 3);

    let resize = async |max_slots| {
        let changed = Changed { pools: true, ..Changed::default() };
        let mut tx = fixture.core.store.begin_changing(&changed, fixture.core.clock.now()).await.unwrap();
        tx.resize_pool("meet", max_slots, 0).await.unwrap();
        tx.commit().await.unwrap();
    };
    resize(3).await;
    count(0, 3).await;
    resize(1).await;
    let waiting = fixture.core.reserved(3).await;
    assert_eq!(fixture.queue().await, [waiting], "the pool cannot grow");
    fixture.lives(first).await;
    assert_eq!(
        fixture.runs(waiting).await,
        fixture.bot(first).await.slot.unwrap(),
        "existing slots serve the queue first"
    );
    fixture.lives(second).await;
    count(0, 2).await;
    fixture.lives(waiting).await;
    count(0, 1).await;
    assert_eq!(fixture.fake.calls().iter().filter(|call| matches!(call, Call::Delete(_))).count(), 3);
}
