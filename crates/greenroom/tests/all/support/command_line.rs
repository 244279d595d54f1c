//! The command line as a script uses it, through pipes, and as a person uses it, in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{Process, found};

/// Where commands find their server, their token and their profiles.
#[derive(Debug)]
pub struct CommandLine {
    pub server: String,
    pub token: String,
    pub home: tempfile::TempDir,
}

/// What a command printed, and its exit code.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// One object per line.
    pub fn json_lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl CommandLine {
    pub fn new(server: &str, token: &str) -> Self {
        Self { server: server.to_owned(), token: token.to_owned(), home: tempfile::tempdir().unwrap() }
    }

    /// The same server with another token.
    pub fn with(&self, token: &str) -> Self {
        Self::new(&self.server, token)
    }

    pub fn command(&self) -> Command {
        let mut command = Process::command();
        command.env("HOME", self.home.path()).env("GREENROOM_SERVER", &self.server);
        if !self.token.is_empty() {
            command.env("GREENROOM_TOKEN", &self.token);
        }
        command.current_dir(self.home.path());
        command
    }

    /// Runs a command with its output in pipes.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with_input(arguments, "").await
    }

    pub async fn run_with_input(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that reads nothing may have ended.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stdin, input.as_bytes()).await;
        drop(stdin);
        let Output { status, stdout, stderr } = child.wait_with_output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub async fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.out
    }

    /// Runs a line in a shell, in which `greenroom` is this program.
    pub async fn shell(&self, line: &str) -> Ran {
        let function = format!("greenroom() {{ '{}' \"$@\"; }}\n{line}", env!("CARGO_BIN_EXE_greenroom"));
        let mut command = Command::new("bash");
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.home.path());
        command.env("GREENROOM_SERVER", &self.server).env("GREENROOM_TOKEN", &self.token);
        let Output { status, stdout, stderr } = command.args(["-c", &function]).output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: status.code().unwrap_or(-1), out: text(stdout), err: text(stderr) }
    }

    /// Starts a command in a terminal of this width.
    pub fn terminal(&self, columns: u16, arguments: &[&str]) -> Terminal {
        Terminal::start(self.command().env("TERM", "xterm-256color"), columns, arguments)
    }
}

/// A command in a pseudo-terminal, with a person who reads and types.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    /// Ends when the command has closed the terminal, and everything is read.
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    pub fn start(command: &mut Command, columns: u16, arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        // The terminal must be the controlling one, so that Ctrl-C becomes a signal.
        let mut inside = Command::new("setsid");
        inside.args(["--ctty", command.as_std().get_program().to_str().unwrap()]).args(arguments).env_clear();
        for (name, value) in command.as_std().get_envs() {
            inside.env(name, value.unwrap());
        }
        inside.current_dir(command.as_std().get_current_dir().unwrap()).kill_on_drop(true);
        inside.stdin(pty.slave.try_clone().unwrap()).stdout(pty.slave.try_clone().unwrap()).stderr(pty.slave);
        let child = inside.spawn().unwrap();
        drop(inside);
        let (keyboard, mut display) = (File::from(pty.master.try_clone().unwrap()), File::from(pty.master));
        let screen = Arc::new(Mutex::new(Vec::new()));
        let reader = std::thread::spawn({
            let screen = screen.clone();
            move || {
                let mut bytes = [0; 4096];
                // The kernel reports an error when the command has closed the terminal.
                while let Ok(count @ 1..) = display.read(&mut bytes) {
                    screen.lock().unwrap().extend_from_slice(&bytes[..count]);
                }
            }
        });
        Self { child, keyboard, screen, reader }
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Everything that the terminal got, with its control sequences.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// The same without colours and movements of the cursor.
    pub fn text(&self) -> String {
        plain(&self.raw())
    }

    /// Waits until the terminal shows a text.
    pub async fn shows(&self, text: &str) {
        let shown = tokio::time::timeout(std::time::Duration::from_secs(60), async {
            while !self.text().contains(text) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        });
        assert!(shown.await.is_ok(), "the terminal does not show {text:?}: {:?}", self.text());
    }

    /// Waits for the end of the command. Returns its exit code and everything that it showed.
    pub async fn ends(mut self) -> (i32, String) {
        let code = self.child.wait().await.unwrap().code().unwrap_or(-1);
        found("the whole output is read", async || self.reader.is_finished().then_some(())).await;
        (code, self.raw())
    }
}

/// Text without escape sequences, with carriage returns as new lines.
pub fn plain(raw: &str) -> String {
    let (mut text, mut characters) = (String::new(), raw.chars().peekable());
    while let Some(c) = characters.next() {
        match c {
            '\u{1b}' => {
                if characters.next() == Some('[') {
                    // Ends with a letter.
                    for c in characters.by_ref() {
                        if c.is_ascii_alphabetic() {
                            break;
                        }
                    }
                }
            }
            '\r' => text.push('\n'),
            c => text.push(c),
        }
    }
    text
}
