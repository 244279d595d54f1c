//! The bot of `examples/browser-bot` with a real Chromium, in the meeting that it serves itself.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::agent::{Agent, for_bot, lives};
use crate::server::Server;

/// A machine that reads Chromium from its disk for the first time can take 20 seconds to open it.
const DEADLINE: Duration = Duration::from_secs(120);
/// Ends the meeting if anything in it becomes an element.
const HOSTILE: &str = r#"</b><img src=x onerror="document.body.dataset.state='ended'"><script>document.body.dataset.state='ended'</script>"#;

fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/browser-bot/bot.py")
}

fn set_browser(command: &mut Command) {
    if let Some(browser) = std::env::var_os("CHROMIUM") {
        command.env("CHROMIUM", browser);
    }
}

/// The bot as its agent runs it, with a folder for temporary files that nobody else uses.
struct BrowserBot {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: JoinHandle<String>,
    folder: TempDir,
    /// Every event so far.
    events: Vec<Value>,
}

struct Ended {
    code: Option<i32>,
    stderr: String,
    events: Vec<Value>,
    left_behind: Vec<String>,
}

impl BrowserBot {
    fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), variables)
    }

    fn start_in(folder: TempDir, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new("python3");
        command.arg(program()).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", folder.path());
        set_browser(&mut command);
        command.envs(variables.iter().copied()).kill_on_drop(true);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("python3 runs");
        let mut pipe = child.stderr.take().unwrap();
        let stderr = tokio::spawn(async move {
            let mut text = String::new();
            pipe.read_to_string(&mut text).await.unwrap();
            text
        });
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, input, lines: BufReader::new(output).lines(), stderr, folder, events: vec![] }
    }

    async fn warm() -> Self {
        let mut bot = Self::start(&[("GREENROOM_PREWARM", "1")]);
        bot.until("ready").await;
        bot
    }

    /// A bot in a meeting with this configuration.
    async fn joined(config: Value) -> Self {
        let data = json!({"bot_display_name": "Notes", "token": "grb_secret", "config": config});
        let mut bot = Self::start(&[("BOT_DATA", &data.to_string())]);
        bot.until("joined").await;
        bot
    }

    /// Waits for its next event. None at its end.
    async fn next(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(DEADLINE, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("nothing more came after {:?}", self.events)).unwrap()?;
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?} is no event"));
        self.events.push(event.clone());
        Some(event)
    }

    async fn until(&mut self, name: &str) -> Value {
        loop {
            let Some(event) = self.next().await else { panic!("it ended without {name}: {:?}", self.events) };
            if event["event"] == name {
                return event;
            }
        }
    }

    async fn until_heard(&mut self, text: &str) {
        while self.until("transcript").await["segments"][0]["text"] != text {}
    }

    async fn write(&mut self, command: Value) {
        self.input.as_mut().unwrap().write_all(format!("{command}\n").as_bytes()).await.unwrap();
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// The first process of its browser.
    fn browser(&self) -> u32 {
        children(self.pid())[0]
    }

    async fn end(mut self) -> Ended {
        while self.next().await.is_some() {}
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await.expect("it ends").unwrap();
        let left_behind = std::fs::read_dir(self.folder.path()).unwrap();
        let left_behind = left_behind.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        Ended { code: status.code(), stderr: self.stderr.await.unwrap(), events: self.events, left_behind }
    }
}

impl Ended {
    fn has_left(&self) {
        assert_eq!((self.code, self.left_behind.len()), (Some(0), 0), "{:?} {}", self.left_behind, self.stderr);
        assert_eq!(self.events.last().unwrap(), &json!({"event": "exited", "reason": "left", "error": null}));
    }

    fn has_failed(&self, why: &str) {
        assert_eq!((self.code, self.left_behind.len()), (Some(1), 0), "{:?} {}", self.left_behind, self.stderr);
        assert!(self.stderr.contains(why), "{}", self.stderr);
    }

    fn names(&self) -> Vec<&str> {
        self.events.iter().map(|event| event["event"].as_str().unwrap()).collect()
    }
}

fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn descendants(pid: u32) -> Vec<u32> {
    children(pid).into_iter().flat_map(|child| [vec![child], descendants(child)].concat()).collect()
}

async fn signal(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().await.unwrap().success());
}

