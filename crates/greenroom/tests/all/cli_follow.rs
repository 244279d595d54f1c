//! Following through a pipe: states line by line, NDJSON, lost connections, requests that are sent again.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdout};
use tokio::sync::watch;

use crate::support::{ADMIN_TOKEN, Backend, CommandLine, Database, Life, Process, meet_link};

/// A connection to the server that a test can cut.
struct Wire {
    url: String,
    cuts: watch::Sender<usize>,
    /// Whether the next answer is lost.
    loses: Arc<AtomicBool>,
}

impl Wire {
    async fn to(server: &str) -> Self {
        let server = server.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (cuts, cut) = watch::channel(0);
        let loses = Arc::<AtomicBool>::default();
        let lost = loses.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, lost, mut cut) = (server.clone(), lost.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = carry(client, server, lost) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url, cuts, loses }
    }

    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn carry(client: TcpStream, server: String, lost: Arc<AtomicBool>) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = TcpStream::connect(server).await?.into_split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let answers = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = from_server.read(&mut bytes).await?;
            if count == 0 || lost.swap(false, Ordering::SeqCst) {
                return Ok(());
            }
            to_client.write_all(&bytes[..count]).await?;
        }
    };
    tokio::select! {
        done = requests => done.map(drop),
        done = answers => done,
    }
}

/// A command that runs on, with its lines.
struct Followed {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Followed {
    fn start(cli: &CommandLine, arguments: &[&str]) -> Self {
        let mut child = cli.command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(std::time::Duration::from_secs(60), self.lines.next_line()).await;
        line.expect("a line comes in time").unwrap().expect("the command goes on")
    }

    async fn code(mut self) -> i32 {
        self.child.wait().await.unwrap().code().unwrap()
    }
}

#[tokio::test]
async fn start_and_wait_prints_one_line_for_each_state_as_it_comes_for_users_and_operators() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    for (number, token) in [user.token(), ADMIN_TOKEN].into_iter().enumerate() {
        let cli = CommandLine::new(&server.url, token);
        let mut command = Followed::start(&cli, &["bots", "start", &meet_link(number), "--wait", "--name", "Notes"]);
        let bot = command.line().await;
        assert_eq!(user.show_bot(&bot).await["bot_display_name"], "Notes");
        assert!(command.line().await.contains("  deploying"));
        let life = Life::assign(&server.admin(), &bot).await;
        life.report("started", json!({})).await;
        // An assignment by hand may show in between.
        let mut line = command.line().await;
        while !line.contains("  starting") {
            line = command.line().await;
        }
        assert!(line.contains("took "), "{line}");
        life.report("joined", json!({})).await;
        assert!(command.line().await.contains("  active"));
        life.report("exited", json!({"exit_code": 0})).await;
        let line = command.line().await;
        assert!(line.contains("  completed") && line.contains("active took"), "{line}");
        assert_eq!(command.code().await, 0);
    }
}

#[tokio::test]
async fn following_as_json_is_one_object_per_line_and_a_lost_connection_loses_and_repeats_nothing() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let wire = Wire::to(&server.url).await;
    let cli = CommandLine::new(&wire.url, user.token());
    let bot = user.bot(&meet_link(1)).await;
    let mut all = Followed::start(&cli, &["events", "--json", "--after", "0"]);
    let mut one = Followed::start(&cli, &["bots", "watch", &bot, "--json"]);
    assert!(one.line().await.contains("\"created\""));
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|line: &String| !line.contains("\"to\":\"starting\"")) {
        seen.push(one.line().await);
    }
    wire.cut();
    life.report("joined", json!({})).await;
    assert!(one.line().await.contains("\"to\":\"active\""));
    wire.cut();
    life.report("exited", json!({"exit_code": 0})).await;
    assert!(one.line().await.contains("\"to\":\"completed\""));
    let last: serde_json::Value = serde_json::from_str(&one.line().await).unwrap();
    assert_eq!(last["bot"]["status"], "completed");
    assert_eq!(one.code().await, 0);

    // The stream of all events went through the same cuts.
    let mut ids: Vec<i64> = Vec::new();
    loop {
        let event: serde_json::Value = serde_json::from_str(&all.line().await).unwrap();
        ids.push(event["id"].as_i64().unwrap());
        if event["to"] == "completed" {
            break;
        }
    }
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]) && ids.len() >= 4, "{ids:?}");
    all.child.kill().await.unwrap();
}

