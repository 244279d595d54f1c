//! Leases have one holder at a time, until the holder releases the lease, the lease expires by the database's clock, or
//! its replica ends. Every kind of lease has the same contract on both databases.

use std::time::Duration;

use domain::SlotName;
use greenroom::clock::Clock;
use greenroom::store::{Holder, Image, Lease, LeaseClaim, Store};
use rstest::rstest;
use uuid::Uuid;

use crate::support::{Backend, Database, until};

const LONG: Duration = Duration::from_secs(600);

fn every_kind() -> [Lease; 4] {
    let slot = SlotName::new("meet", 1);
    let image = Image { name: "bot:1".to_owned(), host: "here".to_owned() };
    [Lease::Keepers, Lease::Removal(slot.clone()), Lease::Slot(slot), Lease::Image(image)]
}

/// A replica that is alive.
async fn replica(store: &Store, name: &str) -> Holder {
    let replica = Holder { id: Uuid::new_v4(), name: name.to_owned() };
    store.register_replica(&replica, LONG).await.unwrap();
    replica
}

async fn take(store: &Store, claim: &LeaseClaim) -> bool {
    store.take_lease(claim).await.unwrap()
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_lease_has_one_holder_until_it_is_released(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let (first, second) = (replica(&store, "first").await, replica(&store, "second").await);
    for lease in every_kind() {
        let [ours, theirs] = [&first, &second].map(|replica| LeaseClaim::new(lease.clone(), replica));
        assert_eq!(store.lease_holder(&lease).await.unwrap(), None);
        assert!(take(&store, &ours).await, "{lease:?} is free");
        assert!(!take(&store, &theirs).await, "{lease:?} has a holder");
        assert!(take(&store, &ours).await, "the holder may take {lease:?} again");
        assert_eq!(store.lease_holder(&lease).await.unwrap().as_ref(), Some(&first));

        store.release_lease(&theirs).await.unwrap();
        assert!(!take(&store, &theirs).await, "only the holder can release {lease:?}");
        store.release_lease(&ours).await.unwrap();
        assert!(take(&store, &theirs).await, "{lease:?} was released");
        assert_eq!(store.lease_holder(&lease).await.unwrap().as_ref(), Some(&second));
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn two_pieces_of_work_of_one_replica_exclude_each_other_by_lease(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let replica = replica(&store, "here").await;
    let [_, _, slot, image] = every_kind();
    for lease in [slot, image] {
        let [first, second] = [(); 2].map(|()| LeaseClaim::new(lease.clone(), &replica));
        assert!(take(&store, &first).await);
        assert!(!take(&store, &second).await, "other work holds {lease:?}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn leases_of_other_slots_and_images_are_free(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let replica = replica(&store, "here").await;
    let image = |name: &str, host: &str| Lease::Image(Image { name: name.to_owned(), host: host.to_owned() });
    let slot = |number| SlotName::new("meet", number);
    let leases = [
        Lease::Slot(slot(1)),
        Lease::Slot(slot(2)),
        Lease::Removal(slot(1)),
        Lease::Removal(slot(2)),
        image("bot:1", "here"),
        image("bot:2", "here"),
        image("bot:1", "there"),
    ];
    for lease in leases {
        assert!(take(&store, &LeaseClaim::new(lease.clone(), &replica)).await, "{lease:?}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_lease_that_is_not_renewed_ends_by_the_clock_of_the_database(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let (first, second) = (replica(&store, "first").await, replica(&store, "second").await);
    for lease in every_kind() {
        let short = LeaseClaim { time: Duration::from_millis(1), ..LeaseClaim::new(lease.clone(), &first) };
        let long = LeaseClaim { time: LONG, ..short.clone() };
        let theirs = LeaseClaim::new(lease.clone(), &second);
        assert!(take(&store, &long).await);
        assert!(store.renew_lease(&short).await.unwrap(), "a renewal counts from now");
        until("it has expired", async || store.lease_holder(&lease).await.unwrap().is_none()).await;
        assert!(!store.renew_lease(&long).await.unwrap(), "a lease that has ended cannot be renewed: {lease:?}");
        assert!(take(&store, &theirs).await, "{lease:?} is free");
        assert!(!store.renew_lease(&long).await.unwrap(), "another replica holds {lease:?}");
        assert!(store.renew_lease(&theirs).await.unwrap(), "the holder still has {lease:?}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_lease_ends_with_its_replica(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let (first, second) = (replica(&store, "first").await, replica(&store, "second").await);
    let claims = |replica: &Holder| every_kind().map(|lease| LeaseClaim::new(lease, replica));
    let now = Clock::System.now();

    // The holder releases the lease itself.
    for claim in claims(&first) {
        assert!(take(&store, &claim).await);
    }
    store.end_replica(first.id, now).await.unwrap();
    for claim in claims(&second) {
        assert!(take(&store, &claim).await, "the replica of {:?} has ended", claim.lease);
    }

    // The replica did not renew its lease in time, by the clock of the database.
    let third = replica(&store, "third").await;
    assert!(store.release_dead_replicas(third.id, now, true).await.unwrap().is_empty());
    for claim in claims(&third) {
        assert!(!take(&store, &claim).await, "the replica of {:?} is alive", claim.lease);
    }
    assert!(store.renew_replica(second.id, Duration::from_millis(1), None).await.unwrap().lives);
    until("it is taken for dead", async || {
        store.release_dead_replicas(third.id, now, false).await.unwrap() == [second.clone()]
    })
    .await;
    for claim in claims(&third) {
        assert!(take(&store, &claim).await, "the replica of {:?} is dead", claim.lease);
    }
}
