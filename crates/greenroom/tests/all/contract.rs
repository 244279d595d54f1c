//! The contract of every provider. Each call can be repeated. A deleted slot is gone. A new process finds the slots of
//! an earlier one. A late or lost answer does no harm.

mod kind;

use std::time::Duration;

use greenroom::providers::ProviderError;
use rstest::rstest;

use self::kind::{Made, coolify, docker, list, nomad, process, swarm};
use crate::support::{Dialect, until};

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_was_never_created_can_be_stopped_and_deleted(#[case] kind: Made) {
    let kind = kind.await;
    assert_eq!(kind.list().await, []);
    assert_eq!(kind.inspect(1).await, None);
    kind.provider.stop(&kind.slot(1), true).await.unwrap();
    kind.provider.delete(&kind.slot(1)).await.unwrap();
    kind.provider.ping().await.unwrap();
    assert_eq!(kind.provider.last_lines(&kind.slot(1)).await.unwrap(), None);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_slot_that_is_created_twice_exists_once_and_nothing_runs_in_it(#[case] kind: Made) {
    let kind = kind.await;
    let first = kind.provider.create(&kind.waiting(1)).await.unwrap();
    assert_eq!(kind.inspect(1).await, Some(false));
    assert_eq!((kind.reopen)().create(&kind.waiting(1)).await.unwrap(), first);
    assert_eq!(kind.list().await, [kind.there(1, false)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_created_slot_can_be_started_and_a_second_create_leaves_it_running(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    kind.provider.start(&kind.waiting(1)).await.unwrap();
    kind.runs(1).await;
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    assert_eq!(kind.list().await, [kind.there(1, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_repeated_start_leaves_the_started_process_running(#[case] kind: Made) {
    let kind = kind.await;
    for spec in [kind.spec(1, "a"), kind.waiting(2)] {
        let first = kind.provider.start(&spec).await.unwrap();
        until("it runs", async || kind.provider.inspect(&spec.slot).await.unwrap().is_some_and(|it| it.running)).await;
        // The answer was lost, and another process repeats the start.
        assert_eq!((kind.reopen)().start(&spec).await.unwrap(), first);
    }
    assert_eq!(kind.list().await, [kind.there(1, true), kind.there(2, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_start_for_another_connection_replaces_the_running_process(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(1, "b")).await.unwrap();
    until("one runs", async || kind.list().await == [kind.there(1, true)]).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_stopped_slot_exists_and_can_be_stopped_and_started_again(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    for _ in 0..2 {
        kind.provider.stop(&kind.slot(1), true).await.unwrap();
        until("it is there and does not run", async || kind.inspect(1).await == Some(false)).await;
    }
    kind.provider.start(&kind.spec(1, "b")).await.unwrap();
    kind.runs(1).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_running_slot_that_is_deleted_is_gone(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(2, "b")).await.unwrap();
    kind.runs(2).await;
    for _ in 0..2 {
        kind.provider.delete(&kind.slot(1)).await.unwrap();
        assert_eq!(kind.inspect(1).await, None);
    }
    assert_eq!(kind.list().await, [kind.there(2, true)]);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn after_a_crash_the_list_has_the_slots_of_this_installation_and_no_others(#[case] kind: Made) {
    let kind = kind.await;
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.provider.start(&kind.spec(2, "b")).await.unwrap();
    kind.provider.stop(&kind.slot(2), true).await.unwrap();
    let after = (kind.reopen)();
    let expected = [kind.there(1, true), kind.there(2, false)];
    until("all slots are listed", async || list(&*after).await == expected).await;
    assert_eq!(list(&*kind.stranger).await, []);
    assert_eq!(kind.stranger.inspect(&kind.slot(1)).await.unwrap(), None);
    // A provider does not touch the slots of another installation either.
    kind.stranger.stop(&kind.slot(1), true).await.unwrap();
    kind.stranger.delete(&kind.slot(1)).await.unwrap();
    assert_eq!(kind.inspect(1).await, Some(true));
    after.stop(&kind.slot(1), true).await.unwrap();
    until("it does not run", async || kind.inspect(1).await == Some(false)).await;
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn a_start_that_is_cancelled_at_any_moment_can_be_repeated(#[case] kind: Made) {
    let kind = kind.await;
    for (number, moment) in [0, 2, 10, 40, 80, 160].into_iter().enumerate() {
        let spec = kind.spec(1, &format!("connection-{number}"));
        let patience = Duration::from_millis(moment);
        let _ = tokio::time::timeout(patience, kind.provider.start(&spec)).await;
        (kind.reopen)().start(&spec).await.unwrap();
        kind.runs(1).await;
    }
    until("there is one slot", async || kind.list().await == [kind.there(1, true)]).await;
    kind.end().await;
}

/// Repeats a call until it succeeds, as the callers of a provider do.
async fn in_the_end<T>(mut call: impl AsyncFnMut() -> Result<T, ProviderError>) -> T {
    for _ in 0..10 {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.retryable, "{error}"),
        }
    }
    panic!("the call fails however often it is retried");
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn late_answers_change_nothing(#[case] kind: Made) {
    let kind = kind.await;
    kind.trouble.delay(4);
    kind.provider.create(&kind.waiting(1)).await.unwrap();
    kind.provider.start(&kind.spec(1, "a")).await.unwrap();
    kind.runs(1).await;
    kind.trouble.delay(2);
    kind.provider.stop(&kind.slot(1), true).await.unwrap();
    until("it does not run", async || kind.inspect(1).await == Some(false)).await;
    kind.trouble.delay(1);
    kind.provider.delete(&kind.slot(1)).await.unwrap();
    assert_eq!(kind.inspect(1).await, None);
    kind.end().await;
}

#[rstest]
#[case::process(process())]
#[case::docker(docker())]
#[case::swarm(swarm())]
#[case::nomad(nomad())]
#[case::coolify(coolify(Dialect::Posts))]
#[case::coolify_before_4_2(coolify(Dialect::Gets))]
#[tokio::test]
async fn after_a_lost_answer_a_retry_succeeds(#[case] kind: Made) {
    let kind = kind.await;
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.create(&kind.waiting(1)).await).await;
    assert_eq!(kind.list().await, [kind.there(1, false)]);
    for lost in 1..=3 {
        kind.trouble.lose(lost);
        let spec = kind.spec(1, &format!("connection-{lost}"));
        in_the_end(async || kind.provider.start(&spec).await).await;
        kind.runs(1).await;
        assert_eq!(kind.list().await, [kind.there(1, true)]);
    }
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.stop(&kind.slot(1), true).await).await;
    until("it does not run", async || kind.inspect(1).await == Some(false)).await;
    kind.trouble.lose(1);
    in_the_end(async || kind.provider.delete(&kind.slot(1)).await).await;
    assert_eq!(kind.inspect(1).await, None);
    kind.end().await;
}
