//! The keeper `stats` counts every event once, by minute and by hour, whatever happens to it and to its database.

use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::event::{Actor, Kind};
use domain::stats::Figures;
use domain::{BotId, EventId, SlotStatus, UserId};
use greenroom::clock::Clock;
use greenroom::context::Context;
use greenroom::keepers::Keeper;
use greenroom::keepers::stats::StatsKeeper;
use greenroom::providers::ProviderError;
use greenroom::random::Random;
use greenroom::store::{NewEvent, NewFigures, PoolRow, Resolution, Store};
use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;
use uuid::Uuid;

use crate::support::{
    Backend, Database, DeploymentFixture, Fake, Process, Reader, configure, found, meet_link, pool, process_pool,
    until, waits,
};

/// A time that is not at the beginning of its minute.
const NOW: &str = "2026-11-17T10:20:30Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn keeper(store: &Store, clock: &Clock) -> StatsKeeper {
    let context = Context::new(store.clone(), clock.clone(), Random::System);
    StatsKeeper::new(&context, Some(Duration::from_hours(72)))
}

/// Runs a keeper once, and returns how many events it counted.
async fn events_counted(keeper: &StatsKeeper) -> u64 {
    keeper.run().await.unwrap().counts["events"]
}

/// All figures of a pool, with the times that they are about.
async fn rows(store: &Store, resolution: Resolution, pool: &str) -> Vec<(String, Figures)> {
    let ever = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
    let rows = store.figures(resolution, pool, ever, 10_000).await.unwrap();
    rows.into_iter().map(|(at, figures)| (at.to_string(), figures)).collect()
}

/// The sum of all figures of a pool. The minutes and the hours must have the same.
async fn sum(store: &Store, pool: &str) -> Figures {
    let mut sums = [Figures::default(), Figures::default()];
    for (sum, resolution) in sums.iter_mut().zip(Resolution::ALL) {
        for (_, figures) in rows(store, resolution, pool).await {
            sum.add(&figures);
        }
    }
    let [minutes, hours] = sums;
    assert_eq!(minutes, hours, "the hours are the sum of their minutes");
    hours
}

/// The sum of all hours of a pool, while a server may write.
async fn hours(store: &Store, pool: &str) -> Figures {
    let mut sum = Figures::default();
    for (_, figures) in rows(store, Resolution::Hour, pool).await {
        sum.add(&figures);
    }
    sum
}

