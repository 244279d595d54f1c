//! Completions: the script for a shell, and the candidates that come from the server. A shell waits for them, so the
//! server has little time, and an error means no candidates.

use std::ffi::OsStr;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::Shells;
use serde_json::Value;

use crate::client::{Client, Query, Token};
use crate::error::{CliError, Done};
use crate::options::RemoteOptions;
use crate::pages::rows;
use crate::show::{clean, text};

const LIMIT: Duration = Duration::from_millis(800);
/// More candidates than this help nobody.
const MOST: usize = 200;
/// Tells this program that a shell asks for candidates.
const VARIABLE: &str = "GREENROOM_COMPLETE";

pub const BOT_STATUSES: [&str; 11] = [
    "scheduled",
    "reserved",
    "queued",
    "deploying",
    "starting",
    "awaiting_admission",
    "needs_help",
    "active",
    "stopping",
    "completed",
    "failed",
];
pub const SLOT_STATUSES: [&str; 5] = ["creating", "idle", "busy", "error", "draining"];

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_name = "SHELL", value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

impl Completions {
    /// Prints the script.
    pub fn run(&self) -> Done {
        let shells = Shells::builtins();
        let shell = shells
            .completer(&self.shell)
            .ok_or_else(|| CliError::usage(format!("there are no completions for {}", self.shell)))?;
        let mut script = Vec::new();
        shell.write_registration(VARIABLE, "greenroom", "greenroom", "greenroom", &mut script)?;
        std::io::stdout().write_all(&script).map_err(Into::into)
    }
}

/// Answers a shell that asks for candidates, and ends the process then.
pub fn answer(command: fn() -> clap::Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Which list has the candidates.
#[derive(Clone, Copy, Debug)]
enum Source {
    Bots,
    Pools,
    Slots,
    Users,
    Keepers,
}

pub fn bots() -> ArgValueCompleter {
    from_server(&[Source::Bots])
}

pub fn pools() -> ArgValueCompleter {
    from_server(&[Source::Pools])
}

pub fn slots() -> ArgValueCompleter {
    from_server(&[Source::Slots])
}

pub fn users() -> ArgValueCompleter {
    from_server(&[Source::Users])
}

pub fn keepers() -> ArgValueCompleter {
    from_server(&[Source::Keepers])
}

/// Everything that the dashboard has a page for.
pub fn things() -> ArgValueCompleter {
    from_server(&[Source::Bots, Source::Pools, Source::Slots])
}

pub fn words(words: &'static [&'static str]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let current = current.to_string_lossy();
        let fitting = words.iter().filter(|word| word.starts_with(&*current));
        fitting.map(|word| CompletionCandidate::new(*word)).collect()
    })
}

fn from_server(sources: &'static [Source]) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| candidates(sources, &current.to_string_lossy()).unwrap_or_default())
}

/// `None` for every kind of failure: a prompt is no place for errors.
fn candidates(sources: &[Source], current: &str) -> Option<Vec<CompletionCandidate>> {
    let client = typed_options().client().ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let found = runtime.block_on(async {
        let all = async {
            let mut found = Vec::new();
            for source in sources {
                found.extend(source.read(&client).await.unwrap_or_default());
            }
            found
        };
        tokio::time::timeout(LIMIT, all).await.ok()
    });
    runtime.shutdown_background();
    let fitting = found?.into_iter().filter(|(name, _)| name.starts_with(current)).take(MOST);
    Some(fitting.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect())
}

impl Source {
    /// Names, each with a few words about it.
    async fn read(self, client: &Client) -> Result<Vec<(String, String)>, CliError> {
        let newest: Query<'_> = &[("limit", "100".to_owned())];
        let operators = |list: &'static str| ["admin", list];
        if !client.is_operator() && !matches!(self, Source::Bots) {
            return Ok(Vec::new());
        }
        let (answer, list) = match self {
            Source::Bots => (client.get_within(&client.bots(&[]), newest, LIMIT).await?, "bots"),
            Source::Pools => (client.get_within(&operators("pools"), &[], LIMIT).await?, "pools"),
            Source::Slots => (client.get_within(&operators("slots"), &[], LIMIT).await?, "slots"),
            Source::Users => (client.get_within(&operators("users"), &[], LIMIT).await?, "users"),
            Source::Keepers => (client.get_within(&operators("keepers"), &[], LIMIT).await?, "keepers"),
        };
        Ok(rows(&answer, list).iter().map(|row| self.candidate(row)).collect())
    }

    fn candidate(self, row: &Value) -> (String, String) {
        let (name, help) = match self {
            Source::Bots => ("id", format!("{} {}", text(&row["status"]), text(&row["native_meeting_id"]))),
            Source::Pools => ("name", format!("{} {}", text(&row["provider"]), text(&row["platform"]))),
            Source::Slots => ("name", text(&row["status"])),
            Source::Users => ("email", text(&row["name"])),
            Source::Keepers => ("name", String::new()),
        };
        // The shell prints both.
        (clean(&text(&row[name])), clean(&help))
    }
}

/// The options that are already on the line, which is half a command and so cannot be parsed as one.
fn typed_options() -> RemoteOptions {
    let words: Vec<String> = std::env::args().skip_while(|word| word != "--").skip(1).collect();
    let value = |name: &str| {
        let spelled = words.iter().position(|word| word == name).and_then(|place| words.get(place + 1)).cloned();
        spelled.or_else(|| words.iter().find_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned())))
    };
    RemoteOptions {
        server: value("--server"),
        token: value("--token").map(Token::from),
        profile: value("--profile"),
        json: false,
    }
}
