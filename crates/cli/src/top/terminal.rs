//! Takes the terminal, and gives it back as it was: at the end, after an error, and when the program panics.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

/// Whether the terminal is in the state of the view.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();

/// The terminal while the view has it.
#[derive(Debug)]
pub struct TakenTerminal {
    pub terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl TakenTerminal {
    pub fn take() -> io::Result<Self> {
        PANIC_HOOK.call_once(|| {
            let earlier = std::panic::take_hook();
            // The message of a panic is readable only on the usual screen.
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                earlier(panic);
            }));
        });
        IS_TAKEN.store(true, Ordering::SeqCst);
        let taken = enable_raw_mode().and_then(|()| execute!(io::stdout(), EnterAlternateScreen, Hide));
        // One write for each picture, so that it appears at once.
        let backend = CrosstermBackend::new(BufWriter::with_capacity(64 * 1024, io::stdout()));
        match taken.and_then(|()| Terminal::new(backend)) {
            Ok(terminal) => Ok(Self { terminal }),
            Err(error) => {
                give_back();
                Err(error)
            }
        }
    }
}

impl Drop for TakenTerminal {
    fn drop(&mut self) {
        // Nothing may be written after the usual screen is back.
        let _ = self.terminal.backend_mut().flush();
        give_back();
    }
}

/// Does nothing when the terminal is not taken. An error is ignored: a terminal that is gone needs nothing.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsString;
    use std::time::{Duration, Instant};

    use pty::{PseudoTerminal, Size};

    use super::*;

    #[test]
    #[ignore = "the next test runs it in a terminal"]
    fn panics_with_the_terminal() {
        let _taken = TakenTerminal::take().unwrap();
        panic!("something is wrong");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_and_is_readable() {
        let mut program: Vec<OsString> =
            ["sh", "-c", "\"$@\"; echo ended; read wait", "sh"].map(OsString::from).to_vec();
        program.push(std::env::current_exe().unwrap().into());
        program.extend(["--ignored", "--nocapture", "panics_with_the_terminal"].map(OsString::from));
        let variables = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("TERM", "xterm-256color")];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let terminal = PseudoTerminal::start(&program, variables, Size { columns: 100, rows: 30 }).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !terminal.text().contains("ended") {
            assert!(Instant::now() < deadline, "{}", terminal.text());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(terminal.text().contains("something is wrong"), "{}", terminal.text());
        assert!(terminal.is_restored().unwrap(), "{}", terminal.text());
    }
}