fn pairs<const N: usize>(pairs: [(&str, u64); N]) -> domain::stats::Counts {
    pairs.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

async fn requested(store: &Store, at: &str) {
    let mut tx = store.begin().await.unwrap();
    let event = NewEvent {
        bot_id: BotId(Uuid::nil()),
        user_id: UserId(Uuid::nil()),
        kind: Kind::Created,
        from: None,
        to: None,
        reason: None,
        actor: Actor::User,
        start_kind: None,
    };
    tx.record(&event, time(at)).await.unwrap();
    tx.commit().await.unwrap();
}

/// The same in a transaction of another program, which stays open however slow the test is.
async fn begun(database: &Database) -> Reader {
    let mut program = database.reader().await;
    let event = "INSERT INTO events (bot_id, user_id, at, kind, actor)
                 VALUES ('00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000',
                         '2026-11-17T10:20:30Z', 'created', 'user');";
    program.execute(format!("BEGIN; {event}")).await;
    program
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn requests_starts_waits_and_ends_are_counted_for_the_pool_and_for_all(#[case] backend: Backend) {
    let fixture = DeploymentFixture::new(backend, [pool("meet"), PoolRow { max_slots: 0, ..pool("other") }]).await;
    let core = &fixture.core;
    let first = core.reserved(1).await;
    fixture.lives(first).await;
    fixture.slot_is("pool-meet-001", SlotStatus::Idle).await;
    let second = core.reserved(2).await;
    fixture.runs(second).await;
    let third = core.reserved(3).await;
    assert_eq!(fixture.queue().await, [third]);
    core.clock.advance(Duration::from_secs(90));
    fixture.lives(second).await;
    fixture.runs(third).await;
    // It is stopped while it waits for a slot.
    let fourth = core.reserved(4).await;
    core.lifecycle.stop(core.user, fourth).await.unwrap();

    assert_eq!(fixture.keep("stats").await.counts["events"], 8);
    let figures = sum(&core.store, "meet").await;
    assert_eq!(figures.requests, 4);
    assert_eq!(figures.starts, pairs([("cold", 1), ("stopped", 2)]));
    assert_eq!((figures.waits.count(), figures.waits.percentile(50)), (3, Some(0)));
    let longest = figures.waits.percentile(100).unwrap();
    assert!((80_000..=100_000).contains(&longest), "90 s, as exact as a bucket: {longest}");
    assert_eq!(figures.ends_by_reason, pairs([("finished", 2), ("stopped", 1)]));
    assert_eq!(figures.ends_by_fault, pairs([("none", 3)]));
    assert_eq!((figures.samples, figures.slots.clone()), (1, pairs([("busy", 1)])));
    assert_eq!(sum(&core.store, "").await, figures, "there are no other bots and slots");
    assert_eq!(sum(&core.store, "other").await, Figures { samples: 1, ..Figures::default() });

    let report = fixture.keep("stats").await;
    assert!(report.counts.values().all(|count| *count == 0), "nothing counts twice: {report:?}");
    assert_eq!(sum(&core.store, "meet").await, figures);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_start_is_hot_only_if_an_agent_waits_in_the_slot(#[case] backend: Backend) {
    let hot = PoolRow { hot: true, min_idle: 1, ..pool("meet") };
    let fixture = DeploymentFixture::new(backend, [hot]).await;
    until("the slot is started", async || fixture.fake.starts().len() == 1).await;
    let slot = fixture.slot("pool-meet-001").await.unwrap();
    fixture.core.reserved(0).await;
    fixture.core.placement.report(slot.name.clone(), waits(&slot)).await.unwrap();
    fixture.keep("stats").await;
    assert_eq!(sum(&fixture.core.store, "meet").await.starts, pairs([("hot", 1)]));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_bot_that_went_back_to_the_queue_started_once(#[case] backend: Backend) {
    let fake = Fake::default().failing_starts([ProviderError::no_capacity("all of large are taken")]);
    let runners = PoolRow { provider: "ec2".to_owned(), ..pool("meet") };
    let fixture = DeploymentFixture::with(backend, [runners], 1, fake).await;
    let bot = fixture.core.reserved(1).await;
    until("it is back in the queue", async || fixture.queue().await == [bot]).await;
    fixture.core.placement.retry_waiting(Default::default());
    fixture.runs(bot).await;
    fixture.keep("stats").await;
    let figures = sum(&fixture.core.store, "meet").await;
    assert_eq!((figures.requests, figures.waits.count()), (1, 1));
    assert_eq!(figures.starts, pairs([("cold", 1)]));
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_event_counts_in_the_minute_and_hour_of_its_time_however_late_the_keeper_runs(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let clock = Clock::manual(time(NOW));
    let stats = keeper(&store, &clock);
    for at in ["2026-11-17T08:59:59.999999Z", "2026-11-17T10:20:00Z", "2026-11-17T09:00:00Z", "2026-11-17T09:59:00Z"] {
        requested(&store, at).await;
    }
    assert_eq!(events_counted(&stats).await, 4);
    // A replica with a slow clock writes into a minute that was counted before.
    requested(&store, "2026-11-17T09:00:59Z").await;
    assert_eq!(events_counted(&stats).await, 1);
    assert_eq!(events_counted(&stats).await, 0);
    let requests = async |resolution| {
        let rows = rows(&store, resolution, "").await.into_iter();
        rows.map(|(at, figures)| (at, figures.requests)).collect::<Vec<_>>()
    };
    let expected = |rows: &[(&str, u64)]| rows.iter().map(|(at, count)| ((*at).to_owned(), *count)).collect::<Vec<_>>();
    assert_eq!(
        requests(Resolution::Minute).await,
        expected(&[
            ("2026-11-17T08:59:00Z", 1),
            ("2026-11-17T09:00:00Z", 2),
            ("2026-11-17T09:59:00Z", 1),
            ("2026-11-17T10:20:00Z", 1)
        ])
    );
    assert_eq!(
        requests(Resolution::Hour).await,
        expected(&[("2026-11-17T08:00:00Z", 1), ("2026-11-17T09:00:00Z", 3), ("2026-11-17T10:00:00Z", 1)])
    );
    // Another process continues where this one ended.
    requested(&store, "2026-11-17T10:20:01Z").await;
    assert_eq!(events_counted(&keeper(&store, &clock)).await, 1);
    assert_eq!(sum(&store, "").await.requests, 6);
}

#[tokio::test]
async fn on_postgres_an_event_that_commits_late_is_counted_and_one_that_was_rolled_back_is_not_waited_for() {
    let database = Database::new(Backend::Postgres).await;
    let store = database.open().await;
    let stats = keeper(&store, &Clock::manual(time(NOW)));
    let (mut late, mut undone) = (begun(&database).await, begun(&database).await);
    requested(&store, NOW).await;
    for _ in 0..2 {
        assert_eq!(events_counted(&stats).await, 0, "an earlier event may still be committed");
    }
    late.execute("COMMIT;".to_owned()).await;
    undone.execute("ROLLBACK;".to_owned()).await;
    assert_eq!(events_counted(&stats).await, 2);
    let mut later = begun(&database).await;
    requested(&store, NOW).await;
    // A process that has just started knows nothing of the transactions before.
    let successor = keeper(&store, &Clock::manual(time(NOW)));
    assert_eq!(events_counted(&successor).await, 0);
    later.execute("COMMIT;".to_owned()).await;
    assert_eq!(events_counted(&successor).await, 2);
    assert_eq!(sum(&store, "").await.requests, 4);
}

/// More than the keeper reads at once, over three hours.
const MANY_EVENTS: &str = "
    WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < 5000)
    INSERT INTO events (bot_id, user_id, at, kind, to_status, reason, actor, start_kind)
    SELECT '01932f00-0000-7000-8000-000000000000', '01932f00-0000-7000-8000-000000000000',
           CASE number % 3 WHEN 0 THEN '2026-11-17T08:00:01.000000Z' WHEN 1 THEN '2026-11-17T09:00:01.000000Z'
                           ELSE '2026-11-17T10:00:01.000000Z' END::timestamptz,
           'created', 'deploying', CASE number % 2 WHEN 0 THEN 'pool-meet-001' ELSE 'pool-other-2-1000' END, 'user',
           'hot'
      FROM numbers;";

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn two_leaders_at_once_count_many_events_once(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let (store, clock) = (database.open().await, Clock::manual(time(NOW)));
    let cast = if backend == Backend::Sqlite { "" } else { "::timestamptz" };
    database.reader().await.execute(MANY_EVENTS.replace("::timestamptz", cast)).await;
    let mut runs = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let stats = keeper(&database.open().await, &clock);
        runs.spawn(async move { events_counted(&stats).await });
    }
    let mut counted: u64 = runs.join_all().await.into_iter().sum();
    let stats = keeper(&store, &clock);
    until("all are counted", async || {
        counted += events_counted(&stats).await;
        counted == 5_000
    })
    .await;
    assert_eq!(events_counted(&stats).await, 0);
    for (pool, requests) in [("", 5_000), ("meet", 2_500), ("other-2", 2_500)] {
        let figures = sum(&store, pool).await;
        assert_eq!((figures.requests, figures.starts), (requests, pairs([("hot", requests)])), "{pool}");
        assert_eq!(rows(&store, Resolution::Hour, pool).await.len(), 3, "{pool}");
    }
    assert_eq!(sum(&store, "").await.samples, 1, "one of them counted the slots");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn slots_are_counted_once_a_minute_also_after_the_clock_was_set(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    configure(&store, &pool("meet")).await;
    let clock = Clock::manual(time(NOW));
    let stats = keeper(&store, &clock);
    for _ in 0..3 {
        stats.run().await.unwrap();
    }
    clock.advance(Duration::from_secs(30));
    stats.run().await.unwrap();
    // No server runs for ten minutes. Then the clock is set back by an hour.
    clock.advance(Duration::from_mins(10));
    stats.run().await.unwrap();
    if let Clock::Manual(at) = &clock {
        at.fetch_sub(3_600_000_000, Ordering::SeqCst);
    }
    stats.run().await.unwrap();
    for name in ["", "meet"] {
        let minutes: Vec<(String, u64)> =
            rows(&store, Resolution::Minute, name).await.into_iter().map(|(at, row)| (at, row.samples)).collect();
        let expected = ["2026-11-17T09:31:00Z", "2026-11-17T10:20:00Z", "2026-11-17T10:21:00Z", "2026-11-17T10:31:00Z"];
        assert_eq!(minutes, expected.map(|at| (at.to_owned(), 1)), "{name}");
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn old_minutes_and_hours_are_deleted_and_hours_may_stay_for_ever(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let clock = Clock::manual(time(NOW));
    let times = [
        "2025-01-01T00:00:00Z",
        "2026-11-14T09:59:00Z",
        "2026-11-14T10:00:00Z",
        "2026-11-15T09:59:00Z",
        "2026-11-15T10:00:00Z",
    ];
    for at in times {
        requested(&store, at).await;
    }
    let context = Context::new(store.clone(), clock.clone(), Random::System);
    let stats = StatsKeeper::new(&context, None);
    assert_eq!(stats.run().await.unwrap().counts["pruned"], 4);
    let left = async |resolution| {
        let rows = rows(&store, resolution, "").await.into_iter();
        rows.filter(|(_, figures)| figures.requests > 0).map(|(at, _)| at).collect::<Vec<_>>()
    };
    assert_eq!(left(Resolution::Minute).await, ["2026-11-15T10:00:00Z"], "48 hours, from the beginning of the hour");
    assert_eq!(left(Resolution::Hour).await.len(), 5);
    clock.advance(Duration::from_mins(1));
    assert_eq!(keeper(&store, &clock).run().await.unwrap().counts["pruned"], 2);
    let expected = ["2026-11-14T10:00:00Z", "2026-11-15T09:00:00Z", "2026-11-15T10:00:00Z"];
    assert_eq!(left(Resolution::Hour).await, expected);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn figures_are_added_only_by_the_process_that_moves_the_position(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let figures = NewFigures::from([((String::new(), time(NOW)), Figures { requests: 1, ..Figures::default() })]);
    let (zero, one) = (EventId(0), EventId(1));
    assert!(store.add_event_figures((zero, one), &figures).await.unwrap());
    assert!(!store.add_event_figures((zero, one), &figures).await.unwrap());
    assert_eq!(store.stats_position().await.unwrap(), one);
    assert!(store.add_slot_sample(time("2026-11-17T10:20:00Z"), &figures).await.unwrap());
    assert!(!store.add_slot_sample(time("2026-11-17T10:20:00Z"), &figures).await.unwrap());
    assert_eq!(sum(&store, "").await.requests, 2);
}

#[tokio::test]
async fn a_new_leader_on_postgres_loses_no_event_and_counts_none_twice() {
    let database = Database::new(Backend::Postgres).await;
    let config = process_pool("meet", "max_slots = 2", "echo '{\"event\": \"joined\"}'\nread leave");
    let first = Process::start_configured(&database, &config).await;
    let leader = async |process: &Process| {
        let keepers = process.admin().get("/admin/keepers").await;
        keepers["keepers"][0]["leader"].as_str().map(str::to_owned)
    };
    let leading = found("the first leads", async || leader(&first).await).await;
    let second = Process::start_configured(&database, &config).await;
    let user = second.admin().user(1_000).await;
    for number in 0..3 {
        user.ask(json!({"meeting_url": meet_link(number)})).await;
    }
    first.admin().post("/admin/stats/run", json!({})).await;
    for number in 3..6 {
        user.ask(json!({"meeting_url": meet_link(number)})).await;
    }
    first.kill().await;
    found("the second leads", async || leader(&second).await.filter(|name| *name != leading)).await;
    let store = database.open().await;
    until("all requests are counted", async || {
        second.admin().post("/admin/stats/run", json!({})).await;
        hours(&store, "meet").await.requests == 6
    })
    .await;
    let (mut starts, mut ends) = (0, 0);
    for bot in user.get("/bots").await["bots"].as_array().unwrap() {
        let id = bot["id"].as_str().unwrap();
        user.stop(id).await;
        user.until(id, "completed").await;
        starts += u64::from(bot["slot"].is_string());
        ends += 1;
    }
    until("all ends are counted", async || {
        second.admin().post("/admin/stats/run", json!({})).await;
        hours(&store, "").await.ends_by_reason.values().sum::<u64>() == ends
    })
    .await;
    let figures = hours(&store, "").await;
    assert_eq!((figures.requests, figures.ends_by_reason), (6, pairs([("stopped", 6)])));
    assert!(figures.waits.count() >= starts, "{:?}", figures.starts);
}