#[tokio::test]
async fn under_the_agent_it_joins_reports_captions_obeys_and_leaves() {
    // So that the next browser opens within the deadline of the server.
    drop(BrowserBot::warm().await);
    let server = Server::start().await;
    let mut data = server.bot();
    data.json["bot_display_name"] = json!("Notes");
    data.json["config"] = json!({"meeting": {"lobby": 1, "captions": 1, "interval": 1}});
    let folder = tempfile::tempdir().unwrap();
    let mut command = for_bot(&data);
    command.env("TMPDIR", folder.path());
    set_browser(&mut command);
    let agent = Agent::start_exactly(command, &["--", "python3", program().to_str().unwrap()]);
    let heard = |text: &'static str| {
        move |state: &crate::server::State| {
            let segments = state.calls.iter().filter_map(|call| call.body["segments"].as_array()).flatten();
            segments.into_iter().any(|segment| segment["text"] == text)
        }
    };
    server.until("the first caption", heard("Good morning, everyone.")).await;
    let id = server.command(&data, "reconfigure", json!({"display_name": "Minutes", "language": "de"}));
    server.until_acknowledged(&id).await;
    server.until("the new name", heard("Notes is now Minutes")).await;
    server.until("the new language", heard("Captions are now in de")).await;
    server.command(&data, "leave", json!({}));
    assert_eq!(agent.end().await.code, Some(0));
    assert_eq!(server.exited(), json!([0, "left"]));
    assert_eq!(server.said_names()[..3], ["started", "status", "joined"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    server.no_mistakes();
}

#[tokio::test]
async fn prewarmed_it_is_ready_before_it_has_a_meeting_and_gets_the_meeting_on_standard_input() {
    let mut bot = BrowserBot::start(&[("GREENROOM_PREWARM", "1")]);
    assert_eq!(bot.next().await, Some(json!({"event": "ready"})));
    let data = json!({"bot_display_name": "Ada's notes", "config": {"meeting": {"captions": 2, "interval": 1}}});
    bot.write(json!({"action": "assignment", "payload": data})).await;
    // It is not in a lobby, so it reports none.
    assert_eq!(bot.next().await, Some(json!({"event": "joined"})));
    let first = bot.until("transcript").await;
    assert_eq!(first["segments"][0]["text"], "Ada's notes joined");
    let segment = bot.until("transcript").await["segments"][0].clone();
    assert_eq!((&segment["text"], &segment["speaker"]), (&json!("Good morning, everyone."), &json!("Ada")));
    assert!(segment["start_time"].as_f64().unwrap() <= segment["end_time"].as_f64().unwrap(), "{segment}");
    bot.until_heard("Nobody is here; this is a pretend meeting.").await;
    bot.write(json!({"id": "1", "action": "leave", "payload": {}})).await;
    let ended = bot.end().await;
    ended.has_left();
    assert_eq!(ended.names().iter().filter(|name| **name == "ready").count(), 1);
}

#[tokio::test]
async fn it_takes_a_screenshot_when_it_joins_and_in_the_interval_that_it_is_told() {
    let mut bot = BrowserBot::joined(json!({"meeting": {"captions": 0}})).await;
    // One as it joins, one with the new configuration, and one after the interval.
    for number in 1..=3 {
        let path = bot.until("screenshot").await["path"].as_str().unwrap().to_owned();
        let image = std::fs::read(&path).unwrap();
        assert!(image.starts_with(b"\xff\xd8") && image.len() < 512 * 1024, "{} bytes", image.len());
        if number == 1 {
            bot.write(json!({"id": "1", "action": "reconfigure", "payload": {"screenshot_interval_s": 1}})).await;
        }
    }
    bot.write(json!({"id": "2", "action": "leave", "payload": {}})).await;
    bot.end().await.has_left();
}

#[tokio::test]
async fn hostile_names_and_settings_stay_text() {
    let config = json!({"display_name": HOSTILE, "language": 7, "screenshot_interval_s": "x",
        "meeting": {"captions": 0, "lobby": 1, "x\"><script>": HOSTILE}});
    let mut bot = BrowserBot::joined(config).await;
    bot.until_heard(&format!("{HOSTILE} joined")).await;
    let name = format!("{HOSTILE}'\"`${{}}\u{2028}\\");
    bot.write(json!({"id": "1", "action": "reconfigure", "payload": {"display_name": name}})).await;
    bot.until_heard(&format!("{HOSTILE} is now {name}")).await;
    bot.write(json!("no command")).await;
    bot.write(json!({"id": "2", "action": "leave", "payload": {}})).await;
    let ended = bot.end().await;
    ended.has_left();
    assert!(ended.stderr.contains("config.screenshot_interval_s ignored"), "{}", ended.stderr);
    assert!(ended.stderr.contains("command ignored"), "{}", ended.stderr);
}

#[tokio::test]
async fn it_ends_at_once_when_its_browser_dies() {
    let bot = BrowserBot::warm().await;
    signal("-KILL", bot.browser()).await;
    let ended = bot.end().await;
    ended.has_failed("the browser ended by itself, with signal 9");
    assert_eq!(ended.names(), ["ready"], "it had no meeting to report the end of");

    let bot = BrowserBot::joined(json!({})).await;
    signal("-KILL", bot.browser()).await;
    let ended = bot.end().await;
    ended.has_failed("the browser ended by itself, with signal 9");
    let last = ended.events.last().unwrap();
    assert_eq!((&last["event"], &last["reason"]), (&json!("exited"), &json!("browser_ended")));

    let bot = BrowserBot::warm().await;
    let is_renderer = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--type=renderer"))
    };
    for renderer in descendants(bot.pid()).into_iter().filter(is_renderer) {
        signal("-KILL", renderer).await;
    }
    bot.end().await.has_failed("the page crashed");
}

