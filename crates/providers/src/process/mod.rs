//! The process provider. A slot is a child process on this machine, with a process group, a folder and a log of its
//! own. It runs as a separate user if the pool configures one. Slots keep running when the server ends, and the server
//! finds them again after a restart.
//!
//! - this file: the provider
//! - [`folder`]: a slot's folder and its lock
//! - [`table`]: finds the processes of a slot and ends them
//! - [`launch`]: starts the command of a slot
//! - [`user`]: the account of a slot

mod folder;
pub mod launch;
mod table;
mod user;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::{SlotName, hex};
use sha2::{Digest, Sha256};

use self::folder::{SlotFolder, failed, write_whole};
use self::table::{MARK, START, Table, end_all};
use self::user::Account;
use super::check::Check;
use super::{Found, HostMemory, LogLine, Provider, ProviderError, Spec, Stopped, log_tail};

/// The variables of the server's environment that each slot gets.
const PASSED_ON: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "RUST_LOG"];

#[derive(Clone, Debug)]
pub struct ProcessProvider(Arc<Settings>);

#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder that contains the folders of the slots.
    pub folder: PathBuf,
    pub command: Vec<String>,
    /// The user that slots run as. Without it, slots run as the server's user.
    pub user: Option<String>,
    /// Variables that every slot gets.
    pub environment: BTreeMap<String, String>,
    /// The `greenroom` binary, which becomes the command of a slot.
    pub launcher: PathBuf,
    /// Distinguishes the processes of this installation from all other processes of the machine.
    pub installation: String,
}

/// After a pause longer than this, other replicas may treat this replica as dead and work on the slot.
const STOOD_STILL: Duration = Duration::from_secs(2);
/// How many bytes of a log are read for a bot.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// Whether an operation may continue: its caller still waits for it, and this process was not suspended since the last
/// check. An abandoned operation must not run beside the next one.
#[derive(Debug)]
struct Wanted {
    is_given_up: Arc<AtomicBool>,
    last_check: Instant,
}

impl Wanted {
    /// Must be called before each change.
    fn check(&mut self) -> Result<(), ProviderError> {
        let gap = std::mem::replace(&mut self.last_check, Instant::now()).elapsed();
        if self.is_given_up.load(Ordering::SeqCst) {
            return Err(ProviderError::transient("the operation was cancelled"));
        }
        if gap > STOOD_STILL {
            return Err(ProviderError::transient("this server was suspended during an operation on the slot"));
        }
        Ok(())
    }

    /// Records that a harmless step took long, so that its duration does not count as a suspension.
    fn took_time(&mut self) {
        self.last_check = Instant::now();
    }
}

/// Reports to the operation, when dropped, that the caller has gone.
struct GiveUpOnDrop(Arc<AtomicBool>);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl ProcessProvider {
    pub fn new(settings: Settings) -> Self {
        launch::remember_file_limit();
        Self(Arc::new(settings))
    }

    /// Runs blocking work on its own thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Settings) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let settings = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&settings)).await;
        done.unwrap_or_else(|error| Err(ProviderError::transient(error.to_string())))
    }

    /// Runs an operation on a slot while no other operation of this process works on the slot.
    async fn exclusive<T: Send + 'static>(
        &self,
        slot: &SlotName,
        work: impl FnOnce(&Settings, &SlotFolder<'_>, &mut Wanted) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        self.exclusive_after(slot, |_| Ok(()), |settings, folder, (), wanted| work(settings, folder, wanted)).await
    }

    /// Like `exclusive`, but first runs a step that changes nothing and may take an unlimited time. The slot is not
    /// locked during that step.
    async fn exclusive_after<P, T: Send + 'static>(
        &self,
        slot: &SlotName,
        first: impl FnOnce(&SlotFolder<'_>) -> Result<P, ProviderError> + Send + 'static,
        work: impl FnOnce(&Settings, &SlotFolder<'_>, P, &mut Wanted) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let (slot, _caller) = (slot.clone(), GiveUpOnDrop(is_given_up.clone()));
        let mut wanted = Wanted { is_given_up, last_check: Instant::now() };
        self.blocking(move |settings| {
            let folder = settings.folder_of(&slot);
            let prepared = first(&folder)?;
            wanted.check()?;
            let _lock = folder.lock(&mut wanted)?;
            work(settings, &folder, prepared, &mut wanted)
        })
        .await
    }
}

