//! Only one replica at a time clears a slot between two bots. A second one would end the process of the next bot.

use std::time::Duration;

use domain::{SlotName, SlotStatus};
use greenroom::placement::SlotEvent;
use greenroom::store::{Changed, Holder, Lease, LeaseClaim, PoolRow};
use rstest::rstest;
use uuid::Uuid;

use crate::support::{Backend, Call, CoreFixture, DeploymentFixture, Fake, Plan, pool, until};

/// A pool under test, and a second pool whose first slot shows that the safety net has run.
fn pools() -> [PoolRow; 2] {
    let sign = PoolRow { platform: domain::Platform::Zoom, ..pool("sign") };
    [pool("meet"), sign]
}

/// Waits until the safety net of a server has run once.
async fn reconciled(fixture: &DeploymentFixture) {
    let changed = Changed { pools: true, ..Changed::default() };
    let mut tx = fixture.core.store.begin_changing(&changed, fixture.core.clock.now()).await.unwrap();
    tx.resize_pool("sign", 1, 1).await.unwrap();
    tx.commit().await.unwrap();
    fixture.reconcile();
    fixture.slot_is("pool-sign-001", SlotStatus::Idle).await;
}

#[tokio::test]
async fn two_servers_on_one_postgres_do_not_clear_a_slot_twice() {
    let left = DeploymentFixture::with(Backend::Postgres, pools(), 4, Fake::slow_to_end()).await;
    let right = left.beside(4).await;
    let (first, next) = (left.core.reserved(0).await, left.core.reserved(1).await);
    let slot = left.runs(first).await;
    left.lives(first).await;
    until("the slot is being cleared", async || left.fake.count(&Call::Stop(slot.clone())) == 1).await;
    // The clearing takes so long that the other server would believe that nobody does it.
    left.core.clock.advance(Duration::from_secs(5));
    reconciled(&right).await;
    left.fake.release_ends(1);
    left.runs(next).await;
    left.fake.release_ends(9);
    left.lives(next).await;
    left.slot_is(slot.as_str(), SlotStatus::Idle).await;
    let [start, stop] = [Call::Start(slot.clone()), Call::Stop(slot.clone())];
    assert_eq!(left.fake.calls_for(&slot), [start.clone(), stop.clone(), start, stop]);
}

#[tokio::test]
async fn two_servers_on_one_postgres_do_not_delete_a_slot_twice() {
    let left = DeploymentFixture::with(Backend::Postgres, pools(), 4, Fake::slow_to_end()).await;
    let right = left.beside(4).await;
    let (first, next) = (left.core.reserved(0).await, left.core.reserved(1).await);
    let slot = left.runs(first).await;
    left.core.placement.report(slot.clone(), SlotEvent::Drain).await.unwrap();
    left.fake.release_ends(1);
    left.lives(first).await;
    until("the slot is being deleted", async || {
        left.reconcile();
        left.fake.count(&Call::Delete(slot.clone())) == 1
    })
    .await;
    reconciled(&right).await;
    left.fake.release_ends(1);
    // The new slot has the name of the deleted one.
    until("the next in the queue has a new slot", async || {
        left.reconcile();
        left.place_of(next).await.is_some()
    })
    .await;
    assert_eq!(left.runs(next).await, slot);
    left.fake.release_ends(9);
    left.lives(next).await;
    left.slot_is(slot.as_str(), SlotStatus::Idle).await;
    let [start, stop] = [Call::Start(slot.clone()), Call::Stop(slot.clone())];
    assert_eq!(left.fake.calls_for(&slot), [start.clone(), stop.clone(), Call::Delete(slot), start, stop]);
}

#[tokio::test]
async fn a_slot_whose_clearing_was_begun_by_a_replica_that_died_is_cleared_by_another_on_postgres() {
    let fixture = DeploymentFixture::new(Backend::Postgres, pools()).await;
    let bot = fixture.core.reserved(0).await;
    let slot = fixture.runs(bot).await;
    let replica = Holder { id: Uuid::new_v4(), name: "the other".to_owned() };
    fixture.core.store.register_replica(&replica, Duration::from_secs(600)).await.unwrap();
    let claim = LeaseClaim::new(Lease::Slot(slot.clone()), &replica);
    assert!(fixture.core.store.take_lease(&claim).await.unwrap());

    fixture.lives(bot).await;
    reconciled(&fixture).await;
    assert_eq!(
        fixture.slot(slot.as_str()).await.unwrap().status,
        SlotStatus::Busy,
        "the other replica still clears it"
    );
    // The replica dies: its lease is not renewed any more. No keeper has to run.
    assert!(fixture.core.store.renew_replica(replica.id, Duration::from_millis(1), None).await.unwrap().lives);
    fixture.slot_is(slot.as_str(), SlotStatus::Idle).await;
    assert_eq!(fixture.fake.calls_for(&slot), [Call::Start(slot.clone()), Call::Stop(slot)]);
}

#[tokio::test]
async fn nothing_is_started_in_a_slot_that_another_replica_is_still_clearing_on_postgres() {
    let fixture = DeploymentFixture::new(Backend::Postgres, pools()).await;
    let replica = Holder { id: Uuid::new_v4(), name: "the other".to_owned() };
    fixture.core.store.register_replica(&replica, Duration::from_secs(600)).await.unwrap();
    let slot = SlotName::new("meet", 1);
    let claim = LeaseClaim::new(Lease::Slot(slot.clone()), &replica);
    assert!(fixture.core.store.take_lease(&claim).await.unwrap());
    let bot = fixture.core.reserved(0).await;
    until("its start is in progress", async || fixture.at_gate().await == (1, 0)).await;
    reconciled(&fixture).await;
    assert_eq!(fixture.fake.count(&Call::Start(slot.clone())), 0);
    fixture.core.store.release_lease(&claim).await.unwrap();
    assert_eq!(fixture.runs(bot).await, slot);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_slot_whose_bot_ended_while_no_server_ran_is_cleared_at_the_start(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, pools()).await;
    let bot = fixture.core.reserved(0).await;
    let slot = fixture.runs(bot).await;
    let caller = fixture.caller(bot).await;
    fixture.core.lifecycle.started(caller, None).await.unwrap();
    let (database, fake) = (fixture.core.database.clone(), fixture.fake.clone());
    let plan = Plan { clock: fixture.core.clock.clone(), ..Plan::of([]) };
    drop(fixture);
    CoreFixture::planned(database.clone(), &plan).await.exited(caller, 0).await.unwrap();
    // The clock does not reach the time at which a keeper would find the slot.
    let fixture = DeploymentFixture::on(CoreFixture::planned(database, &plan).await, 4, fake).await;
    fixture.slot_is(slot.as_str(), SlotStatus::Idle).await;
}
