//! Each exit code of the command line, and what standard error says with it.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{ADMIN_TOKEN, Backend, CommandLine, Database, Life, Process, meet_link};

async fn server() -> (Database, Process) {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    (database, server)
}

#[tokio::test]
async fn each_kind_of_failure_has_its_exit_code_its_next_step_and_its_request_id() {
    let (_database, server) = server().await;
    let user = server.admin().user(1).await;
    let cli = CommandLine::new(&server.url, user.token());

    // 1: the server refused.
    let ran = cli.run(&["bots", "start", "https://example.com/not-a-meeting"]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("meeting_url") && ran.err.contains("request id: "), "{ran:?}");
    // 2: the command line is wrong.
    assert_eq!(cli.run(&["bots", "begin"]).await.code, 2);
    assert_eq!(cli.run(&["bots", "start", "x", "--config", "[]"]).await.code, 2);
    assert_eq!(cli.run(&["--server", "nonsense://x", "bots", "list"]).await.code, 2);
    // 4: not allowed.
    for (token, arguments) in [
        ("grk_nobody", ["bots", "list"]),
        ("gra_nobody", ["pools", "list"]),
        (user.token(), ["pools", "list"]),
        ("", ["bots", "list"]),
    ] {
        let ran = cli.with(token).run(&arguments).await;
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(ran.err.contains("greenroom login"), "{ran:?}");
        assert!(token.is_empty() || !ran.err.contains(token), "a token is shown: {ran:?}");
    }
    // 5: not found.
    let operator = cli.with(ADMIN_TOKEN);
    for arguments in [["bots", "show", "ffffffff"], ["bots", "stop", "nonsense"]] {
        let ran = cli.run(&arguments).await;
        assert_eq!(ran.code, 5, "{ran:?}");
        assert!(ran.err.contains("greenroom bots list"), "{ran:?}");
    }
    for arguments in [["slots", "show", "no-slot"], ["pools", "show", "no-pool"], ["keepers", "run", "no-keeper"]] {
        assert_eq!(operator.run(&arguments).await.code, 5, "{arguments:?}");
    }
    // 6: the limit is reached.
    cli.ok(&["bots", "start", &meet_link(1)]).await;
    let ran = cli.run(&["bots", "start", &meet_link(2)]).await;
    assert_eq!(ran.code, 6, "{ran:?}");
    assert!(ran.err.contains("1 of 1 bots run"), "{ran:?}");
    // 7: nobody answers.
    let nobody = CommandLine::new("http://127.0.0.1:1", user.token());
    let ran = nobody.run(&["bots", "list"]).await;
    assert_eq!(ran.code, 7, "{ran:?}");
    assert!(ran.err.contains("http://127.0.0.1:1") && ran.err.contains("--server"), "{ran:?}");
    assert_eq!(nobody.run(&["health"]).await.code, 7);
    // 0: needs no token.
    assert_eq!(cli.with("").ok(&["health"]).await, "ready\n");
}

/// The URL of something that gives everyone the same answer.
async fn answering(status: &'static str, body: &'static str) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.read(&mut [0; 4_096]).await;
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = connection.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn what_is_not_greenroom_is_told_and_a_proxy_without_its_server_is_a_server_that_does_not_answer() {
    for (status, body, code, part) in [
        ("502 Bad Gateway", "<h1>nginx</h1>", 7, "502"),
        ("503 Service Unavailable", "", 7, "503"),
        ("200 OK", "[]", 1, "another server than Greenroom"),
        ("200 OK", "<h1>It works</h1>", 1, "another server than Greenroom"),
    ] {
        let ran = CommandLine::new(&answering(status, body).await, "grk_key").run(&["bots", "list"]).await;
        assert_eq!(ran.code, code, "{status}: {ran:?}");
        assert!(ran.err.contains(part), "{status}: {ran:?}");
    }
    // A list that repeats itself ends.
    let endless = answering("200 OK", r#"{"bots": [{"id": "1"}], "next_cursor": "1"}"#).await;
    CommandLine::new(&endless, "grk_key").ok(&["bots", "list", "--all"]).await;
    let secret = CommandLine::new("http://me:hunter2@127.0.0.1:1", "");
    for command in ["whoami", "health"] {
        let ran = secret.run(&[command]).await;
        assert!(ran.code == 2 && !ran.err.contains("hunter2"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_bot_that_ends_before_it_is_active_did_not_get_where_it_was_waited_for() {
    let database = Database::new(Backend::Sqlite).await;
    let pool = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 1\n\
                process = { command = [\"true\"] }\n";
    let server = Process::start_configured(&database, pool).await;
    let user = server.admin().user(10).await;
    let cli = CommandLine::new(&server.url, user.token());
    // The first one has the only slot, so the second one waits in the queue.
    user.bot(&meet_link(1)).await;
    let bot = user.bot(&meet_link(2)).await;
    cli.ok(&["bots", "stop", &bot, "--wait"]).await;
    assert_eq!(cli.run(&["bots", "watch", &bot]).await.code, 0);
    for cli in [&cli, &cli.with(ADMIN_TOKEN)] {
        let ran = cli.run(&["bots", "watch", &bot, "--until", "active"]).await;
        assert_eq!(ran.code, 3, "{ran:?}");
        assert!(ran.err.contains("the bot ended before it was active"), "{ran:?}");
    }
}

#[tokio::test]
async fn waiting_ends_with_the_fate_of_the_bot_or_the_end_of_the_time() {
    let (_database, server) = server().await;
    let user = server.admin().user(10).await;
    let cli = CommandLine::new(&server.url, user.token());
    for (number, exit_code, expected) in [(1, 0, 0), (2, 9, 3)] {
        let bot = cli.ok(&["bots", "start", &meet_link(number)]).await.trim().to_owned();
        let life = Life::assign(&server.admin(), &bot).await;
        life.report("started", json!({})).await;
        // The bot has not ended when the time to wait is over.
        let ran = cli.run(&["bots", "watch", &bot, "--timeout", "300ms"]).await;
        assert_eq!(ran.code, 8, "{ran:?}");
        assert!(ran.err.contains(&format!("greenroom bots watch {bot}")), "{ran:?}");
        life.report("joined", json!({})).await;
        let active = cli.run(&["bots", "watch", &bot, "--until", "active"]).await;
        assert_eq!(active.code, 0, "{active:?}");
        life.report("exited", json!({"exit_code": exit_code, "error": "out of memory"})).await;
        for name in [&cli, &cli.with(ADMIN_TOKEN)] {
            let ran = name.run(&["bots", "watch", &bot]).await;
            assert_eq!(ran.code, expected, "{ran:?}");
            assert_eq!(ran.err.contains("out of memory"), expected == 3, "{ran:?}");
        }
    }
}
