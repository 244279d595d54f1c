//! `login`, `logout`, `whoami`: profiles, and whose token is used.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;

use clap::Args;
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use crate::client::{Client, Token, is_exposed};
use crate::error::{CliError, Done, Exit};
use crate::options::{DEFAULT_SERVER, RemoteOptions, trimmed, variable};
use crate::pages::rows;
use crate::profiles::{DEFAULT_NAME, Profile, Profiles};
use crate::show::{Tone, text};

#[derive(Debug, Args)]
#[group(skip)]
pub struct Login {
    /// Read the token from standard input, also when it is a terminal.
    #[arg(long)]
    token_stdin: bool,
}

#[derive(Debug, Args)]
#[group(skip)]
pub struct Logout {
    /// Remove all profiles.
    #[arg(long, conflicts_with = "profile")]
    all: bool,
}

/// Whose token it is.
struct Identity {
    kind: &'static str,
    answer: Value,
}

impl Login {
    pub async fn run(self, options: &RemoteOptions) -> Done {
        let out = options.output();
        let name = options.profile_asked().unwrap_or_else(|| DEFAULT_NAME.to_owned());
        let known = Profiles::read()?.profiles.get(&name).map(|profile| profile.server.clone());
        // A new profile has no server yet, so the variable counts for it.
        let server = options.server_asked().or(known).or_else(|| variable("GREENROOM_SERVER"));
        let server = trimmed(&server.unwrap_or_else(|| DEFAULT_SERVER.to_owned()));
        // Before the person types, so that a wrong address is not asked a token for.
        Client::new(&server, None)?.get(&["healthz"], &[]).await?;
        let token = match &options.token {
            Some(token) if !self.token_stdin => token.clone(),
            _ => read_token(&server, self.token_stdin)?,
        };
        if token.reveal().is_empty() {
            return Err(CliError::usage("there is no token")
                .next("The first start of a server prints an admin token and an API key."));
        }
        let client = Client::new(&server, Some(token.clone()))?;
        let identity = identify(&client).await?;
        // A person may take minutes to type a token, so the file is read again.
        let lock = Profiles::lock()?;
        let mut profiles = Profiles::read()?;
        profiles.profiles.insert(name.clone(), Profile { server: server.clone(), token });
        profiles.current = Some(name.clone());
        let file = profiles.write()?;
        drop(lock);
        if is_exposed(&server) {
            out.note("The server is used over http://, so others on the network can read the token. Prefer https://.");
        }
        if out.json {
            return out.answer(&json!({"server": server, "profile": name, "kind": identity.kind}));
        }
        out.line(&format!("Signed in to {server} as {} (profile {name}).", identity.kind))?;
        out.note(&format!("The token is in {}. Next: `greenroom bots start LINK --wait`.", file.display()));
        Ok(())
    }
}

impl Logout {
    pub fn run(self, options: &RemoteOptions) -> Done {
        let out = options.output();
        // Where there is nothing to remove, nothing is made.
        let _lock = if Profiles::read()?.profiles.is_empty() { None } else { Some(Profiles::lock()?) };
        let mut profiles = Profiles::read()?;
        let asked = options.profile_asked();
        let removed: Vec<String> = match (self.all, asked.or(profiles.current.clone())) {
            (true, _) => profiles.profiles.keys().cloned().collect(),
            (false, Some(name)) if profiles.profiles.contains_key(&name) => vec![name],
            (false, Some(name)) => return Err(CliError::not_found(format!("there is no profile {name}"))),
            (false, None) => Vec::new(),
        };
        for name in &removed {
            profiles.profiles.remove(name);
        }
        if profiles.current.as_ref().is_some_and(|current| !profiles.profiles.contains_key(current)) {
            profiles.current = profiles.profiles.keys().next().cloned();
        }
        if !removed.is_empty() {
            profiles.write()?;
        }
        if out.json {
            return out.answer(&json!({"removed": removed, "current": profiles.current}));
        }
        match removed.as_slice() {
            [] => out.line("There is no profile to remove."),
            names => out.line(&format!("Removed {}. The token itself stays valid.", names.join(", "))),
        }
    }
}

