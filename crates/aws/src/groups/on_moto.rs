//! Tests of the groups on moto.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use super::*;
use crate::clients::Clients;
use crate::moto;

/// A pool with groups, and the client for it.
struct Pool {
    settings: Settings,
    groups: Groups,
}

impl Pool {
    async fn new(classes: usize) -> Self {
        let class = |number| moto::class(&format!("class-{number}"), 1, &["c6i.large"], 5, 5);
        let mut settings = moto::settings(vec![class(1)]);
        moto::make(&settings).await;
        // The other classes have no groups.
        settings.classes.extend((2..=classes).map(class));
        let groups = Groups::new(Clients::connect(&settings).await.autoscaling, Arc::new(settings.clone()));
        Self { settings, groups }
    }

    fn name(&self, usage: UsageClass) -> String {
        self.settings.group("class-1", usage)
    }

    async fn group(&self, usage: UsageClass) -> Group {
        let all = self.groups.all().await.unwrap();
        all.into_iter().find(|group| group.name == self.name(usage)).unwrap()
    }
}

#[tokio::test]
async fn only_groups_of_the_pool_that_are_there_are_listed_however_many_there_may_be() {
    let _another = Pool::new(1).await;
    let pool = Pool::new(2 * NAMES_AT_ONCE).await;
    let listed: HashSet<String> = pool.groups.all().await.unwrap().into_iter().map(|group| group.name).collect();
    assert_eq!(listed, HashSet::from(UsageClass::ALL.map(|usage| pool.name(usage))));
}

#[tokio::test]
async fn a_pool_without_classes_has_no_groups() {
    let _another = Pool::new(1).await;
    let mut pool = Pool::new(1).await;
    pool.settings.classes.clear();
    let groups = Groups::new(pool.groups.client.clone(), Arc::new(pool.settings));
    assert_eq!(groups.all().await.unwrap(), []);
}

#[tokio::test]
async fn a_group_grows_and_its_machines_are_found_by_their_ids() {
    let pool = Pool::new(1).await;
    pool.groups.grow(&pool.name(UsageClass::Spot), 3).await.unwrap();
    let group = pool.group(UsageClass::Spot).await;
    assert_eq!((group.desired, group.max, group.instances.len()), (3, 5, 3));
    assert_eq!(pool.group(UsageClass::OnDemand).await.instances, []);
    for instance in &group.instances {
        assert_eq!((instance.instance_type.as_str(), instance.going), ("c6i.large", false));
        assert_eq!(pool.groups.find(&instance.id).await.unwrap().as_ref(), Some(instance));
    }
    assert_eq!(pool.groups.find("i-0123456789abcdef0").await.unwrap(), None);
}

#[tokio::test]
async fn a_machine_that_is_ended_takes_its_place_with_it() {
    let pool = Pool::new(1).await;
    pool.groups.grow(&pool.name(UsageClass::OnDemand), 3).await.unwrap();
    let gone = pool.group(UsageClass::OnDemand).await.instances.remove(0);
    // Ends the machine twice, because another process may do the same.
    let (one, two) = tokio::join!(pool.groups.terminate(&gone.id, None), pool.groups.terminate(&gone.id, None));
    one.and(two).unwrap();
    pool.groups.terminate(&gone.id, None).await.unwrap();
    let group = pool.group(UsageClass::OnDemand).await;
    assert_eq!((group.desired, group.instances.len()), (2, 2));
    assert!(group.instances.iter().all(|instance| instance.id != gone.id));
}

#[tokio::test]
async fn the_machines_of_another_pool_are_neither_found_nor_ended() {
    let (pool, another) = (Pool::new(1).await, Pool::new(1).await);
    another.groups.grow(&another.name(UsageClass::Spot), 1).await.unwrap();
    let theirs = another.group(UsageClass::Spot).await.instances.remove(0);
    assert_eq!(pool.groups.find(&theirs.id).await.unwrap(), None);
    pool.groups.terminate(&theirs.id, None).await.unwrap();
    assert_eq!(another.groups.find(&theirs.id).await.unwrap(), Some(theirs));
}

#[tokio::test]
async fn a_group_that_is_not_there_cannot_grow() {
    let pool = Pool::new(2).await;
    let error = pool.groups.grow(&pool.settings.group("class-2", UsageClass::Spot), 1).await.unwrap_err();
    assert!(error.to_string().starts_with("SetDesiredCapacity: "), "{error}");
}
