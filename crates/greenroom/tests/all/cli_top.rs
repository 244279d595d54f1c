//! `greenroom top` as operators use it: in a real terminal, and in a pipe.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pty::{Color, PseudoTerminal, Size};

use crate::support::{ADMIN_TOKEN, Backend, Process, ServerFixture, meet_link, process_pool, until};

const BOT: &str = "echo '{\"event\": \"joined\"}'\nread leave\n";
/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: Size = Size { columns: 100, rows: 30 };

/// `greenroom top` in a terminal, started from a shell that stays. Without the shell the system itself would reset the
/// terminal at the end.
struct Top {
    terminal: PseudoTerminal,
}

impl Top {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let shell = ["sh", "-c", "\"$@\"; echo \"exit code $?\"; read wait", "sh"];
        let program = shell.iter().chain(&[env!("CARGO_BIN_EXE_greenroom"), "top"]).chain(arguments);
        let program: Vec<OsString> = program.map(OsString::from).collect();
        let always = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("TERM", "xterm-256color")];
        let variables = always.iter().chain(variables).map(|(name, value)| (name.into(), value.into()));
        Self { terminal: PseudoTerminal::start(&program, variables, SIZE).unwrap() }
    }

    /// Server and token come from the environment.
    fn on(url: &str, arguments: &[&str]) -> Self {
        Self::start(arguments, &[("GREENROOM_SERVER", url), ("GREENROOM_TOKEN", ADMIN_TOKEN)])
    }

    /// Waits until a line has all of these texts.
    async fn until_line(&self, texts: &[&str]) {
        let is_there = || self.terminal.text().lines().any(|line| texts.iter().all(|text| line.contains(text)));
        let deadline = Instant::now() + PATIENCE;
        while !is_there() {
            assert!(Instant::now() < deadline, "no line has {texts:?}:\n{}", self.terminal.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn press(&mut self, keys: &str) {
        self.terminal.send(keys).unwrap();
    }

    /// Sends a signal to the program, which is the child of the shell.
    fn signal(&self, signal: Signal) {
        let shell = self.terminal.pid();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        kill(Pid::from_raw(children.trim().parse().unwrap()), signal).unwrap();
    }

    /// Waits for the end of the program, after which the terminal must be as it was before.
    async fn until_end(&self, code: i32) {
        self.until_line(&[&format!("exit code {code}")]).await;
        assert!(self.terminal.is_restored().unwrap(), "{}", self.terminal.text());
    }
}

async fn fixture() -> ServerFixture {
    ServerFixture::open(Backend::Sqlite, &process_pool("meet", "max_slots = 1", BOT)).await
}

#[tokio::test]
async fn a_bot_is_shown_with_its_status_and_explained_and_q_restores_the_terminal() {
    let fixture = fixture().await;
    let mut top = Top::on(&fixture.server.url, &[]);
    top.until_line(&["greenroom", &fixture.server.url, "● live"]).await;
    assert!(top.terminal.screen().alternate_screen() && !top.terminal.is_restored().unwrap());
    top.press("3");
    top.until_line(&["No bot runs"]).await;
    let bot = fixture.user.bot(&meet_link(0)).await;
    top.until_line(&[&bot, "active", "pool-meet-001"]).await;
    // The pool has one slot, so that the next bot waits.
    let second = fixture.user.bot(&meet_link(1)).await;
    top.press("4");
    top.until_line(&[&second, "google_meet"]).await;
    top.until_line(&["Queue", "1", "oldest"]).await;

    top.press("3\r");
    top.until_line(&["Bot", &bot]).await;
    top.until_line(&["Steps"]).await;
    // A key that comes together with Esc would be another key.
    top.press("\x1b");
    until("the window is closed", async || !top.terminal.text().contains("esc close")).await;
    // The slot is drawn as busy in the grid, and described below it.
    top.press("2");
    top.until_line(&["◆ pool-meet-001", "busy", &bot[..13], "active"]).await;
    fixture.user.stop(&bot).await;
    top.press("3");
    top.until_line(&[&second, "active"]).await;
    top.press("q");
    top.until_end(0).await;
}

#[tokio::test]
async fn a_server_that_restarts_is_reconnected_to_and_its_last_picture_stays() {
    let fixture = fixture().await;
    let bot = fixture.active(0).await["id"].as_str().unwrap().to_owned();
    let mut top = Top::on(&fixture.server.url, &["--pool", "meet"]);
    top.until_line(&["● live"]).await;
    top.press("3");
    top.until_line(&[&bot, "active"]).await;
    let ServerFixture { server, database, .. } = fixture;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.kill().await;
    top.until_line(&["reconnecting", "old"]).await;
    top.until_line(&[&bot, "active"]).await;
    let file = database.folder.path().join("greenroom.toml");
    let server = Process::start_listening(&database, &address, &["--config", file.to_str().unwrap()]).await;
    top.until_line(&["● live"]).await;
    // It follows the new server.
    let user = server.admin().user(5).await;
    let second = user.bot(&meet_link(1)).await;
    top.press("4");
    top.until_line(&[&second]).await;
    // A server that stops is reconnected to as well.
    server.terminate().await;
    assert!(server.wait().await);
    top.until_line(&["reconnecting"]).await;
    top.press("\x03");
    top.until_end(0).await;
}

#[tokio::test]
async fn a_new_size_is_drawn_and_signals_restore_the_terminal() {
    let fixture = fixture().await;
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        let mut top = Top::on(&fixture.server.url, &[]);
        top.until_line(&["2 Slots"]).await;
        assert!(!top.terminal.text().contains("5 Keepers"));
        // Wide enough for all panes, and then hardly for one.
        top.terminal.resize(Size { columns: 160, rows: 45 }).unwrap();
        top.until_line(&["5 Keepers"]).await;
        top.terminal.resize(Size { columns: 30, rows: 8 }).unwrap();
        until("one pane is left", async || {
            let text = top.terminal.text();
            text.contains("1 Pools") && !text.contains("5 Keepers")
        })
        .await;
        top.signal(signal);
        top.until_end(0).await;
    }
}

#[tokio::test]
async fn keys_filter_pause_and_help() {
    let fixture = fixture().await;
    let bot = fixture.active(0).await["id"].as_str().unwrap().to_owned();
    let mut top = Top::on(&fixture.server.url, &[]);
    top.until_line(&["● live"]).await;
    top.press("3/nothing like this");
    top.until_line(&["No row has nothing like this"]).await;
    top.press("\x1b");
    top.until_line(&[&bot, "active"]).await;
    top.press("?");
    top.until_line(&["Ctrl-C", "quit"]).await;
    top.press("qp");
    top.until_line(&["paused"]).await;
    fixture.user.stop(&bot).await;
    fixture.user.until(&bot, "completed").await;
    assert!(top.terminal.text().contains(&bot), "the picture is held");
    top.press("p");
    top.until_line(&["No bot runs"]).await;
}

#[tokio::test]
async fn without_colours_there_is_no_colour() {
    let fixture = fixture().await;
    fixture.active(0).await;
    let variables = [("GREENROOM_SERVER", fixture.server.url.as_str()), ("GREENROOM_TOKEN", ADMIN_TOKEN)];
    let has_colour = |top: &Top| {
        let screen = top.terminal.screen();
        let cells = (0..SIZE.rows).flat_map(|row| (0..SIZE.columns).map(move |column| (row, column)));
        let mut colours = cells.filter_map(|(row, column)| screen.cell(row, column)).map(|cell| cell.fgcolor());
        colours.any(|colour| colour != Color::Default)
    };
    let coloured = Top::start(&[], &variables);
    coloured.until_line(&["all pools", "1/1"]).await;
    assert!(has_colour(&coloured));
    let plain = Top::start(&[], &[variables[0], variables[1], ("NO_COLOR", "1")]);
    plain.until_line(&["all pools", "1/1"]).await;
    assert!(!has_colour(&plain));
}

/// Runs `greenroom top` in a pipe.
async fn in_pipe(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Process::command().arg("top").args(arguments).output().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn in_a_pipe_one_picture_is_printed_as_text() {
    let fixture = fixture().await;
    let bot = fixture.active(0).await["id"].as_str().unwrap().to_owned();
    let server = ["--server", &fixture.server.url, "--token", ADMIN_TOKEN];
    for more in [&["--once"][..], &[]] {
        let (code, text, errors) = in_pipe(&[&server[..], more].concat()).await;
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
        let has = |texts: &[&str]| text.lines().any(|line| texts.iter().all(|part| line.contains(part)));
        assert!(has(&["● live"]) && has(&[&bot, "active", "pool-meet-001"]) && has(&["meet", "1/1"]), "{text}");
        assert!(text.contains("KEEPERS") && !text.contains('\u{1b}'), "{text}");
    }
    let (_, text, _) = in_pipe(&[&server[..], &["--once", "--pool", "meet"]].concat()).await;
    assert!(text.lines().any(|line| line.starts_with("pool-meet-001") && line.contains("busy")), "{text}");
    let (code, text, _) = in_pipe(&[&server[..], &["--once", "--json"]].concat()).await;
    let message: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &message["event"]), (Some(0), &"snapshot".into()), "{text}");
    assert!(text.contains(&bot), "{text}");
    let (code, _, errors) = in_pipe(&[&server[..], &["--once", "--pool", "zoom"]].concat()).await;
    assert_eq!(code, Some(5));
    assert!(errors.contains("there is no pool `zoom`; the pools are meet"), "{errors}");
}

