//! Fresh capacity on moto's Auto Scaling: groups grow by what is missing, and by no more.

use std::time::Duration;

use aws::{Class, Fresh, RunnerPool};
use domain::{Requirements, UsageClass};

use crate::support::{World, holder, large, spot, xlarge};

/// Asks, without regard to whether a group had to grow for it.
async fn ask(pool: &RunnerPool, slot: &str) -> Fresh {
    asked_for(pool.ask_for_fresh(None, slot).await.unwrap())
}

fn asked_for(fresh: Fresh) -> Fresh {
    match fresh {
        Fresh::Coming { group, .. } => Fresh::Coming { group, asked: true },
        other => other,
    }
}

fn coming(world: &World, class: &str, usage_class: UsageClass) -> Fresh {
    Fresh::Coming { group: world.settings.group(class, usage_class), asked: true }
}

#[tokio::test]
async fn a_group_grows_by_as_many_as_wait_however_often_they_ask() {
    let world = World::with_groups(vec![large()]).await;
    let pools = [world.pool().await, world.pool().await];
    for _ in 0..2 {
        for number in 0..3 {
            let fresh = ask(&pools[number % 2], &format!("pool-a-{number}")).await;
            assert_eq!(fresh, coming(&world, "large", UsageClass::OnDemand));
        }
    }
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 3);
    assert_eq!(world.desired("large", UsageClass::Spot).await, 0);
}

#[tokio::test]
async fn a_runner_that_has_come_is_not_asked_for_again() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    ask(&pool, "pool-a-1").await;
    ask(&pool, "pool-a-2").await;
    let machines = world.listed("large", UsageClass::OnDemand).await;
    pool.register(&machines[0], false).await.unwrap();
    // It is idle, and whoever waits has not seen it yet.
    ask(&pool, "pool-a-2").await;
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 2);
    pool.claim_unchecked(None, &holder("pool-a-1")).await.unwrap().unwrap();
    pool.forget_demand("pool-a-1").await.unwrap();
    ask(&pool, "pool-a-2").await;
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 2);
    ask(&pool, "pool-a-3").await;
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 3);
}

#[tokio::test]
async fn who_no_longer_asks_is_not_counted() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    ask(&pool, "pool-a-1").await;
    world.clock.advance(Duration::from_secs(31));
    // The machine that was meant for it will do.
    ask(&pool, "pool-a-2").await;
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn a_group_that_is_full_is_passed_over_and_who_came_first_keeps_its_place() {
    let world = World::with_groups(vec![Class { max: 1, spot_max: 0, ..large() }, Class { max: 1, ..xlarge() }]).await;
    let pool = world.pool().await;
    let on_demand = |class| coming(&world, class, UsageClass::OnDemand);
    assert_eq!(ask(&pool, "pool-a-1").await, on_demand("large"));
    assert_eq!(ask(&pool, "pool-a-2").await, on_demand("xlarge"));
    let Fresh::NoCapacity { message } = ask(&pool, "pool-a-3").await else { panic!("there is room") };
    assert!(message.contains("large-on-demand (1)") && message.contains("xlarge-on-demand (1)"), "{message}");
    assert_eq!(ask(&pool, "pool-a-1").await, on_demand("large"));
    assert_eq!(ask(&pool, "pool-a-2").await, on_demand("xlarge"));
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
    assert_eq!(world.desired("xlarge", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn the_group_has_what_is_asked_for() {
    let world = World::with_groups(vec![large(), xlarge()]).await;
    let pool = world.pool().await;
    let fresh = pool.ask_for_fresh(Some(&spot()), "pool-a-1").await.unwrap();
    assert_eq!(fresh, coming(&world, "large", UsageClass::Spot));
    let big = Requirements { cpu: Some(3), ..Requirements::default() };
    let fresh = pool.ask_for_fresh(Some(&big), "pool-a-2").await.unwrap();
    assert_eq!(fresh, coming(&world, "xlarge", UsageClass::OnDemand));
    let too_big = Requirements { cpu: Some(5), ..Requirements::default() };
    let impossible = pool.ask_for_fresh(Some(&too_big), "pool-a-3").await.unwrap();
    assert!(matches!(impossible, Fresh::Impossible { .. }), "{impossible:?}");
}

#[tokio::test]
async fn groups_that_were_never_made_are_told() {
    let world = World::new(vec![large()]).await;
    let Fresh::Impossible { message } = ask(&world.pool().await, "pool-a-1").await else { panic!("there is a group") };
    assert!(message.contains("greenroom aws init"), "{message}");
}

#[tokio::test]
async fn who_allows_only_some_types_of_a_class_gets_a_machine_of_one_of_them() {
    let class = Class { instance_types: ["c6i.large", "m6i.large"].map(str::to_owned).to_vec(), max: 2, ..large() };
    let world = World::with_groups(vec![class]).await;
    let pool = world.pool().await;
    let types = |patterns: &str| Requirements {
        allowed_instance_types: Some(patterns.to_owned().try_into().unwrap()),
        ..Requirements::default()
    };
    let own = world.settings.group_of_type("large", UsageClass::OnDemand, "m6i.large");
    let fresh = pool.ask_for_fresh(Some(&types("m6i.*")), "pool-a-1").await.unwrap();
    assert_eq!(fresh, Fresh::Coming { group: own.clone(), asked: true });
    let second = pool.ask_for_fresh(Some(&types("m6i.*")), "pool-a-1").await.unwrap();
    assert_eq!(second, Fresh::Coming { group: own.clone(), asked: false }, "it was asked for before");
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 0);
    // moto starts what the launch template says, whatever the group wants: what the group wants is looked at.
    assert_eq!(world.types_of(&own).await, ["m6i.large"]);
    // All groups of a class together are no larger than the class may be.
    let fresh = pool.ask_for_fresh(Some(&types("m6i.* c*")), "pool-a-2").await.unwrap();
    assert_eq!(fresh, coming(&world, "large", UsageClass::OnDemand));
    let at_maximum = pool.ask_for_fresh(Some(&types("c6i.*")), "pool-a-3").await.unwrap();
    assert!(matches!(at_maximum, Fresh::NoCapacity { .. }), "{at_maximum:?}");
}

#[tokio::test]
async fn rows_of_machines_that_are_gone_take_nobodys_room() {
    let world = World::with_groups(vec![Class { max: 1, spot_max: 0, ..large() }]).await;
    let pool = world.pool().await;
    let machines = world.machines("large", UsageClass::OnDemand, 1).await;
    pool.register(&machines[0], false).await.unwrap();
    pool.claim_unchecked(None, &holder("pool-a-1")).await.unwrap().unwrap();
    assert!(matches!(ask(&pool, "pool-a-2").await, Fresh::NoCapacity { .. }));
    // AWS takes it away; its row is there for a while.
    world.take_away(&machines[0]).await;
    assert_eq!(ask(&pool, "pool-a-2").await, coming(&world, "large", UsageClass::OnDemand));
}
