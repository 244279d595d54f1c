//! The processes that a killed agent left running. The next bot must not run beside them, so the next agent kills them
//! before it registers the machine, and reports the lost bot to the server.
//!
//! The agent recognizes a bot's processes by a variable in their environment, by their folder, by the process that the
//! killed agent noted, and by their parents. The note includes the start time, so that a different process with the
//! same id is not killed.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Client;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::assignment::BotData;
use crate::http::{self, Backoff, Refusal};
use crate::log::log;

/// A variable in the environment of every process of a bot. Its value is the bot's folder.
pub const MARK: &str = "GREENROOM_RUNNER_BOT";
const FILE: &str = "greenroom-runner.bot";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const GONE_WITHIN: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long the report of a lost bot may delay the next bot.
const REPORT_WITHIN: Duration = Duration::from_mins(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The exit code that a shell reports for SIGKILL.
const KILLED: i32 = 128 + Signal::SIGKILL as i32;

/// The record of the running bot, in a file that outlives the agent. It contains the bot's token, so only this user may
/// read it.
#[derive(Debug)]
pub struct Record {
    path: PathBuf,
    bot: RunningBot,
}

#[derive(Clone, Deserialize, Serialize)]
struct RunningBot {
    bot_id: String,
    connection_id: String,
    callback_url: String,
    token: String,
    process: Option<NotedProcess>,
}

impl std::fmt::Debug for RunningBot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningBot")
            .field("bot_id", &self.bot_id)
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

/// A process, with its start time to distinguish it from a later process with the same id.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
struct NotedProcess {
    id: i32,
    /// In clock ticks since boot.
    started: u64,
    boot: String,
}

impl Record {
    pub fn write(base: &Path, data: &BotData) -> io::Result<Self> {
        let record = Self {
            path: base.join(FILE),
            bot: RunningBot {
                bot_id: data.bot_id.clone(),
                connection_id: data.connection_id.clone(),
                callback_url: data.callback_url.clone(),
                token: data.token.reveal().to_owned(),
                process: None,
            },
        };
        record.save()?;
        Ok(record)
    }

    /// Notes the bot's process. Without this note, the bot's processes can still be recognized by their environment.
    pub fn note(&mut self, id: i32) {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        self.bot.process = Process::read(id).map(|process| NotedProcess { id, started: process.started, boot });
        if let Err(error) = self.save() {
            log!("bot process not noted: {error}");
        }
    }

    /// Removes the record after the bot has ended and no process of it is left.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }

    fn save(&self) -> io::Result<()> {
        let new = self.path.with_extension("bot-new");
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(&serde_json::to_vec(&self.bot)?)?;
        fs::rename(&new, &self.path)
    }
}

/// A bot whose agent was killed.
#[derive(Debug)]
pub struct LostBot {
    path: PathBuf,
    bot: RunningBot,
}

impl LostBot {
    /// Reports the bot's end to the server, up to a time limit. After that, the server detects the end by itself.
    pub async fn report(self, http: &Client) {
        let RunningBot { bot_id, connection_id, callback_url, token, .. } = &self.bot;
        let error = "the agent of its machine was killed and started again, and ended what was left of the bot";
        let body = json!({"connection_id": connection_id, "exit_code": KILLED, "error": error});
        let mut backoff = Backoff::default();
        let reporting = async {
            loop {
                let request = http.post(format!("{callback_url}/exited")).bearer_auth(token).json(&body);
                match http::send(request.timeout(ANSWER_TIMEOUT)).await {
                    Err(refusal @ Refusal::Away { .. }) => backoff.wait("reporting a lost bot", &refusal).await,
                    Err(refusal) => return log!("bot {bot_id}: its end was refused: {refusal}"),
                    Ok(_) => return log!("bot {bot_id}: lost with an earlier agent, reported as ended"),
                }
            }
        };
        if tokio::time::timeout(REPORT_WITHIN, reporting).await.is_err() {
            log!("bot {bot_id}: its end could not be reported");
        }
        let _ = fs::remove_file(&self.path);
    }
}

/// Kills the processes that an earlier agent left below a folder, and returns the bot that it ran. The caller holds the
/// folder's lock.
pub fn end(base: &Path, prefix: &str) -> io::Result<Option<LostBot>> {
    let path = base.join(FILE);
    let bot = fs::read(&path).ok().and_then(|text| serde_json::from_slice::<RunningBot>(&text).ok());
    let noted = bot
        .as_ref()
        .and_then(|bot| bot.process.as_ref())
        .filter(|process| fs::read_to_string(BOOT_ID).is_ok_and(|boot| boot.trim() == process.boot));
    let begun = Instant::now();
    let mut ended = HashSet::new();
    loop {
        let left = of_bots(&processes()?, &base.join(prefix), noted);
        if left.is_empty() {
            break;
        }
        if begun.elapsed() > GONE_WITHIN {
            return Err(io::Error::other(format!("processes {left:?} of an earlier bot do not end")));
        }
        for id in left {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
            ended.insert(id);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    if !ended.is_empty() {
        log!("{} processes of an earlier bot ended", ended.len());
    }
    Ok(bot.map(|bot| LostBot { path, bot }))
}

/// A process, as the kernel describes it.
#[derive(Clone, Debug)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    session: i32,
    started: u64,
    /// The folder that the mark in its environment names, and its working folder, if this user may read them.
    mark: Option<PathBuf>,
    folder: Option<PathBuf>,
}

impl Process {
    fn read(id: i32) -> Option<Self> {
        let path = PathBuf::from(format!("/proc/{id}"));
        let stat = fs::read_to_string(path.join("stat")).ok()?;
        // The process name may contain anything, also parentheses.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse().ok();
        // A dead process that is not reaped does nothing any more.
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        let prefix = format!("{MARK}=");
        let mark = environment.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
        Some(Self {
            id,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            started: fields.get(19)?.parse().ok()?,
            mark: mark.map(|value| PathBuf::from(OsStr::from_bytes(value))),
            folder: fs::read_link(path.join("cwd")).ok(),
        })
    }
}

fn processes() -> io::Result<Vec<Process>> {
    let ids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(ids.filter_map(Process::read).collect())
}

/// The processes of bots whose folders begin with this path, the noted process with its group, and all their
/// descendants.
fn of_bots(all: &[Process], folders: &Path, noted: Option<&NotedProcess>) -> Vec<i32> {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let is_folder = |path: &PathBuf| path.as_os_str().as_bytes().starts_with(folders.as_os_str().as_bytes());
    // The kernel does not reuse a group's id while the group has a process. So a match of the leader identifies the
    // whole group.
    let leader = noted.filter(|noted| all.iter().any(|one| one.id == noted.id && one.started == noted.started));
    let is_in_group =
        |one: &Process| leader.is_some_and(|leader| [one.id, one.group, one.session].contains(&leader.id));
    let is_bots = |one: &Process| {
        one.mark.as_ref().is_some_and(is_folder) || one.folder.as_ref().is_some_and(is_folder) || is_in_group(one)
    };
    let mut found: HashSet<i32> = all.iter().filter(|one| is_bots(one)).map(|one| one.id).collect();
    loop {
        let before = found.len();
        found.extend(all.iter().filter(|one| found.contains(&one.parent)).map(|one| one.id).collect::<Vec<_>>());
        if found.len() == before {
            break;
        }
    }
    found.remove(&own);
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, parent: i32, group: i32, started: u64) -> Process {
        Process { id, parent, group, session: group, started, mark: None, folder: None }
    }

    fn found(all: &[Process], noted: Option<&NotedProcess>) -> Vec<i32> {
        let mut found = of_bots(all, Path::new("/bots/greenroom-bot-"), noted);
        found.sort_unstable();
        found
    }

    #[test]
    fn a_process_that_has_the_id_of_a_bot_by_now_is_left_alone() {
        let all = [process(70, 1, 70, 500), process(71, 70, 70, 501), process(90, 1, 90, 10)];
        let noted = |started| NotedProcess { id: 70, started, boot: String::new() };
        assert_eq!(found(&all, Some(&noted(500))), [70, 71]);
        assert_eq!(found(&all, Some(&noted(499))), [0; 0]);
    }

    #[test]
    fn a_bots_processes_are_known_by_their_environment_their_folder_and_their_parents() {
        let marked = Process { mark: Some("/bots/greenroom-bot-1".into()), ..process(10, 1, 10, 1) };
        let inside = Process { folder: Some("/bots/greenroom-bot-1/deep".into()), ..process(11, 1, 11, 1) };
        let others = Process { mark: Some("/other/greenroom-bot-1".into()), ..process(13, 1, 13, 1) };
        let all = [marked, inside, process(12, 10, 12, 1), others, process(14, 13, 14, 1)];
        assert_eq!(found(&all, None), [10, 11, 12]);
    }
}