impl Settings {
    fn folder_of(&self, slot: &SlotName) -> SlotFolder<'_> {
        SlotFolder::new(&self.folder, slot, &self.installation)
    }

    /// The fingerprint of the slot's command, its user and the server address that its agent connects to.
    fn fingerprint(&self, spec: &Spec) -> String {
        self.digest(spec.environment.get("GREENROOM_URL"))
    }

    /// The fingerprint of the command, its user and its variables, with one more text.
    fn digest(&self, beside: Option<&String>) -> String {
        let mut digest = Sha256::new();
        let variables = self.environment.iter().flat_map(|(name, value)| [name, value]);
        for word in self.command.iter().chain(&self.user).chain(variables).chain(beside) {
            digest.update(word.len().to_be_bytes());
            digest.update(word);
        }
        hex(&digest.finalize()[..8])
    }

    fn mark(&self, slot: &SlotName) -> String {
        format!("{}/{slot}", self.installation)
    }

    fn account(&self) -> Result<Option<Account>, ProviderError> {
        self.user.as_deref().map(Account::find).transpose()
    }

    fn end_all(&self, slot: &SlotName, wanted: &mut Wanted) -> Result<(), ProviderError> {
        end_all(slot, &self.mark(slot), &self.folder_of(slot), wanted)
    }

    fn is_running(&self, slot: &SlotName, table: &Table) -> bool {
        let leader = self.folder_of(slot).leader();
        !table.of_slot(&self.mark(slot), leader.as_ref(), &HashSet::new()).is_empty()
    }

    /// The slots of this installation that have a process or a folder.
    fn all(&self) -> Result<Vec<Found>, ProviderError> {
        let table = Table::read()?;
        let mut slots: HashSet<SlotName> = table.slots(&self.installation).into_iter().collect();
        slots.extend(self.folders()?);
        let mut found: Vec<Found> =
            slots.into_iter().map(|slot| found(slot.clone(), self.is_running(&slot, &table))).collect();
        found.sort_by(|left, right| left.slot.cmp(&right.slot));
        Ok(found)
    }

    /// The slots whose folders belong to this installation.
    fn folders(&self) -> Result<Vec<SlotName>, ProviderError> {
        let failed = |error| failed("list", &self.folder, &error);
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut slots = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let Some(slot) = name.to_str().map(|name| SlotName::stored(name.to_owned())) else { continue };
            if self.folder_of(&slot).is_own()? {
                slots.push(slot);
            }
        }
        Ok(slots)
    }

    fn environment(&self, spec: &Spec, start: &str, work: &Path) -> BTreeMap<String, String> {
        let mut environment = self.environment.clone();
        environment.extend(spec.environment.clone());
        let passed_on = PASSED_ON.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
        environment.extend(passed_on);
        environment.insert(MARK.to_owned(), self.mark(&spec.slot));
        environment.insert(START.to_owned(), start.to_owned());
        environment.insert("HOME".to_owned(), work.display().to_string());
        environment
    }

    fn start(&self, folder: &SlotFolder<'_>, spec: &Spec, log: File, wanted: &mut Wanted) -> Result<(), ProviderError> {
        // The mark of a waiting agent includes its fingerprint, so an agent with old settings is replaced.
        let start = match &spec.connection {
            Some(connection) => format!("{}/{connection}", spec.generation),
            None => format!("{}/waits/{}", spec.generation, self.fingerprint(spec)),
        };
        let leader = folder.leader();
        // An earlier call started it, but its answer was lost.
        if Table::read()?.runs(&self.mark(&spec.slot), leader.as_ref(), &start) {
            return Ok(());
        }
        self.end_all(&spec.slot, wanted)?;
        let account = self.account()?;
        folder.prepare(account.as_ref(), spec.fresh)?;
        wanted.took_time();
        wanted.check()?;
        folder.note_log_start(&log)?;
        let environment = self.environment(spec, &start, &folder.work());
        launch::start(&self.launcher, folder, log, account.as_ref(), &self.command, environment)
    }

    /// The output of the slot since its last start.
    fn log_since_start(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let folder = self.folder_of(slot);
        let text = read_from(&folder.log(), |length| length.saturating_sub(LOG_BYTES_MAX).max(folder.log_start()))?;
        Ok(text.map(|text| log_tail::untimed(&text)).unwrap_or_default())
    }

    fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let text = read_from(&self.folder_of(slot).log(), |length| length.saturating_sub(log_tail::MOST_BYTES as u64))?;
        Ok(text.and_then(|text| log_tail::lines(&text)))
    }
}

