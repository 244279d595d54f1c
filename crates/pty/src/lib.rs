//! Runs a command in a pseudo-terminal and reads what it draws, as a person at a terminal sees it. Tests compare the
//! screen, and `scripts/frames` makes pictures of it.
//!
//! - this file: the pseudo-terminal
//! - [`mod@svg`]: the screen as a picture

pub mod svg;

pub use vt100::Color;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::ttyname;

/// How many columns and rows a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

impl Size {
    fn for_screen(self) -> (NonZeroU16, NonZeroU16) {
        (
            NonZeroU16::new(self.rows).unwrap_or(NonZeroU16::MIN),
            NonZeroU16::new(self.columns).unwrap_or(NonZeroU16::MIN),
        )
    }
}

/// A command in a pseudo-terminal. The command is killed when this is dropped.
pub struct PseudoTerminal {
    child: Child,
    keyboard: File,
    path: PathBuf,
    screen: Arc<Mutex<vt100::Parser>>,
    settings_at_start: Termios,
}

impl std::fmt::Debug for PseudoTerminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PseudoTerminal").field("child", &self.child).finish_non_exhaustive()
    }
}

impl PseudoTerminal {
    /// Starts a program with these variables and no others.
    pub fn start(
        program: &[OsString],
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        size: Size,
    ) -> io::Result<Self> {
        let window = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        let both = openpty(&window, None)?;
        let (path, settings_at_start) = (ttyname(&both.slave)?, tcgetattr(&both.slave)?);
        let stdio = |from: &OwnedFd| from.try_clone().map(Stdio::from);
        // Only with a controlling terminal does the program hear of a new size.
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(program)
            .env_clear()
            .envs(variables)
            .stdin(stdio(&both.slave)?)
            .stdout(stdio(&both.slave)?)
            .stderr(stdio(&both.slave)?)
            .spawn()?;
        let (rows, columns) = size.for_screen();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 1_000)));
        let keyboard = File::from(both.master);
        let (mut output, drawn) = (keyboard.try_clone()?, screen.clone());
        std::thread::spawn(move || {
            let mut part = [0; 16 * 1024];
            // Linux reports an error when the last program has closed the terminal.
            while let Ok(length @ 1..) = output.read(&mut part) {
                drawn.lock().unwrap_or_else(PoisonError::into_inner).process(&part[..length]);
            }
        });
        Ok(Self { child, keyboard, path, screen, settings_at_start })
    }

    fn parser(&self) -> MutexGuard<'_, vt100::Parser> {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The screen as it is now.
    pub fn screen(&self) -> vt100::Screen {
        self.parser().screen().clone()
    }

    /// The text on the screen, line by line.
    pub fn text(&self) -> String {
        self.parser().screen().contents()
    }

    /// Types these bytes.
    pub fn send(&mut self, keys: impl AsRef<[u8]>) -> io::Result<()> {
        self.keyboard.write_all(keys.as_ref())
    }

    /// Changes the size, as a person does who pulls at the window.
    pub fn resize(&mut self, size: Size) -> io::Result<()> {
        let (rows, columns) = size.for_screen();
        self.parser().screen_mut().set_size(rows, columns);
        let (rows, columns) = (size.rows.to_string(), size.columns.to_string());
        let done = Command::new("stty").arg("-F").arg(&self.path).args(["rows", &rows, "cols", &columns]).status()?;
        if done.success() { Ok(()) } else { Err(io::Error::other("stty failed")) }
    }

    /// The process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How the program ended. `None` while it runs.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Whether the terminal is as the program found it: its settings, the usual screen, and a visible cursor. When the
    /// first program of a terminal ends, the system resets the settings: start what is tested from a shell.
    pub fn is_restored(&self) -> io::Result<bool> {
        let settings = tcgetattr(&self.keyboard)?;
        let screen = self.screen();
        Ok(settings == self.settings_at_start && !screen.alternate_screen() && !screen.hide_cursor())
    }
}

impl Drop for PseudoTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