#[tokio::test]
async fn a_bot_is_followed_without_a_stream_where_the_user_has_all_of_them_open() {
    let database = Database::new(Backend::Sqlite).await;
    let config = "[limits]\nstreams_per_key = 1\n[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\n\
                  provider = \"process\"\nmax_slots = 10\nprocess = { command = [\"true\"] }\n";
    let server = Process::start_configured(&database, config).await;
    let user = server.admin().user(10).await;
    let cli = CommandLine::new(&server.url, user.token());
    let mut all = Followed::start(&cli, &["events", "--json", "--after", "0"]);
    let bot = user.bot(&meet_link(1)).await;
    // Its stream is open.
    assert!(all.line().await.contains("\"created\""));
    let mut command = cli.command();
    command.args(["bots", "watch", &bot]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let watch = tokio::spawn(async move { command.output().await.unwrap() });
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    life.report("exited", json!({"exit_code": 0})).await;
    let watched = watch.await.unwrap();
    assert!(watched.status.success() && watched.stderr.is_empty(), "{watched:?}");
    assert!(String::from_utf8_lossy(&watched.stdout).contains("  completed"), "{watched:?}");
    all.child.kill().await.unwrap();
}

#[tokio::test]
async fn an_operator_follows_the_statuses_of_every_bot() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let before = user.bot(&meet_link(0)).await;
    let cli = CommandLine::new(&server.url, ADMIN_TOKEN);
    let mut events = Followed::start(&cli, &["events", "--json"]);
    // The first bots may come before the stream is open.
    let mut number = 0;
    let first = loop {
        number += 1;
        user.bot(&meet_link(number)).await;
        if let Ok(line) = tokio::time::timeout(std::time::Duration::from_secs(1), events.lines.next_line()).await {
            break line.unwrap().unwrap();
        }
    };
    let event: serde_json::Value = serde_json::from_str(&first).unwrap();
    let bot = event["bot_id"].as_str().unwrap();
    assert_ne!(bot, before, "what was so before is not told");
    let life = Life::assign(&server.admin(), bot).await;
    life.report("started", json!({})).await;
    life.report("exited", json!({"exit_code": 9, "error": "out of memory"})).await;
    loop {
        let event: serde_json::Value = serde_json::from_str(&events.line().await).unwrap();
        if event["bot_id"] == bot && event["to"] == "failed" {
            assert_eq!(event["error"], "out of memory");
            break;
        }
    }
    events.child.kill().await.unwrap();
}

#[tokio::test]
async fn a_request_whose_answer_got_lost_is_sent_again_and_makes_one_bot() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let cli = CommandLine::new(&server.url, user.token());
    let start = ["bots", "start", &meet_link(1), "--idempotency-key", "once"];
    let first = cli.ok(&start).await;
    assert_eq!(cli.ok(&start).await, first);
    let other = cli.run(&["bots", "start", &meet_link(2), "--idempotency-key", "once"]).await;
    assert_eq!(other.code, 1, "{other:?}");
    assert!(other.err.contains("--idempotency-key"), "{other:?}");
    // The answer is lost, and the command sends its request again by itself.
    let wire = Wire::to(&server.url).await;
    wire.loses.store(true, Ordering::SeqCst);
    let through = CommandLine::new(&wire.url, user.token());
    let bot = through.ok(&["bots", "start", &meet_link(3)]).await;
    assert!(!wire.loses.load(Ordering::SeqCst), "an answer was lost");
    assert_eq!(user.show_bot(bot.trim()).await["native_meeting_id"], meet_link(3).rsplit('/').next().unwrap());
    assert_eq!(user.get("/bots").await["bots"].as_array().unwrap().len(), 2);
    // Without a key of one's own, two commands are two requests.
    let ran = cli.run(&["bots", "start", &meet_link(1)]).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains(&format!("greenroom bots show {}", first.trim())), "{ran:?}");
}

#[tokio::test]
async fn a_transcript_and_a_log_are_followed_to_the_end_of_the_bot() {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(10).await;
    let cli = CommandLine::new(&server.url, user.token());
    let bot = user.bot(&meet_link(1)).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    life.report("joined", json!({})).await;
    let say = async |start: f64, text: &str| {
        let segment = json!({"start_time": start, "end_time": start + 1.0, "text": text, "speaker": "Ada"});
        life.report("transcript", json!({"segments": [segment]})).await;
    };
    say(0.0, "Good morning").await;
    let mut command = Followed::start(&cli, &["bots", "transcript", &bot, "--follow"]);
    assert_eq!(command.line().await, "00:00:00  Ada: Good morning");
    say(3_725.0, "And good\u{1b}[2Jbye").await;
    assert_eq!(command.line().await, "01:02:05  Ada: And good\\u{1b}[2Jbye");
    life.report("exited", json!({"exit_code": 0})).await;
    assert_eq!(command.code().await, 0);
    assert_eq!(cli.ok(&["bots", "transcript", &bot]).await.lines().count(), 2);
    assert_eq!(cli.run(&["bots", "transcript", &bot, "--json"]).await.json()["segments"].as_array().unwrap().len(), 2);
    cli.ok(&["bots", "logs", &bot, "--follow"]).await;
}