#[tokio::test]
async fn who_is_not_allowed_and_a_server_that_is_not_there_have_their_own_exit_codes() {
    let fixture = fixture().await;
    let url = fixture.server.url.clone();
    for (token, why) in [("wrong", "does not accept the token"), (fixture.user.token(), "the API key of a user")] {
        let (code, text, errors) = in_pipe(&["--server", &url, "--token", token, "--once"]).await;
        assert_eq!((code, text.as_str()), (Some(4), ""), "{errors}");
        assert!(errors.contains(why) && errors.contains("admin token"), "{errors}");
        assert!(!errors.contains(token), "{errors}");
    }
    // In a terminal the error is on the usual screen.
    let top = Top::start(&["--server", &url, "--token", "wrong"], &[]);
    top.until_end(4).await;
    top.until_line(&["greenroom:", "does not accept the token"]).await;

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, errors) = in_pipe(&["--server", &format!("http://{free}"), "--token", "x"]).await;
    assert_eq!(code, Some(7), "{errors}");
    assert!(errors.contains("cannot reach the server") && errors.contains("refused"), "{errors}");
    let (code, _, errors) = in_pipe(&["--server", &url]).await;
    assert_eq!(code, Some(4), "{errors}");
    assert!(errors.contains("there is no token") && errors.contains("greenroom login"), "{errors}");
}

#[tokio::test]
async fn a_token_that_is_refused_after_a_restart_ends_the_view() {
    let fixture = fixture().await;
    let top = Top::on(&fixture.server.url, &[]);
    top.until_line(&["● live"]).await;
    let ServerFixture { server, database, .. } = fixture;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.kill().await;
    top.until_line(&["reconnecting"]).await;
    let _server =
        Process::start_listening(&database, &address, &["--set", "admin_token=another-token-than-before"]).await;
    top.until_end(4).await;
    top.until_line(&["does not accept the token"]).await;
}
