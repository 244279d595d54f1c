//! The command line in a real terminal: progress that updates, prompts without echo, tables of its width, Ctrl-C.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{ADMIN_TOKEN, Backend, CommandLine, Database, Life, Process, Terminal, found, meet_link, plain};

async fn start() -> (Database, Process, CommandLine) {
    let database = Database::new(Backend::Sqlite).await;
    let server = Process::start(&database).await;
    let user = server.admin().user(100).await;
    let cli = CommandLine::new(&server.url, user.token());
    (database, server, cli)
}

/// The bot that was started last.
async fn newest(server: &Process) -> String {
    server.admin().get("/admin/bots").await["bots"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn start_and_wait_shows_each_state_with_its_time_and_leaves_a_tidy_screen() {
    let (_database, server, cli) = start().await;
    let terminal = cli.terminal(100, &["bots", "start", &meet_link(1), "--wait"]);
    terminal.shows("deploying").await;
    let bot = newest(&server).await;
    let life = Life::assign(&server.admin(), &bot).await;
    life.report("started", json!({})).await;
    terminal.shows("starting").await;
    life.report("status", json!({"status": "awaiting_admission"})).await;
    terminal.shows("awaiting_admission").await;
    life.report("joined", json!({})).await;
    terminal.shows("active").await;
    // The time of the present state counts on.
    found("the time of the state counts on", async || {
        let text = terminal.text();
        let times = text.split("active").skip(1).filter_map(|rest| rest.split_whitespace().next().map(str::to_owned));
        (times.collect::<std::collections::BTreeSet<_>>().len() > 3).then_some(())
    })
    .await;
    life.report("exited", json!({"exit_code": 0})).await;
    let (code, raw) = terminal.ends().await;
    assert_eq!(code, 0, "{raw}");
    let text = plain(&raw);
    assert!(text.contains(&bot) && text.contains("The bot has completed: finished."), "{text}");
    for status in ["starting", "awaiting_admission", "active"] {
        let line = text.lines().rfind(|line| line.trim_start().starts_with(status));
        assert!(line.is_some_and(|line| line.contains('s')), "{status}: {text}");
    }
    assert!(raw.contains("\u{1b}[32m"), "an active bot is green: {raw:?}");
}

#[tokio::test]
async fn ctrl_c_ends_the_waiting_and_not_the_bot_and_says_so() {
    let (_database, server, cli) = start().await;
    for arguments in [vec!["bots", "start", "https://meet.google.com/abc-defg-hij", "--wait"]] {
        let mut terminal = cli.terminal(100, &arguments);
        terminal.shows("deploying").await;
        let bot = newest(&server).await;
        terminal.types("\u{3}");
        let (code, raw) = terminal.ends().await;
        assert_eq!(code, 130, "{raw}");
        assert!(plain(&raw).contains("\n  deploying "), "the last state stays: {raw}");
        assert!(plain(&raw).contains("stopped waiting; the bot goes on"), "{raw}");
        assert!(plain(&raw).contains(&format!("greenroom bots stop {bot}")), "{raw}");
        let status = server.admin().get(&format!("/admin/bots/{bot}")).await["bot"]["status"].take();
        assert!(status != "stopping" && status != "completed", "{status}");
    }
    // The same without a terminal, as a script's parent does it.
    let mut command = cli.command();
    let mut child = command.args(["bots", "watch", &newest(&server).await]).stderr(std::process::Stdio::piped());
    child = child.stdout(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut first = [0; 10];
    tokio::io::AsyncReadExt::read_exact(child.stdout.as_mut().unwrap(), &mut first).await.unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
    nix::sys::signal::kill(pid, Signal::SIGINT).unwrap();
    let output = child.wait_with_output().await.unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
}

#[tokio::test]
async fn login_asks_without_showing_what_is_typed_and_leaves_the_terminal_as_it_was() {
    let (_database, _server, user) = start().await;
    let cli = CommandLine::new(&user.server, "");
    let mut terminal = cli.terminal(100, &["login"]);
    terminal.shows("(not shown): ").await;
    // A mistake is taken back.
    terminal.types("x\u{7f}");
    terminal.types(&format!("{}\r", user.token));
    let (code, raw) = terminal.ends().await;
    assert_eq!(code, 0, "{raw}");
    assert!(!raw.contains(&user.token), "the token is shown: {raw}");
    assert!(plain(&raw).contains("Signed in to"), "{raw}");
    let (code, raw) = cli.terminal(100, &["whoami"]).ends().await;
    assert!(code == 0 && plain(&raw).contains("0 of 100"), "{raw}");

    // Ctrl-C changes nothing.
    let other = CommandLine::new(&user.server, "");
    let mut terminal = other.terminal(100, &["login"]);
    terminal.shows("(not shown): ").await;
    terminal.types("grk_half\u{3}");
    let (code, raw) = terminal.ends().await;
    assert_eq!(code, 130, "{raw}");
    assert!(!raw.contains("grk_half") && !other.home.path().join(".config").exists(), "{raw}");
    // The terminal is as it was: a shell sees its echo.
    let mut shell = other.command();
    shell.env("TERM", "xterm");
    let script = format!(
        "'{}' login --server {} </dev/tty; stty -a | grep -o -- '-*echo ' | head -1; exit 0",
        env!("CARGO_BIN_EXE_greenroom"),
        user.server
    );
    let mut inside = tokio::process::Command::new("/bin/sh");
    inside.env("PATH", "/usr/bin:/bin").env("HOME", other.home.path()).current_dir(other.home.path());
    let mut terminal = Terminal::start(&mut inside, 100, &["-c", &script]);
    terminal.shows("(not shown): ").await;
    terminal.types("\u{3}");
    let (_, raw) = terminal.ends().await;
    assert!(plain(&raw).lines().any(|line| line.trim() == "echo"), "{raw:?}");
}

#[tokio::test]
async fn a_table_fits_the_window_with_short_ids_and_has_colour_only_if_wanted() {
    let (_database, server, cli) = start().await;
    for number in 0..20 {
        cli.ok(&["bots", "start", &meet_link(number), "--name", "A rather long name of a bot that takes notes"]).await;
    }
    let bots = server.admin().get("/admin/bots?limit=1").await;
    let id = bots["bots"][0]["id"].as_str().unwrap();
    for columns in [40, 80, 200] {
        for (cli, arguments) in [
            (&cli, ["bots", "list"]),
            (&cli.with(ADMIN_TOKEN), ["bots", "list"]),
            (&cli.with(ADMIN_TOKEN), ["slots", "list"]),
            (&cli.with(ADMIN_TOKEN), ["pools", "list"]),
        ] {
            let (code, raw) = cli.terminal(columns, &arguments).ends().await;
            assert_eq!(code, 0, "{raw}");
            for line in plain(&raw).lines() {
                assert!(line.chars().count() <= usize::from(columns), "{columns}: {line}");
            }
            assert!(raw.contains('\u{1b}'), "{raw:?}");
        }
    }
    let (_, raw) = cli.terminal(200, &["bots", "list"]).ends().await;
    assert!(raw.contains(&id[..13]) && !raw.contains(id), "ids are short: {raw}");
    // What is shown can be used.
    let shown = plain(&raw).lines().find(|line| line.starts_with(&id[..13])).unwrap().to_owned();
    let short = shown.split_whitespace().next().unwrap();
    assert_eq!(cli.run(&["bots", "show", short, "--json"]).await.json()["bot"]["id"], json!(id));

    let mut command = cli.command();
    command.env("TERM", "xterm-256color").env("NO_COLOR", "1");
    let (_, raw) = Terminal::start(&mut command, 100, &["bots", "list"]).ends().await;
    assert!(raw.contains("STATUS") && !raw.contains('\u{1b}'), "{raw:?}");
}
