//! Records a command in a terminal: each picture as text, and pictures as SVG. `scripts/frames` uses it.
//!
//! Without steps it records until the command ends. Each step is an argument:
//!
//! - `wait:TEXT` waits until the text is on the screen
//! - `key:KEYS` types, for example `key:3` or `key:<enter>`
//! - `show:NAME` writes the screen as NAME.txt and NAME.svg

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use pty::{PseudoTerminal, Size, svg::svg};

/// How long a step or the command may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the screen is looked at.
const EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Parser)]
struct Options {
    /// Columns and rows of the terminal.
    #[arg(long, default_value = "120x36", value_parser = size)]
    size: Size,
    /// The folder for the pictures.
    #[arg(long, default_value = ".")]
    folder: PathBuf,
    /// The name of the file with every picture as text, and of the last picture.
    #[arg(long)]
    name: String,
    /// The title above the pictures. Default: the command.
    #[arg(long)]
    title: Option<String>,
    /// What to do, in this order.
    #[arg(long = "step")]
    steps: Vec<String>,
    /// The command and its arguments.
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

fn size(text: &str) -> Result<Size, String> {
    let parsed = text.split_once('x').and_then(|(columns, rows)| Some((columns.parse().ok()?, rows.parse().ok()?)));
    let (columns, rows) = parsed.ok_or("expected COLUMNSxROWS, for example 120x36")?;
    Ok(Size { columns, rows })
}

fn main() -> io::Result<()> {
    let options = Options::parse();
    let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().filter(|(name, _)| name != "NO_COLOR").collect();
    variables.push(("TERM".into(), "xterm-256color".into()));
    let terminal = PseudoTerminal::start(&options.command, variables, options.size)?;
    let mut recording = Recording { terminal, frames: Vec::new(), begun: Instant::now(), options };
    recording.run()
}

struct Recording {
    terminal: PseudoTerminal,
    /// When the screen changed, and what it showed.
    frames: Vec<(Duration, String)>,
    begun: Instant,
    options: Options,
}

impl Recording {
    fn run(&mut self) -> io::Result<()> {
        if self.options.steps.is_empty() {
            self.watch("the command ends", |recording| Ok(recording.terminal.ended()?.is_some()))?;
        }
        for step in self.options.steps.clone() {
            match step.split_once(':') {
                Some(("wait", text)) => self.watch(&step, |recording| Ok(recording.terminal.text().contains(text)))?,
                Some(("key", keys)) => self.terminal.send(bytes(keys))?,
                Some(("show", name)) => self.write_picture(name)?,
                _ => return Err(io::Error::other(format!("unknown step {step}"))),
            }
        }
        // What the command drew last may not be read yet.
        std::thread::sleep(EVERY);
        self.note();
        let text: Vec<String> = self
            .frames
            .iter()
            .map(|(at, text)| format!("--- {:.1} s ---\n{}\n", at.as_secs_f64(), text.trim_end()))
            .collect();
        std::fs::write(self.file(&self.options.name, "frames.txt"), text.join("\n"))?;
        let (name, has_shown) =
            (self.options.name.clone(), self.options.steps.iter().any(|step| step.starts_with("show:")));
        if has_shown { Ok(()) } else { self.write_picture(&name) }
    }

    /// Records until a condition is true.
    fn watch(&mut self, what: &str, is_so: impl Fn(&mut Self) -> io::Result<bool>) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let done = is_so(self)?;
            self.note();
            if done {
                return Ok(());
            }
            let problem = if self.terminal.ended()?.is_some() { "the command ended" } else { "timeout" };
            if problem != "timeout" || Instant::now() > deadline {
                return Err(io::Error::other(format!("{problem} before: {what}\n{}", self.terminal.text())));
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Keeps the screen, if it has changed.
    fn note(&mut self) {
        let text = self.terminal.text();
        if self.frames.last().is_none_or(|(_, last)| *last != text) {
            self.frames.push((self.begun.elapsed(), text));
        }
    }

    fn file(&self, name: &str, ending: &str) -> PathBuf {
        Path::new(&self.options.folder).join(format!("{name}.{ending}"))
    }

    fn write_picture(&mut self, name: &str) -> io::Result<()> {
        // A key has its effect within a picture or two.
        std::thread::sleep(5 * EVERY);
        self.note();
        let command: Vec<_> = self.options.command.iter().map(|word| word.to_string_lossy()).collect();
        let title = self.options.title.clone().unwrap_or_else(|| command.join(" "));
        std::fs::write(self.file(name, "txt"), format!("{}\n", self.terminal.text().trim_end()))?;
        std::fs::write(self.file(name, "svg"), svg(&self.terminal.screen(), &title))
    }
}

/// The bytes that a terminal sends for these keys.
fn bytes(keys: &str) -> Vec<u8> {
    let named = [("<enter>", "\r"), ("<tab>", "\t"), ("<esc>", "\x1b"), ("<down>", "\x1b[B"), ("<up>", "\x1b[A")];
    named.iter().fold(keys.to_owned(), |keys, (name, sent)| keys.replace(name, sent)).into_bytes()
}
