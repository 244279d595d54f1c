//! A bot that is started ahead of its meeting, on any provider. The test decides when each of its commands is ready.

use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Client, found, meet_link, until};

/// The settings of a pool with one prewarmed slot. A command has longer than any test to become ready.
pub const PREWARMED_POOL: &str = "max_slots = 1\nmin_idle = 1\nprewarm = true\nready_timeout = \"4m\"";

/// A bot whose script needs only `sleep` and `cat`. Before it is ready it finds out what it can know without a meeting.
/// In its meeting it reports that as its transcript.
#[derive(Debug)]
pub struct PrewarmedBot {
    /// In the script, so that its processes can be found.
    mark: String,
    /// A folder that exists wherever the bot runs.
    folder: String,
    pub script: String,
}

impl PrewarmedBot {
    /// `peeks` are files in which the bot looks for tokens. `trace` is a file that one bot leaves for the next.
    pub fn new(folder: &str, peeks: &str, trace: &str) -> Self {
        let mark = uuid::Uuid::new_v4().simple().to_string();
        let script = format!(
            r#": {mark}
            tokens=none
            case "$(cat {peeks} 2> /dev/null)" in *gr[srpb]_*) tokens=found;; esac
            left=nothing
            [ -s {trace} ] && left=found
            life=$(cat /proc/sys/kernel/random/uuid)
            known="prewarm [$GREENROOM_PREWARM] data [$BOT_DATA] tokens $tokens, left $left"
            while [ ! -e {folder}/ready-$$ ]; do sleep 0.02; done
            echo '{{"event": "ready"}}'
            read -r line
            echo x > {trace}
            case $line in '{{"action":"assignment","payload":{{'*) line=assignment;; esac
            echo '{{"event": "joined"}}'
            text="$known, first line $line; $life"
            echo "{{\"event\": \"transcript\", \"segments\": [{{\"start_time\": 0, \"end_time\": 1, \"text\": \"$text\"}}]}}"
            read -r leave
            "#
        );
        Self { mark, folder: folder.to_owned(), script }
    }

    /// Waits for a command that is none of these, and returns its process.
    pub async fn command(&self, others: &[i32]) -> i32 {
        let is_it = |pid: &i32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut arguments = command.split(|byte| *byte == 0);
            let is_shell = arguments.next().is_some_and(|program| program == b"sh" || program.ends_with(b"/sh"));
            let has_mark = |part: &[u8]| String::from_utf8_lossy(part).contains(&self.mark);
            is_shell && arguments.any(has_mark) && !others.contains(pid) && self.number(*pid).is_some()
        };
        found("a command is started ahead", async || {
            let folders = std::fs::read_dir("/proc").unwrap().flatten();
            let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
            // A command that is being ended may still be there, so the newest counts.
            pids.filter(is_it).max_by_key(|pid| started(*pid))
        })
        .await
    }

    /// The id of the process in its own container, if it is the command itself and not a process that it has forked.
    fn number(&self, pid: i32) -> Option<i32> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let parent = std::fs::read(format!("/proc/{}/cmdline", field("PPid:")?)).ok()?;
        if !parent.split(|byte| *byte == 0).next()?.ends_with(b"/greenroom") {
            return None;
        }
        field("NSpid:")?.split_whitespace().next_back()?.parse().ok()
    }

    /// Lets a command become ready.
    pub fn let_ready(&self, command: i32) {
        let number = self.number(command).expect("the command runs");
        let path = PathBuf::from(format!("/proc/{command}/root{}/ready-{number}", self.folder));
        std::fs::write(path, "").unwrap();
    }

    /// Runs bots through the only slot of a pool: the slot is idle only while a command is ready, each bot gets the
    /// command that waited, and none gets a command that died.
    pub async fn lives_in_its_slot(&self, admin: &Client, user: &Client) {
        let status = async || admin.get("/admin/slots").await["slots"][0]["status"].clone();
        let first = self.command(&[]).await;
        let bot = user.bot(&meet_link(0)).await;
        assert_eq!((status().await, user.show_bot(&bot).await["slot"].clone()), ("creating".into(), Value::Null));
        self.let_ready(first);
        let first_life = self.lives(user, &bot).await;

        let second = self.command(&[first]).await;
        self.let_ready(second);
        until("the slot is idle", async || status().await == "idle").await;
        let bot = user.bot(&meet_link(1)).await;
        let second_life = self.lives(user, &bot).await;
        assert_ne!(first_life, second_life, "the next bot gets another process");

        let third = self.command(&[first, second]).await;
        self.let_ready(third);
        until("the slot is idle", async || status().await == "idle").await;
        kill(Pid::from_raw(third), Signal::SIGKILL).unwrap();
        until("the slot is not idle", async || status().await == "creating").await;
        let bot = user.bot(&meet_link(2)).await;
        let fourth = self.command(&[first, second, third]).await;
        assert_eq!((status().await, user.show_bot(&bot).await["slot"].clone()), ("creating".into(), Value::Null));
        self.let_ready(fourth);
        assert_ne!(self.lives(user, &bot).await, second_life);
    }

    /// Waits until the bot is in its meeting, checks what it knew before, and stops it. Returns what identifies its
    /// process.
    pub async fn lives(&self, user: &Client, bot: &str) -> String {
        user.until(bot, "active").await;
        let said = found("the bot has reported what it knows", async || {
            let transcript = user.get(&format!("/bots/{bot}/transcript")).await;
            transcript["segments"][0]["text"].as_str().map(str::to_owned)
        })
        .await;
        let (known, life) = said.split_once("; ").unwrap();
        assert_eq!(known, "prewarm [1] data [] tokens none, left nothing, first line assignment");
        user.stop(bot).await;
        assert_eq!(user.until(bot, "completed").await["reason"], "stopped");
        life.to_owned()
    }
}

/// When a process was started, in ticks since boot.
fn started(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}
