//! Deadlines of silent bots: each by its own clock, and none for a bot that sends heartbeats.

use std::time::Duration;

use domain::lifecycle::{Overdue, Trigger};
use domain::{Deadlines, Status};
use greenroom::clock::Clock;
use greenroom::keepers::Keeper;
use greenroom::keepers::leader::Leadership;
use greenroom::keepers::listening::ListeningWindow;
use greenroom::keepers::sweeper::Sweeper;
use greenroom::store::{Holder, Store};
use rstest::rstest;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, CoreFixture, PrivatePostgres, until};

fn failed(reason: &str) -> (Status, Option<String>) {
    (Status::Failed, Some(reason.to_owned()))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_does_not_join_fails_after_ten_minutes_including_the_lobby(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (bot, caller) = core.started(1).await;
    assert_eq!(core.after(300).await, 0);
    // The lobby does not restart the deadline.
    core.lifecycle.status(caller, Trigger::AwaitingAdmission { reason: None }).await.unwrap();
    assert_eq!(core.after(299).await, 0);
    assert_eq!(core.after(1).await, 1);
    assert_eq!(core.stands(bot).await, failed("no_join"));
    assert_eq!(core.after(9_999).await, 0, "an end is final");
    let events = core.store.events_of_bot(bot).await.unwrap();
    assert_eq!(events.last().unwrap().actor, greenroom::store::Actor::Keeper);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_in_the_meeting_lives_as_long_as_it_sends_heartbeats(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (bot, caller) = core.started(1).await;
    core.lifecycle.joined(caller).await.unwrap();
    for _ in 0..30 {
        assert_eq!(core.after(60).await, 0, "the deadline of the lobby does not apply in the meeting");
        // The heartbeat is in memory and not written yet, but it counts.
        core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    }
    assert_eq!(core.after(119).await, 0);
    assert_eq!(core.after(4).await, 1);
    assert_eq!(core.stands(bot).await, failed("heartbeat_lost"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_needs_help_in_the_meeting_has_ten_minutes_from_then(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (bot, caller) = core.started(1).await;
    core.lifecycle.joined(caller).await.unwrap();
    for _ in 0..20 {
        core.after(60).await;
        core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    }
    core.lifecycle.status(caller, Trigger::NeedsHelp { reason: None }).await.unwrap();
    assert_eq!(core.after(599).await, 0);
    assert_eq!(core.after(1).await, 1);
    assert_eq!(core.stands(bot).await, failed("no_join"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_does_not_leave_counts_as_gone_after_the_grace_period(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (bot, _) = core.started(1).await;
    core.lifecycle.stop(core.user, bot).await.unwrap();
    assert_eq!(core.after(89).await, 0);
    assert_eq!(core.after(1).await, 1);
    assert_eq!(core.stands(bot).await, (Status::Completed, Some("stopped".to_owned())));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_sends_a_heartbeat_after_the_sweepers_check_lives(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (bot, caller) = core.started(1).await;
    core.clock.advance(Duration::from_secs(700));
    let since = core.clock.now().saturating_sub(Duration::from_secs(600)).unwrap();
    assert_eq!(core.store.overdue(Overdue::NoJoin, since, None).await.unwrap(), [(core.user, bot)]);
    core.lifecycle.joined(caller).await.unwrap();
    assert!(!core.lifecycle.end_overdue(bot, Overdue::NoJoin, since).await.unwrap());
    assert_eq!(core.stands(bot).await.0, Status::Active);
    // The same with a heartbeat.
    core.clock.advance(Duration::from_secs(200));
    let since = core.clock.now().saturating_sub(Duration::from_secs(120)).unwrap();
    assert_eq!(core.store.overdue(Overdue::HeartbeatLost, since, None).await.unwrap(), [(core.user, bot)]);
    core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    assert!(!core.lifecycle.end_overdue(bot, Overdue::HeartbeatLost, since).await.unwrap());
    assert_eq!(core.stands(bot).await.0, Status::Active);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_is_assigned_again_has_the_deadline_of_a_start(#[case] backend: Backend) {
    let core = CoreFixture::new(backend).await;
    let (active, caller) = core.started(1).await;
    core.lifecycle.joined(caller).await.unwrap();
    for _ in 0..10 {
        core.after(60).await;
        core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    }
    let (starting, _) = core.started(2).await;
    for bot in [active, starting] {
        core.lifecycle.assign(bot, None).await.unwrap();
    }
    assert_eq!(core.after(299).await, 0, "its earlier silence does not count");
    assert_eq!(core.after(1).await, 2);
    for bot in [active, starting] {
        assert_eq!(core.stands(bot).await, failed("no_start"));
    }
}

/// A leader without its database receives no heartbeats, whichever replica sweeps afterwards.
#[tokio::test]
async fn time_without_the_database_does_not_count_as_silence_on_postgres() {
    let mut database = PrivatePostgres::start().await;
    let store = Store::open(&database.url()).await.unwrap();
    let listening = ListeningWindow::new(Clock::System);
    let replica = Holder { id: uuid::Uuid::new_v4(), name: "here".to_owned() };
    let ending = CancellationToken::new();
    let leadership = Leadership::new(store, replica);
    let campaign =
        tokio::spawn(leadership.clone().keep_leading(watch::channel(None).1, listening.clone(), ending.clone()));
    leadership.until_leading().await;
    until("it has been listening", async || listening.unbroken() > Duration::from_millis(1_500)).await;
    database.stop().await;
    until("it knows that it receives nothing", async || listening.unbroken() < Duration::from_secs(1)).await;
    until("it does not lead", async || !leadership.is_held()).await;
    assert!(
        listening.unbroken() < Duration::from_secs(7),
        "it received nothing all the time: {:?}",
        listening.unbroken()
    );
    database.start_again().await;
    leadership.until_leading().await;
    assert!(listening.unbroken() < Duration::from_secs(10), "{:?}", listening.unbroken());
    ending.cancel();
    campaign.await.unwrap();
}

#[tokio::test]
async fn silence_counts_only_while_a_server_listens() {
    let core = CoreFixture::new(Backend::Sqlite).await;
    let (bot, caller) = core.started(1).await;
    core.lifecycle.joined(caller).await.unwrap();
    // The server is stopped for an hour. Its successor gives the bot time to send a heartbeat.
    core.clock.advance(Duration::from_secs(3_600));
    let listening = ListeningWindow::new(core.clock.clone());
    let successor = Sweeper::new(&core.context, core.lifecycle.clone(), Deadlines::default(), listening.clone());
    let swept = async || successor.run().await.unwrap().counts["failed"];
    let listen = |seconds| {
        for _ in 0..seconds {
            core.clock.advance(Duration::from_secs(1));
            listening.tick();
        }
    };
    assert_eq!(swept().await, 0);
    listen(60);
    core.lifecycle.heartbeat(caller, &[]).await.unwrap();
    for _ in 0..2 {
        listen(60);
        assert_eq!(swept().await, 0);
    }
    // The server itself is suspended for an hour, like a stopped process.
    core.clock.advance(Duration::from_secs(3_600));
    listening.tick();
    assert_eq!(swept().await, 0);
    for _ in 0..2 {
        listen(62);
        swept().await;
    }
    assert_eq!(core.stands(bot).await, failed("heartbeat_lost"));
}
