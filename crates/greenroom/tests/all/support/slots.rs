//! Slots of the process provider, seen from outside: as processes of the machine.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use std::path::Path;

use greenroom::lifecycle::tokens::SlotClaim;
use greenroom::placement::SlotEvent;
use greenroom::providers::process::{ProcessProvider, Settings};
use greenroom::store::SlotRow;

use super::Database;

/// A provider for an installation. Its slots are below a folder and run this command.
pub fn process_provider(folder: &Path, command: &[&str], installation: &str) -> ProcessProvider {
    ProcessProvider::new(Settings {
        folder: folder.to_owned(),
        command: command.iter().map(ToString::to_string).collect(),
        user: None,
        environment: std::collections::BTreeMap::new(),
        launcher: env!("CARGO_BIN_EXE_greenroom").into(),
        installation: installation.to_owned(),
    })
}

/// The event that an agent waits in a slot, with the slot's own token.
pub fn waits(slot: &SlotRow) -> SlotEvent {
    SlotEvent::AgentWaits { claim: SlotClaim::current(slot), agent: "agent".to_owned() }
}

/// A process that runs in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: i32,
    pub slot: String,
    /// Whether the provider started this process itself, and not one of its children.
    pub is_agent: bool,
    pub command: String,
}

impl Running {
    /// Reads a process, if it belongs to a slot below this folder.
    fn read(entry: &std::fs::DirEntry, folder: &str) -> Option<Self> {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let value = |name: &str| environment.split('\0').find_map(|entry| entry.strip_prefix(name));
        value("HOME=").filter(|home| home.starts_with(folder))?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some(Self {
            pid,
            slot: value("GREENROOM_PROCESS_MARK=")?.rsplit_once('/')?.1.to_owned(),
            is_agent: value("GREENROOM_PROCESS_START=").is_some(),
            command: String::from_utf8_lossy(&command).replace('\0', " ").trim().to_owned(),
        })
    }

    /// Kills the process. It is no error if the process has already ended.
    pub fn kill(&self) {
        let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
    }

    /// Stops the process in place. Its connections stay open, and it does not answer.
    pub fn freeze(&self) {
        kill(Pid::from_raw(self.pid), Signal::SIGSTOP).unwrap();
    }
}

impl Database {
    /// All processes in slots of the servers on this database.
    pub fn running(&self) -> Vec<Running> {
        let folder = self.folder.path().display().to_string();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| Running::read(&entry, &folder)).collect()
    }

    /// The only agent in a slot, if there is one.
    pub fn agent(&self, slot: &str) -> Option<Running> {
        self.running().into_iter().find(|process| process.is_agent && process.slot == slot)
    }

    /// A path below a slot's folder.
    pub fn in_slot(&self, slot: &str, path: &str) -> std::path::PathBuf {
        self.folder.path().join("greenroom-slots").join(slot).join(path)
    }

    /// The output in a slot's log.
    pub fn log_of(&self, slot: &str) -> String {
        std::fs::read_to_string(self.in_slot(slot, "log")).unwrap_or_default()
    }
}

/// The configuration of a pool whose bots are a shell script under the agent. `settings` are lines of TOML.
pub fn process_pool(name: &str, settings: &str, script: &str) -> String {
    let command = [env!("CARGO_BIN_EXE_greenroom"), "agent", "--", "sh", "-c", script];
    let command = serde_json::to_string(&command).unwrap();
    format!(
        "[[pool]]\nname = \"{name}\"\nplatform = \"google_meet\"\nprovider = \"process\"\n{settings}\n\
         process = {{ command = {command} }}\n"
    )
}
