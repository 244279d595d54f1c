//! Slots as child processes on this machine: each in a process group of its own, with a working folder and a log file
//! of its own. They outlive the server; what belongs to a slot is found again by the mark in its environment, down to
//! the last grandchild, whatever group or session it has moved to.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use domain::SlotName;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use super::check::Check;
use super::{Found, Provider, ProviderError, Spec, Stopped, last};

/// How long a process may take to end by itself before it is killed.
const GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long all of it may take. Whoever stood still meanwhile is no longer the one who is to end them: another may have
/// started what is found now.
const LONGEST_END: Duration = Duration::from_secs(12);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often a folder is removed once more when something was put into it meanwhile.
const REMOVED_AGAIN: usize = 5;
/// A log is started anew when it has grown past this; the one before is kept.
const LARGEST_LOG: u64 = 10 * 1024 * 1024;
/// Which of the server's own variables a slot gets.
const PASSED_ON: [&str; 5] = ["PATH", "LANG", "LC_ALL", "TZ", "RUST_LOG"];
/// Names the slot in the environment of everything that runs in it.
const MARK: &str = "GREENROOM_PROCESS_MARK";
/// The file that names the installation in a slot's folder.
const OWNER: &str = "installation";
/// Names what the slot was started for. The agent does not pass it on to its bot.
const START: &str = "GREENROOM_PROCESS_START";

#[derive(Clone, Debug)]
pub struct ProcessProvider(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The folder in which each slot has its own.
    folder: PathBuf,
    command: Vec<String>,
    /// Tells what is ours from all other processes of the machine.
    installation: String,
}

impl ProcessProvider {
    pub fn new(folder: PathBuf, command: Vec<String>, installation: String) -> Self {
        Self(Arc::new(Inner { folder, command, installation }))
    }

    /// Runs what looks at the file system and at processes where it holds up nobody else.
    async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|error| Err(ProviderError::again(error.to_string())))
    }
}

impl Inner {
    fn home(&self, slot: &SlotName) -> PathBuf {
        self.folder.join(slot.as_str())
    }

    /// Stands for what runs in a slot that waits, and for whom it waits.
    fn fingerprint(&self, spec: &Spec) -> String {
        let mut digest = Sha256::new();
        for word in self.command.iter().chain(spec.environment.get("GREENROOM_URL")) {
            digest.update(word.len().to_be_bytes());
            digest.update(word);
        }
        digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    fn mark(&self, slot: &SlotName) -> String {
        format!("{}/{slot}", self.installation)
    }

    /// The processes of a slot, wherever they are now. With `start`, only those that were started for this.
    fn processes(&self, slot: &SlotName, start: Option<&str>) -> Result<Vec<Pid>, ProviderError> {
        let mark = format!("{MARK}={}", self.mark(slot));
        let start = start.map(|start| format!("{START}={start}"));
        let mut found = Vec::new();
        each_process(|pid, environment| {
            let has = |wanted: &String| variables(environment).any(|entry| entry == wanted.as_bytes());
            if has(&mark) && start.as_ref().is_none_or(has) {
                found.push(pid);
            }
        })?;
        Ok(found)
    }

    /// The slots of this installation that have a process, and those that have a folder.
    fn all(&self) -> Result<Vec<Found>, ProviderError> {
        let mark = format!("{MARK}={}/", self.installation);
        let mut found = BTreeMap::<SlotName, bool>::new();
        each_process(|_, environment| {
            let marks = variables(environment).filter_map(|entry| entry.strip_prefix(mark.as_bytes()));
            for slot in marks.filter_map(|slot| std::str::from_utf8(slot).ok()) {
                found.insert(SlotName::stored(slot.to_owned()), true);
            }
        })?;
        for slot in self.folders()? {
            found.entry(slot).or_insert(false);
        }
        Ok(found.into_iter().map(|(slot, running)| shown(slot, running)).collect())
    }

    /// The slots whose folders say that they are this installation's.
    fn folders(&self) -> Result<Vec<SlotName>, ProviderError> {
        let failed = |error| words("list the slots' folders", &error);
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut slots = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let Some(slot) = name.to_str().map(|name| SlotName::stored(name.to_owned())) else { continue };
            if self.owns(&slot)? {
                slots.push(slot);
            }
        }
        Ok(slots)
    }

    /// Whether a slot's folder is there and says that it is this installation's.
    fn owns(&self, slot: &SlotName) -> Result<bool, ProviderError> {
        Ok(self.owner(slot)?.as_deref() == Some(self.installation.as_str()))
    }

