//! What every provider promises, whatever slots are made of there: each call can be made twice, what is gone is gone, and
//! what it has is found again by a process that was not there when it was made.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::SlotName;
use greenroom::providers::process::ProcessProvider;
use greenroom::providers::{Found, Provider, Spec};
use rstest::rstest;

use crate::support::until;

/// A provider, and how to have another one for the same slots, as after a crash.
struct Kind {
    provider: Arc<dyn Provider>,
    again: Box<dyn Fn() -> Arc<dyn Provider>>,
    /// The same provider for another installation.
    stranger: Arc<dyn Provider>,
    _folder: tempfile::TempDir,
}

/// Slots that are processes, each of which runs until it is ended.
fn process() -> Kind {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let installation = uuid::Uuid::new_v4().to_string();
    let made = move |installation: &str| -> Arc<dyn Provider> {
        let command = ["sh", "-c", "sleep 1000 & wait"].map(str::to_owned).to_vec();
        Arc::new(ProcessProvider::new(path.clone(), command, installation.to_owned()))
    };
    let (provider, stranger) = (made(&installation), made("another"));
    Kind { provider, stranger, again: Box::new(move || made(&installation)), _folder: folder }
}

fn slot(number: i64) -> SlotName {
    SlotName::new("contract", number)
}

fn spec(number: i64, connection: &str) -> Spec {
    let environment = BTreeMap::from([("GREENROOM_SLOT".to_owned(), slot(number).to_string())]);
    Spec { slot: slot(number), generation: 1, connection: Some(connection.to_owned()), environment, fresh: true }
}

fn found(number: i64, running: bool) -> Found {
    Found { slot: slot(number), running }
}

async fn end(kind: &Kind) {
    for found in kind.provider.list().await.unwrap() {
        kind.provider.delete(&found.slot).await.unwrap();
    }
    assert_eq!(kind.provider.list().await.unwrap(), []);
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn what_was_never_made_is_not_there_and_can_be_stopped_and_deleted(#[case] kind: Kind) {
    assert_eq!(kind.provider.list().await.unwrap(), []);
    assert_eq!(kind.provider.inspect(&slot(1)).await.unwrap(), None);
    kind.provider.stop(&slot(1), true).await.unwrap();
    kind.provider.delete(&slot(1)).await.unwrap();
    kind.provider.ping().await.unwrap();
    end(&kind).await;
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn a_start_that_is_repeated_leaves_what_it_started_running(#[case] kind: Kind) {
    let first = kind.provider.start(&spec(1, "a")).await.unwrap();
    until("it runs", async || kind.provider.inspect(&slot(1)).await.unwrap() == Some(found(1, true))).await;
    // Its answer was lost, and another process asks.
    assert_eq!((kind.again)().start(&spec(1, "a")).await.unwrap(), first);
    assert_eq!(kind.provider.list().await.unwrap(), [found(1, true)]);
    end(&kind).await;
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn a_start_for_another_connection_replaces_what_runs(#[case] kind: Kind) {
    kind.provider.start(&spec(1, "a")).await.unwrap();
    kind.provider.start(&spec(1, "b")).await.unwrap();
    until("one runs", async || kind.provider.list().await.unwrap() == [found(1, true)]).await;
    end(&kind).await;
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn a_slot_that_is_stopped_is_there_and_can_be_stopped_and_started_again(#[case] kind: Kind) {
    kind.provider.start(&spec(1, "a")).await.unwrap();
    for _ in 0..2 {
        kind.provider.stop(&slot(1), true).await.unwrap();
        assert_eq!(kind.provider.inspect(&slot(1)).await.unwrap(), Some(found(1, false)));
    }
    kind.provider.start(&spec(1, "b")).await.unwrap();
    until("it runs", async || kind.provider.inspect(&slot(1)).await.unwrap() == Some(found(1, true))).await;
    end(&kind).await;
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn a_slot_that_is_deleted_is_gone_also_while_it_ran(#[case] kind: Kind) {
    kind.provider.start(&spec(1, "a")).await.unwrap();
    kind.provider.start(&spec(2, "b")).await.unwrap();
    for _ in 0..2 {
        kind.provider.delete(&slot(1)).await.unwrap();
        assert_eq!(kind.provider.inspect(&slot(1)).await.unwrap(), None);
    }
    assert_eq!(kind.provider.list().await.unwrap(), [found(2, true)]);
    end(&kind).await;
}

#[rstest]
#[case::process(process())]
#[tokio::test]
async fn what_was_made_before_a_crash_is_listed_after_it_and_nothing_of_anyone_else(#[case] kind: Kind) {
    kind.provider.start(&spec(1, "a")).await.unwrap();
    kind.provider.start(&spec(2, "b")).await.unwrap();
    kind.provider.stop(&slot(2), true).await.unwrap();
    let after = (kind.again)();
    until("all of it is listed", async || after.list().await.unwrap() == [found(1, true), found(2, false)]).await;
    assert_eq!(kind.stranger.list().await.unwrap(), []);
    assert_eq!(kind.stranger.inspect(&slot(1)).await.unwrap(), None);
    after.stop(&slot(1), true).await.unwrap();
    assert_eq!(kind.provider.inspect(&slot(1)).await.unwrap(), Some(found(1, false)));
    end(&kind).await;
}
