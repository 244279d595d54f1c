//! Runs the commands of a page, in a folder of their own, as a reader would: in one shell, in order, with this build.
//!
//! - `run`: the commands must succeed
//! - `run=server`: starts a server, which the commands after it use
//! - `run=stop`: stops that server in order
//! - `run=follow`: runs until there is output, or the output that the page shows, and is then stopped
//! - `run=cli`: like `run`, for commands of the remote command line
//! - `file=NAME`, at a block of any language: writes the file
//! - `output`, at a block of any language: what the commands before it must have printed; `…` stands for anything
//!
//! The ports 7700 and 7701 are replaced by free ones, `grk_…` and `gra_…` by the key and the token that the server printed, and
//! `cargo run --release` by this build.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::markdown::{Block, Page};
use super::{Database, in_repository};

/// Longer than any command of a page takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct PageShell {
    path: String,
    port: u16,
    shell: Child,
    server: Option<Child>,
    /// What is replaced in commands and expected output.
    replacements: Vec<(String, String)>,
    /// The output of the last commands.
    output: String,
    blocks: usize,
    has_cli: bool,
    /// Its folder. It also ends the processes of slots that are left.
    database: Database,
}

impl PageShell {
    /// Runs a whole page.
    pub fn run(path: &str) {
        let page = Page::read(path);
        let mut shell = Self::start(path);
        let blocks = page.blocks();
        for (index, block) in blocks.iter().enumerate() {
            shell.run_block(block, blocks.get(index + 1));
        }
        shell.stop_server();
    }

