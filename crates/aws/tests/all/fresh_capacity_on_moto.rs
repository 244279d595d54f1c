//! Fresh capacity on moto's Auto Scaling: groups grow by exactly the missing number.

use std::time::Duration;

use aws::{Class, Fresh, RunnerPool};
use domain::{Requirements, UsageClass};

use crate::support::{World, holder, large, spot, xlarge};

/// Requests fresh capacity, and ignores whether a group had to grow for it.
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
async fn a_group_grows_by_the_number_of_waiting_slots_however_often_they_ask() {
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
async fn a_runner_that_has_started_is_not_requested_again() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    ask(&pool, "pool-a-1").await;
    ask(&pool, "pool-a-2").await;
    let machines = world.listed("large", UsageClass::OnDemand).await;
    pool.register(&machines[0], false).await.unwrap();
    // The machine is idle, and the waiting slots have not seen it yet.
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
async fn a_request_that_is_no_longer_repeated_does_not_count() {
    let world = World::with_groups(vec![large()]).await;
    let pool = world.pool().await;
    ask(&pool, "pool-a-1").await;
    world.clock.advance(Duration::from_secs(31));
    // The slot gets the machine that was meant for the other.
    ask(&pool, "pool-a-2").await;
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn a_full_group_is_skipped_and_earlier_requests_keep_their_machines() {
    let world = World::with_groups(vec![Class { max: 1, spot_max: 0, ..large() }, Class { max: 1, ..xlarge() }]).await;
    let pool = world.pool().await;
    let on_demand = |class| coming(&world, class, UsageClass::OnDemand);
    assert_eq!(ask(&pool, "pool-a-1").await, on_demand("large"));
    assert_eq!(ask(&pool, "pool-a-2").await, on_demand("xlarge"));
    let Fresh::NoCapacity { message } = ask(&pool, "pool-a-3").await else { panic!("the group can grow") };
    let expected = ["large-on-demand (its maximum is 1)", "xlarge-on-demand (its maximum is 1)"];
    assert!(expected.iter().all(|group| message.contains(group)), "{message}");
    assert_eq!(ask(&pool, "pool-a-1").await, on_demand("large"));
    assert_eq!(ask(&pool, "pool-a-2").await, on_demand("xlarge"));
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 1);
    assert_eq!(world.desired("xlarge", UsageClass::OnDemand).await, 1);
}

#[tokio::test]
async fn a_group_that_meets_the_requirements_grows() {
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
async fn missing_groups_are_reported() {
    let world = World::new(vec![large()]).await;
    let Fresh::Impossible { message } = ask(&world.pool().await, "pool-a-1").await else { panic!("the group exists") };
    assert!(message.contains("greenroom aws init"), "{message}");
}

#[tokio::test]
async fn a_request_for_some_types_of_a_class_gets_a_machine_of_one_of_them() {
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
    assert_eq!(second, Fresh::Coming { group: own.clone(), asked: false }, "it was requested before");
    assert_eq!(world.desired("large", UsageClass::OnDemand).await, 0);
    // moto always starts the type of the launch template, so the test reads the types in the group's settings.
    assert_eq!(world.types_of(&own).await, ["m6i.large"]);
    // All groups of a class together stay within the maximum of the class.
    let fresh = pool.ask_for_fresh(Some(&types("m6i.* c*")), "pool-a-2").await.unwrap();
    assert_eq!(fresh, coming(&world, "large", UsageClass::OnDemand));
    let at_maximum = pool.ask_for_fresh(Some(&types("c6i.*")), "pool-a-3").await.unwrap();
    assert!(matches!(at_maximum, Fresh::NoCapacity { .. }), "{at_maximum:?}");
}

#[tokio::test]
async fn rows_of_machines_that_are_gone_do_not_count() {
    let world = World::with_groups(vec![Class { max: 1, spot_max: 0, ..large() }]).await;
    let pool = world.pool().await;
    let machines = world.machines("large", UsageClass::OnDemand, 1).await;
    pool.register(&machines[0], false).await.unwrap();
    pool.claim_unchecked(None, &holder("pool-a-1")).await.unwrap().unwrap();
    assert!(matches!(ask(&pool, "pool-a-2").await, Fresh::NoCapacity { .. }));
    // AWS takes the machine away. Its row stays for a while.
    world.take_away(&machines[0]).await;
    assert_eq!(ask(&pool, "pool-a-2").await, coming(&world, "large", UsageClass::OnDemand));
}
