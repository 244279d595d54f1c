//! Deadlines of bots that fell silent: each by its own clock, and none for a bot that speaks.

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
use tokio_util::sync::CancellationToken;

use crate::support::{Backend, House, PrivatePostgres, until};

fn failed(reason: &str) -> (Status, Option<String>) {
    (Status::Failed, Some(reason.to_owned()))
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_does_not_come_in_fails_after_ten_minutes_in_the_lobby_included(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (bot, voice) = house.started(1).await;
    assert_eq!(house.after(300).await, 0);
    // The lobby does not start the clock anew.
    house.lifecycle.status(voice, Trigger::AwaitingAdmission { reason: None }).await.unwrap();
    assert_eq!(house.after(299).await, 0);
    assert_eq!(house.after(1).await, 1);
    assert_eq!(house.stands(bot).await, failed("no_join"));
    assert_eq!(house.after(9_999).await, 0, "an end is final");
    let told = house.store.events_of_bot(bot).await.unwrap();
    assert_eq!(told.last().unwrap().actor, greenroom::store::Actor::Keeper);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_in_the_meeting_lives_as_long_as_it_gives_heartbeats(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (bot, voice) = house.started(1).await;
    house.lifecycle.joined(voice).await.unwrap();
    for _ in 0..30 {
        assert_eq!(house.after(60).await, 0, "the lobby's patience is not the meeting's");
        // Only gathered, not written: it counts all the same.
        house.lifecycle.heartbeat(voice, &[]).await.unwrap();
    }
    assert_eq!(house.after(119).await, 0);
    assert_eq!(house.after(4).await, 1);
    assert_eq!(house.stands(bot).await, failed("heartbeat_lost"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_calls_for_help_in_the_meeting_has_ten_minutes_from_then(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (bot, voice) = house.started(1).await;
    house.lifecycle.joined(voice).await.unwrap();
    for _ in 0..20 {
        house.after(60).await;
        house.lifecycle.heartbeat(voice, &[]).await.unwrap();
    }
    house.lifecycle.status(voice, Trigger::NeedsHelp { reason: None }).await.unwrap();
    assert_eq!(house.after(599).await, 0);
    assert_eq!(house.after(1).await, 1);
    assert_eq!(house.stands(bot).await, failed("no_join"));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_does_not_leave_is_taken_for_gone_after_the_grace(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (bot, _) = house.started(1).await;
    house.lifecycle.stop(house.user, bot).await.unwrap();
    assert_eq!(house.after(89).await, 0);
    assert_eq!(house.after(1).await, 1);
    assert_eq!(house.stands(bot).await, (Status::Completed, Some("stopped".to_owned())));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_spoke_between_the_look_and_the_act_lives(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (bot, voice) = house.started(1).await;
    house.clock.advance(Duration::from_secs(700));
    let since = house.clock.now().saturating_sub(Duration::from_secs(600)).unwrap();
    assert_eq!(house.store.overdue(Overdue::NoJoin, since, None).await.unwrap(), [(house.user, bot)]);
    house.lifecycle.joined(voice).await.unwrap();
    assert!(!house.lifecycle.pass(bot, Overdue::NoJoin, since).await.unwrap());
    assert_eq!(house.stands(bot).await.0, Status::Active);
    // The same with a heartbeat.
    house.clock.advance(Duration::from_secs(200));
    let since = house.clock.now().saturating_sub(Duration::from_secs(120)).unwrap();
    assert_eq!(house.store.overdue(Overdue::HeartbeatLost, since, None).await.unwrap(), [(house.user, bot)]);
    house.lifecycle.heartbeat(voice, &[]).await.unwrap();
    assert!(!house.lifecycle.pass(bot, Overdue::HeartbeatLost, since).await.unwrap());
    assert_eq!(house.stands(bot).await.0, Status::Active);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_is_assigned_anew_has_the_time_of_a_start_and_no_more(#[case] backend: Backend) {
    let house = House::new(backend).await;
    let (active, voice) = house.started(1).await;
    house.lifecycle.joined(voice).await.unwrap();
    for _ in 0..10 {
        house.after(60).await;
        house.lifecycle.heartbeat(voice, &[]).await.unwrap();
    }
    let (starting, _) = house.started(2).await;
    for bot in [active, starting] {
        house.lifecycle.assign(bot).await.unwrap();
    }
    assert_eq!(house.after(299).await, 0, "what it was before is not held against it");
    assert_eq!(house.after(1).await, 2);
    for bot in [active, starting] {
        assert_eq!(house.stands(bot).await, failed("no_start"));
    }
}

/// A leader whose database is away cannot hear anyone, whoever sweeps afterwards.
#[tokio::test]
async fn a_time_without_the_database_is_not_held_against_bots_on_postgres() {
    let mut database = PrivatePostgres::start().await;
    let store = Store::open(&database.url()).await.unwrap();
    let listening = ListeningWindow::new(Clock::System);
    let replica = Holder { id: uuid::Uuid::new_v4(), name: "here".to_owned() };
    let ending = CancellationToken::new();
    let leadership = Leadership::new(store, replica);
    let campaign = tokio::spawn(leadership.clone().campaign(listening.clone(), ending.clone()));
    leadership.gained().await;
    until("it has been listening", async || listening.unbroken() > Duration::from_millis(1_500)).await;
    database.stop().await;
    until("it knows that it is deaf", async || listening.unbroken() < Duration::from_secs(1)).await;
    until("it does not lead", async || !leadership.is_held()).await;
    assert!(listening.unbroken() < Duration::from_secs(7), "it was deaf all the time: {:?}", listening.unbroken());
    database.start_again().await;
    leadership.gained().await;
    assert!(listening.unbroken() < Duration::from_secs(10), "{:?}", listening.unbroken());
    ending.cancel();
    campaign.await.unwrap();
}

#[tokio::test]
async fn silence_counts_only_while_somebody_listened() {
    let house = House::new(Backend::Sqlite).await;
    let (bot, voice) = house.started(1).await;
    house.lifecycle.joined(voice).await.unwrap();
    // The server is away for an hour; its successor gives the bot the time to be heard again.
    house.clock.advance(Duration::from_secs(3_600));
    let listening = ListeningWindow::new(house.clock.clone());
    let successor = Sweeper::new(house.lifecycle.clone(), Deadlines::default(), listening.clone());
    let swept = async || successor.run().await.unwrap().counts["failed"];
    let listen = |seconds| {
        for _ in 0..seconds {
            house.clock.advance(Duration::from_secs(1));
            listening.tick();
        }
    };
    assert_eq!(swept().await, 0);
    listen(60);
    house.lifecycle.heartbeat(voice, &[]).await.unwrap();
    for _ in 0..2 {
        listen(60);
        assert_eq!(swept().await, 0);
    }
    // It stands still for an hour itself, as a stopped process does.
    house.clock.advance(Duration::from_secs(3_600));
    listening.tick();
    assert_eq!(swept().await, 0);
    for _ in 0..2 {
        listen(62);
        swept().await;
    }
    assert_eq!(house.stands(bot).await, failed("heartbeat_lost"));
}