    pub fn start(path: &str) -> Self {
        let database = Database { url: String::new(), folder: tempfile::tempdir().unwrap() };
        let folder = database.folder.path();
        for name in ["bin", "work", "home"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        // Another build can be tried in its place, such as a release.
        let binary = std::env::var("GREENROOM_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_greenroom").to_owned());
        std::os::unix::fs::symlink(&binary, folder.join("bin/greenroom")).unwrap();
        // curl alone succeeds also when the server refuses the call.
        for (name, program) in [("greenroom-agent", "greenroom agent"), ("curl", "/usr/bin/curl --fail-with-body")] {
            let file = folder.join("bin").join(name);
            std::fs::write(&file, format!("#!/bin/sh\nexec {program} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let has_cli = Command::new(&binary).args(["bots", "--help"]).output().unwrap().status.success();

        let port = free_port();
        let log = File::create(folder.join("output")).unwrap();
        let mut bash = command(&database, port, "bash");
        let mut shell =
            bash.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log).process_group(0).spawn().unwrap();
        writeln!(shell.stdin.as_mut().unwrap(), "set -e -o pipefail").unwrap();
        Self {
            path: path.to_owned(),
            port,
            shell,
            server: None,
            replacements: vec![
                ("cargo run --release -- ".to_owned(), "greenroom ".to_owned()),
                ("cargo run --release".to_owned(), "greenroom".to_owned()),
                ("7700".to_owned(), port.to_string()),
                ("7701".to_owned(), free_port().to_string()),
            ],
            output: String::new(),
            blocks: 0,
            has_cli,
            database,
        }
    }

    fn run_block(&mut self, block: &Block, next: Option<&Block>) {
        let place = format!("{}:{}", self.path, block.line);
        let text = self.replace(&block.text);
        if let Some(name) = block.mark("file") {
            let file = self.work().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &text).unwrap();
            if text.starts_with("#!") {
                std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        if block.mark("output").is_some() {
            let shown = missing(&text, &self.output);
            assert!(shown.is_none(), "{place}: no line is like `{}` in\n{}", shown.unwrap(), self.output);
        }
        match block.mark("run") {
            None => {}
            Some("server") => self.start_server(&place, &text),
            Some("stop") => self.stop_server(),
            Some("follow") => {
                let shown = next.filter(|next| next.mark("output").is_some()).map(|next| self.replace(&next.text));
                self.follow(&place, &text, shown.as_deref());
            }
            // The commands are in the documentation before every build has them.
            Some("cli") if !self.has_cli => eprintln!("{place}: left out, because this build has no `greenroom bots`"),
            Some("" | "cli") => self.run_commands(&place, &text),
            Some(other) => panic!("{place}: unknown mark run={other}"),
        }
    }

    fn replace(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    fn work(&self) -> PathBuf {
        self.database.folder.path().join("work")
    }

    /// Writes the commands to a file, so that no command reads its successors as input. Returns its path.
    fn script(&mut self, text: &str) -> PathBuf {
        self.blocks += 1;
        let file = self.database.folder.path().join(format!("commands-{}", self.blocks));
        std::fs::write(&file, text).unwrap();
        file
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.shell.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn run_commands(&mut self, place: &str, text: &str) {
        let file = self.script(text);
        let log = self.database.folder.path().join("output");
        let before = std::fs::read_to_string(&log).unwrap().len();
        let mark = format!("<<{}>>", self.blocks);
        self.tell(&format!(". {} </dev/null; echo '{mark}'", file.display()));
        let read = || String::from_utf8_lossy(&std::fs::read(&log).unwrap()[before..]).into_owned();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((output, _)) = read().split_once(&mark) {
                self.output = output.to_owned();
                return;
            }
            let ended = self.shell.try_wait().unwrap();
            assert!(ended.is_none(), "{place}: failed\n{text}\n{}\n{}", read(), self.server_log());
            assert!(Instant::now() < deadline, "{place}: takes too long\n{text}\n{}", read());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn follow(&mut self, place: &str, text: &str, shown: Option<&str>) {
        let file = self.script(text);
        let log = file.with_extension("output");
        // A job of its own, so that the whole of it can be ended.
        self.tell(&format!(
            "set -m; ( . {} ) </dev/null >{} 2>&1 & followed=$!; set +m",
            file.display(),
            log.display()
        ));
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let deadline = Instant::now() + PATIENCE;
        while shown.map_or(read().is_empty(), |shown| missing(shown, &read()).is_some()) {
            assert!(Instant::now() < deadline, "{place}: shows nothing, or something else\n{text}\n{}", read());
            std::thread::sleep(POLL_INTERVAL);
        }
        self.output = read();
        self.tell("kill -- -$followed; wait $followed || true");
    }

    fn start_server(&mut self, place: &str, text: &str) {
        self.stop_server();
        // It gets what the commands before it have exported.
        let environment = self.database.folder.path().join("environment");
        let output = std::mem::take(&mut self.output);
        self.run_commands(place, &format!("export -p >{}\n", environment.display()));
        self.output = output;
        let file = self.script(&format!(". {}\n{text}", environment.display()));
        let (log, errors) = (file.with_extension("output"), file.with_extension("errors"));
        let mut bash = command(&self.database, self.port, "bash");
        bash.arg(&file).process_group(0).stdin(Stdio::null());
        let server = bash.stdout(File::create(&log).unwrap()).stderr(File::create(&errors).unwrap()).spawn().unwrap();
        self.server = Some(server);
        let read = || std::fs::read_to_string(&log).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !read().lines().any(|line| line == "Ready.") {
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{place}: the server ended\n{text}\n{}{}", read(), self.server_log());
            assert!(Instant::now() < deadline, "{place}: the server does not start\n{}", self.server_log());
            std::thread::sleep(POLL_INTERVAL);
        }
        self.output = read();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        for prefix in ["grk_", "gra_"] {
            let token = self.output.split(|letter| !is_part(letter)).find(|word| word.starts_with(prefix));
            if let Some(token) = token {
                let placeholder = format!("{prefix}…");
                self.replacements.retain(|(from, _)| *from != placeholder);
                self.replacements.push((placeholder, token.to_owned()));
            }
        }
    }

    fn stop_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            let group = group(&server);
            let _ = killpg(group, Signal::SIGTERM);
            server.wait().unwrap();
            // That was the shell, which may end before the server.
            let deadline = Instant::now() + PATIENCE;
            while killpg(group, None).is_ok() {
                assert!(Instant::now() < deadline, "{}: the server does not stop", self.path);
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    fn server_log(&self) -> String {
        let folder = std::fs::read_dir(self.database.folder.path()).unwrap().flatten().map(|entry| entry.path());
        let logs = folder.filter(|path| path.extension().is_some_and(|extension| extension == "errors"));
        logs.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for PageShell {
    fn drop(&mut self) {
        let _ = killpg(group(&self.shell), Signal::SIGKILL);
        let _ = self.shell.wait();
        if let Some(mut server) = self.server.take() {
            let _ = killpg(group(&server), Signal::SIGKILL);
            let _ = server.wait();
        }
    }
}

fn group(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// A command with nothing of this machine's environment but the servers that the tests use.
fn command(database: &Database, port: u16, program: &str) -> Command {
    let folder = database.folder.path();
    let postgres = std::env::var("POSTGRES_BIN").unwrap_or_default();
    let mut command = Command::new(program);
    command.env_clear().current_dir(folder.join("work"));
    command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:{postgres}", folder.join("bin").display()));
    command.env("HOME", folder.join("home")).env("LANG", "C.UTF-8").env("NO_COLOR", "1");
    command.env("GREENROOM_LISTEN", format!("127.0.0.1:{port}"));
    command.env("REPOSITORY", in_repository("").canonicalize().unwrap());
    for name in ["TEST_POSTGRES_URL", "TEST_DOCKER_HOST", "TEST_DOCKER_GATEWAY", "TEST_MOTO_URL", "TEST_NODE_PACKAGES"]
    {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// Below the ports that the kernel gives to outgoing connections, which could take it before the server does.
fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| 16_384 + (uuid::Uuid::new_v4().as_u128() % 16_384) as u16);
    ports.take(100).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap()
}

/// The first line that the output lacks. The lines must come in order, with any other lines between them.
fn missing<'a>(shown: &'a str, output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    let mut wanted = shown.lines().map(str::trim).filter(|line| !line.is_empty());
    wanted.find(|wanted| !lines.any(|line| is_like(wanted, line.trim())))
}

/// Whether a line is like a pattern, in which `…` stands for any text. Spaces count as one.
fn is_like(pattern: &str, line: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, line) = (plain(pattern), plain(line));
    let parts: Vec<&str> = pattern.split('…').collect();
    let [first, middle @ .., last] = parts.as_slice() else { return pattern == line };
    let Some(mut rest) = line.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

#[test]
fn output_is_compared_line_by_line_and_dots_stand_for_anything() {
    assert!(is_like("a … c", "a  b c") && is_like("…", "") && is_like("a", "a"));
    assert!(!is_like("a … c", "a b") && !is_like("a", "ab"));
    assert_eq!(missing("one\nthree …\n", "one\ntwo\nthree 4\n"), None);
    assert_eq!(missing("three …\none\n", "one\ntwo\nthree 4\n"), Some("one"));
}