    /// Whose a slot's folder says that it is.
    fn owner(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        match std::fs::read_to_string(self.home(slot).join(OWNER)) {
            // Whoever was to write it died before.
            Ok(owner) if owner.trim().is_empty() => Ok(None),
            Ok(owner) => Ok(Some(owner.trim().to_owned())),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(words("look into the slot's folder", &error)),
        }
    }

    /// Removes what is in a slot's folder, unless it is another installation's.
    fn remove_own(&self, slot: &SlotName, path: &Path) -> Result<(), ProviderError> {
        match self.owner(slot)? {
            Some(owner) if owner != self.installation => Ok(()),
            _ => self.remove(path),
        }
    }

    /// Ends all processes of a slot: asked first, then killed, until none is left.
    fn end_all(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let (begun, mut asked, mut killed) = (Instant::now(), None, None);
        loop {
            let processes = self.processes(slot, None)?;
            // Also when there is none: what follows an end removes what the next bot may be about to use.
            if begun.elapsed() > LONGEST_END {
                return Err(ProviderError::again(format!("ending the processes of {slot} took too long")));
            }
            if processes.is_empty() {
                return Ok(());
            }
            if killed.is_some_and(|at: Instant| at.elapsed() > GONE_WITHIN) {
                return Err(ProviderError::again(format!("{} processes of {slot} do not end", processes.len())));
            }
            let signal = match asked {
                None => Some(Signal::SIGTERM),
                Some(at) if Instant::elapsed(&at) < GRACE => None,
                Some(_) => Some(Signal::SIGKILL),
            };
            for pid in processes {
                // One that has ended meanwhile is what we want.
                let _ = signal.map(|signal| kill(pid, signal));
            }
            asked = asked.or_else(|| Some(Instant::now()));
            if signal == Some(Signal::SIGKILL) {
                killed = killed.or_else(|| Some(Instant::now()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn remove(&self, path: &Path) -> Result<(), ProviderError> {
        let mut removed = std::fs::remove_dir_all(path);
        // Its description may be written just now.
        for _ in 0..REMOVED_AGAIN {
            match &removed {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    removed = std::fs::remove_dir_all(path)
                }
                _ => break,
            }
        }
        let removed = match removed {
            // A bot may have left folders in which nothing can be written.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                make_writable(path);
                std::fs::remove_dir_all(path)
            }
            removed => removed,
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(words("remove the slot's folder", &error)),
            _ => Ok(()),
        }
    }

    /// Makes the working folder and opens the log.
    fn prepare(&self, slot: &SlotName, fresh: bool) -> Result<std::fs::File, ProviderError> {
        if self.owner(slot)?.is_some_and(|owner| owner != self.installation) {
            return Err(ProviderError::never(format!("the folder of {slot} is another installation's")));
        }
        let home = &self.home(slot);
        let (work, log) = (home.join("work"), home.join("log"));
        if fresh {
            self.remove(&work)?;
        }
        let opened = || {
            // What is in it is nobody else's.
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
            std::fs::create_dir_all(&work)?;
            write_whole(&home.join(OWNER), &self.installation)?;
            if std::fs::metadata(&log).is_ok_and(|log| log.len() > LARGEST_LOG) {
                std::fs::rename(&log, home.join("log.1"))?;
            }
            std::fs::OpenOptions::new().create(true).append(true).open(&log)
        };
        opened().map_err(|error| words("make the slot's folder", &error))
    }

    fn environment(&self, spec: &Spec, start: &str, work: &Path) -> BTreeMap<String, String> {
        let mut environment = spec.environment.clone();
        let passed_on = PASSED_ON.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
        environment.extend(passed_on);
        environment.insert(MARK.to_owned(), self.mark(&spec.slot));
        environment.insert(START.to_owned(), start.to_owned());
        environment.insert("HOME".to_owned(), work.display().to_string());
        environment
    }
}

/// Looks at every process of the machine with its environment. Those of others cannot be read, and those that have ended
/// have none any more.
fn each_process(mut look: impl FnMut(Pid, &[u8])) -> Result<(), ProviderError> {
    for entry in std::fs::read_dir("/proc").map_err(|error| words("look for its processes", &error))? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        look(Pid::from_raw(pid), &environment);
    }
    Ok(())
}

fn variables(environment: &[u8]) -> impl Iterator<Item = &[u8]> {
    environment.split(|byte| *byte == 0)
}

/// Lets this user write in a folder and in all below it, as far as it may.
fn make_writable(folder: &Path) {
    let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

fn shown(slot: SlotName, running: bool) -> Found {
    Found::new(slot, running, if running { "it has processes" } else { "it has a folder and no process" })
}

fn words(what: &str, error: &io::Error) -> ProviderError {
    ProviderError::again(format!("cannot {what}: {error}"))
}

/// Writes a file at once: whoever reads it meanwhile, in another process as well, sees what was there before, and never half of
/// it.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&new, text).and_then(|()| std::fs::rename(new, path))
}

#[async_trait]
impl Provider for ProcessProvider {
    /// Its folders are all that there is to make.
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        let home = self.0.home(&spec.slot);
        let provider_ref = home.display().to_string();
        let slot = spec.slot.clone();
        self.apart(move |inner| inner.prepare(&slot, false)).await?;
        Ok(provider_ref)
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        // An agent that waits elsewhere than it would now is not the one that is wanted.
        let start = match &spec.connection {
            Some(connection) => format!("{}/{connection}", spec.generation),
            None => format!("{}/waits/{}", spec.generation, self.0.fingerprint(spec)),
        };
        let home = self.0.home(&spec.slot);
        let provider_ref = home.display().to_string();
        let (slot, fresh, wanted) = (spec.slot.clone(), spec.fresh, start.clone());
        let log = self.apart(move |inner| {
            if !inner.processes(&slot, Some(&wanted))?.is_empty() {
                return Ok(None);
            }
            inner.end_all(&slot)?;
            inner.prepare(&slot, fresh).map(Some)
        });
        // It runs already: an earlier call whose answer was lost.
        let Some(log) = log.await? else { return Ok(provider_ref) };
        let errors = log.try_clone().map_err(|error| words("open the slot's log", &error))?;
        let (program, arguments) =
            self.0.command.split_first().ok_or_else(|| ProviderError::never("the pool has no command"))?;
        let work = home.join("work");
        let spawned = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(self.0.environment(spec, &start, &work))
            .current_dir(&work)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        // Not waited for: it may outlive us, and the runtime collects it when it ends before.
        match spawned {
            Ok(_) => Ok(provider_ref),
            Err(error) => {
                let text = format!("cannot run {program}: {error}");
                match error.kind() {
                    // Not the command is missing, but the folder that it was to run in.
                    io::ErrorKind::NotFound if !work.exists() => Err(ProviderError::again(text)),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Err(ProviderError::never(text)),
                    _ => Err(ProviderError::again(text)),
                }
            }
        }
    }

    async fn stop(&self, slot: &SlotName, fresh: bool) -> Result<Stopped, ProviderError> {
        let slot = slot.clone();
        self.apart(move |inner| {
            inner.end_all(&slot)?;
            if fresh {
                inner.remove_own(&slot, &inner.home(&slot).join("work"))?;
            }
            Ok(Stopped::Seen)
        })
        .await
    }

    async fn delete(&self, slot: &SlotName) -> Result<(), ProviderError> {
        let slot = slot.clone();
        self.apart(move |inner| {
            inner.end_all(&slot)?;
            inner.remove_own(&slot, &inner.home(&slot))
        })
        .await
    }

    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        self.apart(Inner::all).await
    }