/// Checks the token by a call that only its kind may make.
async fn identify(client: &Client) -> Result<Identity, CliError> {
    match client.is_operator() {
        true => Ok(Identity { kind: "operator", answer: client.get(&["admin", "pools"], &[]).await? }),
        false => Ok(Identity { kind: "user", answer: client.get(&["bots", "status"], &[]).await? }),
    }
}

pub async fn whoami(options: &RemoteOptions) -> Done {
    let (out, target, client) = (options.output(), options.target()?, options.client()?);
    let Identity { kind, answer } = identify(&client).await?;
    let health = client.get(&["healthz"], &[]).await?;
    let mut shown = json!({
        "server": target.server, "version": health["version"], "profile": target.profile, "kind": kind,
    });
    if kind == "user" {
        // No call tells a user its own id, but its bots have it.
        let bots = client.get(&["bots"], &[("limit", "1".to_owned())]).await?;
        shown["user_id"] = rows(&bots, "bots").first().map_or(Value::Null, |bot| bot["user_id"].clone());
        shown["running"] = answer["running"].clone();
        shown["max_concurrent_bots"] = answer["max_concurrent_bots"].clone();
    }
    if out.json {
        return out.answer(&shown);
    }
    out.field("signed in as", kind, Tone::Strong)?;
    out.field("server", &target.server, Tone::Plain)?;
    out.field("version", &text(&shown["version"]), Tone::Plain)?;
    out.field("profile", &target.profile.unwrap_or_else(|| "none".to_owned()), Tone::Plain)?;
    if kind == "user" {
        if shown["user_id"].is_string() {
            out.field("user", &text(&shown["user_id"]), Tone::Plain)?;
        }
        let limit = format!("{} of {}", text(&shown["running"]), text(&shown["max_concurrent_bots"]));
        out.field("bots", &limit, Tone::Plain)?;
    }
    Ok(())
}

/// Reads the token from a pipe, or from a person without showing it.
fn read_token(server: &str, from_stdin: bool) -> Result<Token, CliError> {
    let stdin = io::stdin();
    let unreadable = |error: io::Error| CliError::failed(format!("cannot read the token: {error}"));
    if from_stdin || !stdin.is_terminal() {
        let mut line = String::new();
        stdin.read_line(&mut line).map_err(unreadable)?;
        return Ok(Token::from(line));
    }
    let mut err = io::stderr();
    let _ = write!(err, "Admin token or API key for {server} (not shown): ");
    let _ = err.flush();
    let typed = without_echo();
    let _ = writeln!(err);
    typed.map_err(unreadable)?.map(Token::from).ok_or_else(|| CliError::new(Exit::Interrupted, "nothing was changed"))
}

/// A terminal that shows nothing of what is typed, until this value is dropped.
struct Silenced {
    before: Termios,
}

impl Silenced {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin().as_fd())?;
        let mut silent = before.clone();
        // Ctrl-C comes as a character, so that the terminal is never left silent.
        silent.local_flags -= LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG;
        tcsetattr(io::stdin().as_fd(), SetArg::TCSAFLUSH, &silent)?;
        Ok(Self { before })
    }
}

impl Drop for Silenced {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin().as_fd(), SetArg::TCSAFLUSH, &self.before);
    }
}

/// `None` after Ctrl-C.
fn without_echo() -> io::Result<Option<String>> {
    let _silenced = Silenced::new()?;
    let mut typed = Vec::new();
    for byte in io::stdin().lock().bytes() {
        match byte? {
            b'\r' | b'\n' | 0x04 => break,
            0x03 => return Ok(None),
            0x08 | 0x7f => drop(typed.pop()),
            0x15 => typed.clear(),
            byte => typed.push(byte),
        }
    }
    Ok(Some(String::from_utf8_lossy(&typed).into_owned()))
}
