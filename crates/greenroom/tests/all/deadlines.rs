//! Deadlines hold although the server restarts again and again, each time before it has listened for as long as a bot
//! may be silent. A bot that sends heartbeats is never ended because the server was stopped.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::{Backend, Client, Database, Life, Process, meet_link};

/// A bot may be silent for 4 s while the server listens: two heartbeats, and two seconds until they are written. The
/// sweeper runs at each start. Its next run would be after the server has stopped again.
const CONFIG: &str = "[heartbeat]\ninterval = \"1s\"\n\
                      [sweeper]\ninterval = \"6s\"\nno_start = \"6s\"\nno_join = \"6s\"\nheartbeat_lost = \"6s\"\n\
                      stop_grace = \"6s\"\n\
                      [[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\n\
                      process = { command = [\"true\"] }\n";
/// How long each server runs.
const LIVES: Duration = Duration::from_millis(2_500);
const BEAT: Duration = Duration::from_millis(500);
/// Longer than any of the deadlines, however slow the machine is.
const PATIENCE: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    Stopped,
}

/// A bot that an operator assigned by hand.
struct Bot {
    id: String,
    life: Life,
}

impl Bot {
    async fn assigned(admin: &Client, user: &Client, number: usize) -> Self {
        let id = user.bot(&meet_link(number)).await;
        Self { life: Life::assign(admin, &id).await, id }
    }

    async fn started(admin: &Client, user: &Client, number: usize) -> Self {
        let bot = Self::assigned(admin, user, number).await;
        bot.life.report("started", json!({})).await;
        bot
    }

    async fn joined(admin: &Client, user: &Client, number: usize) -> Self {
        let bot = Self::started(admin, user, number).await;
        bot.life.report("joined", json!({})).await;
        bot
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread")]
async fn deadlines_hold_although_the_server_restarts_every_few_seconds(
    #[values(Backend::Sqlite, Backend::Postgres)] backend: Backend,
    #[values(End::Killed, End::Stopped)] end: End,
) {
    let database = Database::new(backend).await;
    let mut server = Process::start_configured(&database, CONFIG).await;
    let mut user = server.admin().user(100).await;
    let admin = server.admin();
    let healthy = Bot::joined(&admin, &user, 1).await;
    let lobby = Bot::started(&admin, &user, 2).await;
    let unheard = Bot::assigned(&admin, &user, 3).await;
    let silent = Bot::joined(&admin, &user, 4).await;
    let stopping = Bot::joined(&admin, &user, 5).await;
    user.stop(&stopping.id).await;
    let expected = [
        (&unheard.id, "failed", "no_start"),
        (&lobby.id, "failed", "no_join"),
        (&silent.id, "failed", "heartbeat_lost"),
        (&stopping.id, "completed", "stopped"),
    ];

    let begun = Instant::now();
    loop {
        // Living bots send heartbeats while the server runs, and so does the bot in the lobby.
        let lived = Instant::now();
        let mut beats = tokio::time::interval(BEAT);
        while lived.elapsed() < LIVES {
            beats.tick().await;
            healthy.life.on(&server.url).report("heartbeat", json!({})).await;
            let _ = lobby.life.on(&server.url).say("heartbeat", json!({})).await;
        }
        let mut open = 0;
        for (id, status, reason) in &expected {
            let bot = user.show_bot(id).await;
            if bot["end_time"] == Value::Null {
                open += 1;
            } else {
                assert_eq!((&bot["status"], &bot["reason"]), (&json!(status), &json!(reason)));
            }
        }
        if open == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{open} bots were never ended");
        match end {
            End::Killed => server.kill().await,
            End::Stopped => {
                server.terminate().await;
                assert!(server.wait().await);
            }
        }
        server = Process::start_configured(&database, CONFIG).await;
        user = user.on(&server.url);
    }
    assert_eq!(user.show_bot(&healthy.id).await["status"], "active");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_down_for_longer_than_any_deadline_first_listens(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let server = Process::start_configured(&database, CONFIG).await;
    let (admin, user) = (server.admin(), server.admin().user(100).await);
    let bot = Bot::joined(&admin, &user, 1).await;
    bot.life.report("heartbeat", json!({})).await;
    server.terminate().await;
    assert!(server.wait().await);
    // Moves the times of the bot and of the listening windows back by an hour.
    match backend {
        Backend::Sqlite => {
            let hour = "UPDATE heartbeats SET at = strftime('%Y-%m-%dT%H:%M:%f000Z', at, '-1 hour');
                        UPDATE bots SET status_since = strftime('%Y-%m-%dT%H:%M:%f000Z', status_since, '-1 hour');
                        UPDATE listening_spans
                           SET started_at = strftime('%Y-%m-%dT%H:%M:%fZ', started_at, '-1 hour'),
                               heard_until = strftime('%Y-%m-%dT%H:%M:%fZ', heard_until, '-1 hour')";
            database.execute(hour).await;
        }
        Backend::Postgres => {
            let hour = "UPDATE heartbeats SET at = at - interval '1 hour';
                        UPDATE bots SET status_since = status_since - interval '1 hour';
                        UPDATE listening_spans SET started_at = started_at - interval '1 hour',
                                                   heard_until = heard_until - interval '1 hour'";
            database.execute(hour).await;
        }
    }
    let server = Process::start_configured(&database, CONFIG).await;
    let (user, life) = (user.on(&server.url), bot.life.on(&server.url));
    let (status, answer) = server.admin().post("/admin/sweeper/run", json!({})).await;
    assert_eq!((status.as_u16(), &answer["failed"]), (200, &json!(0)), "{answer}");
    life.report("heartbeat", json!({})).await;
    assert_eq!(user.show_bot(&bot.id).await["status"], "active");
    // From here on the bot is silent, and the server listens.
    assert_eq!(user.until(&bot.id, "failed").await["reason"], "heartbeat_lost");
}