    async fn inspect(&self, slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        let slot = slot.clone();
        self.apart(move |inner| {
            let running = !inner.processes(&slot, None)?.is_empty();
            Ok((running || inner.owns(&slot)?).then(|| shown(slot, running)))
        })
        .await
    }

    async fn last_lines(&self, slot: &SlotName) -> Result<Option<String>, ProviderError> {
        let log = self.0.home(slot).join("log");
        self.apart(move |_| match std::fs::File::open(&log) {
            Ok(mut file) => {
                let mut read = || -> io::Result<String> {
                    let length = file.metadata()?.len();
                    file.seek(io::SeekFrom::Start(length.saturating_sub(last::MOST_BYTES as u64)))?;
                    let mut text = Vec::new();
                    file.read_to_end(&mut text)?;
                    Ok(String::from_utf8_lossy(&text).into_owned())
                };
                read().map(|text| last::lines(&text)).map_err(|error| words("read the slot's log", &error))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(words("read the slot's log", &error)),
        })
        .await
    }

    async fn check(&self, _slots: u32) -> Vec<Check> {
        let Some(program) = self.0.command.first() else {
            return vec![Check::bad("command", "the pool has no command")];
        };
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let is_there = match program.contains('/') {
            true => Path::new(program).is_file(),
            false => std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()),
        };
        vec![match is_there {
            true => Check::good("command", format!("{program} is there")),
            false => Check::bad("command", format!("there is no {program} on this machine")),
        }]
    }

    async fn describe(&self, slot: &SlotName, description: &str) {
        let (slot, description) = (slot.clone(), description.to_owned());
        // A slot that was never started has no folder to put it in.
        let _ = self.apart(move |inner| Ok(write_whole(&inner.home(&slot).join("description"), &description))).await;
    }
}