/// The text of a file from an offset that the caller chooses by the file's length. `None` if there is no such file.
fn read_from(path: &Path, from: impl Fn(u64) -> u64) -> Result<Option<String>, ProviderError> {
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(io::SeekFrom::Start(from(length)))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

/// Whether a program can be run with this `PATH` in this folder.
pub fn program_is_at(program: &str, path: &OsStr, folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;

    let can_run =
        |file: &Path| file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    match program.contains('/') {
        true => can_run(&folder.join(program)),
        false => std::env::split_paths(path).any(|directory| can_run(&folder.join(directory).join(program))),
    }
}

/// The memory in bytes that new processes can use, from the text of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn found(slot: SlotName, running: bool) -> Found {
    Found::new(slot, running, if running { "processes run in it" } else { "no process runs in it" })
}

#[async_trait]
impl Provider for ProcessProvider {
    fn recipe(&self) -> Option<String> {
        Some(self.0.digest(None))
    }

    /// Only the slot's folders have to be made.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let prepare = |settings: &Settings, folder: &SlotFolder<'_>, _log, _: &mut Wanted| {
            folder.prepare(settings.account()?.as_ref(), false)?;
            Ok(folder.path.display().to_string())
        };
        self.exclusive_after(&spec.slot, |folder| folder.open_log(), prepare).await
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        let (slot, spec) = (spec.slot.clone(), spec.clone());
        let start = move |settings: &Settings, folder: &SlotFolder<'_>, log, wanted: &mut Wanted| {
            settings.start(folder, &spec, log, wanted)?;
            Ok(folder.path.display().to_string())
        };
        self.exclusive_after(&slot, |folder| folder.open_log(), start).await
    }

    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError> {
        let name = slot.clone();
        self.exclusive(slot, move |settings, folder, wanted| {
            settings.end_all(&name, wanted)?;
            if fresh {
                folder.remove_own(&folder.work())?;
            }
            Ok(Stopped::Seen)
        })
        .await
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let name = slot.clone();
        self.exclusive(slot, move |settings, folder, wanted| {
            settings.end_all(&name, wanted)?;
            folder.remove_own(&folder.path)
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        self.blocking(Settings::all).await
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let slot = slot.clone();
        self.blocking(move |settings| {
            let is_own = settings.folder_of(&slot).is_own()?;
            let running = settings.is_running(&slot, &Table::read()?);
            Ok((running || is_own).then(|| found(slot, running)))
        })
        .await
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let slot = slot.clone();
        self.blocking(move |settings| settings.last_lines(&slot)).await
    }

    async fn log(&self, slot: &SlotName) -> Result<Vec<LogLine>, ProviderError> {
        let slot = slot.clone();
        self.blocking(move |settings| settings.log_since_start(&slot)).await
    }

    async fn check(&self, _slots: u32) -> Vec<Check> {
        let Some(program) = self.0.command.first() else {
            return vec![Check::bad("command", "the pool has no command")];
        };
        let folder = std::env::current_dir().unwrap_or_default();
        let is_there = program_is_at(program, &std::env::var_os("PATH").unwrap_or_default(), &folder);
        let command = match is_there {
            true => Check::good("command", format!("{program} exists")),
            false => Check::bad("command", format!("there is no {program} on this machine")),
        };
        let user = self.0.account().transpose();
        let user =
            user.map(|account| Check::of("user", account.map(|account| format!("slots run as {}", account.name))));
        [command].into_iter().chain(user).collect()
    }

    async fn host_memory(&self) -> Result<Option<HostMemory>, ProviderError> {
        Ok(std::fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(available).map(HostMemory::Free))
    }

    async fn describe(&self, slot: &SlotName, description: &str) {
        let (slot, description) = (slot.clone(), description.to_owned());
        // A slot that was never started has no folder for a description.
        let write = move |settings: &Settings| {
            Ok(write_whole(&settings.folder_of(&slot).path.join("description"), &description))
        };
        let _ = self.blocking(write).await;
    }
}