#[tokio::test]
async fn it_leaves_when_its_input_closes_and_at_sigterm() {
    let mut bot = BrowserBot::joined(json!({})).await;
    bot.input = None;
    bot.end().await.has_left();

    let bot = BrowserBot::joined(json!({})).await;
    signal("-TERM", bot.pid()).await;
    bot.end().await.has_left();

    let mut bot = BrowserBot::warm().await;
    bot.input = None;
    let ended = bot.end().await;
    assert_eq!((ended.code, ended.names()), (Some(0), vec!["ready"]), "{}", ended.stderr);
    assert_eq!(ended.left_behind, Vec::<String>::new());

    let data = json!({"config": {"meeting": {"lobby": 1_000_000}}});
    let mut bot = BrowserBot::start(&[("BOT_DATA", &data.to_string())]);
    assert_eq!(bot.until("status").await["status"], "awaiting_admission");
    signal("-TERM", bot.pid()).await;
    let ended = bot.end().await;
    ended.has_left();
    assert!(!ended.names().contains(&"joined"), "{:?}", ended.events);
}

#[tokio::test]
async fn it_tells_how_the_meeting_ended() {
    let bot = BrowserBot::joined(json!({"meeting": {"length": 1}})).await;
    let ended = bot.end().await;
    assert_eq!((ended.code, &ended.events.last().unwrap()["reason"]), (Some(0), &json!("meeting_ended")));

    let data = json!({"config": {"meeting": {"lobby": -1}}});
    let ended = BrowserBot::start(&[("BOT_DATA", &data.to_string())]).end().await;
    ended.has_failed("the page shows: refused");
    assert_eq!(ended.events.last().unwrap()["reason"], "not_admitted");
}

#[tokio::test]
async fn what_cannot_work_is_told_in_plain_words() {
    let cases: [(&[(&str, &str)], &str); 4] = [
        (&[], "set BOT_DATA to a bot's data, or GREENROOM_PREWARM=1"),
        (&[("GREENROOM_PREWARM", "1"), ("CHROMIUM", "/no/such/browser")], "install chromium or set CHROMIUM"),
        (&[("GREENROOM_PREWARM", "1"), ("CHROMIUM", "false")], "the browser ended by itself, with code 1"),
        (&[("GREENROOM_PREWARM", "1"), ("MEETING_SITE", "http://127.0.0.1:1")], "cannot be opened"),
    ];
    for (variables, why) in cases {
        let ended = BrowserBot::start(variables).end().await;
        ended.has_failed(why);
        assert!(ended.events.is_empty(), "{:?}", ended.events);
    }
}

#[tokio::test]
async fn its_browser_has_no_token_and_goes_with_it_also_in_a_folder_with_a_long_name() {
    // Longer than the path of a Unix socket may be, as that of a slot's folder can be.
    let folder = tempfile::Builder::new().prefix(&"x".repeat(120)).tempdir().unwrap();
    let data = json!({"token": "grb_secret", "config": {}});
    let variables = [("BOT_DATA", data.to_string()), ("GREENROOM_PROCESS_MARK", "a slot".to_owned())];
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut bot = BrowserBot::start_in(folder, &variables);
    bot.until("joined").await;
    let processes = descendants(bot.pid());
    assert!(processes.len() > 3, "{processes:?}");
    let environment = std::fs::read(format!("/proc/{}/environ", bot.browser())).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(!environment.contains("grb_secret"), "{environment}");
    assert!(environment.contains("GREENROOM_PROCESS_MARK=a slot"), "{environment}");

    signal("-KILL", bot.pid()).await;
    let gone = async {
        while processes.iter().any(|pid| lives(&pid.to_string())) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("its browser ends with it");
}
