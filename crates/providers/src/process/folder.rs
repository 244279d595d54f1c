//! The folder of a slot: its files, its owner, and a lock that allows one operation at a time on it.
//!
//! ```text
//! greenroom-slots/pool-meet-001/        mode 0711
//!   installation                        the installation that owns the folder
//!   leader                              the process that was started, and for what
//!   log, log.1                          the output of the slot's processes
//!   log-start                           where in the log the last start begins
//!   description                         for people
//!   work/                               the bot's home, mode 0700; removed after each bot
//! ```

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::SlotName;

use super::Wanted;
use super::table::Leader;
use super::user::Account;
use crate::ProviderError;

/// How long to wait for another operation on the same slot. Longer than it takes to end the slot's processes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often the removal of a folder is tried when a process adds files meanwhile.
const REMOVE_ATTEMPTS: usize = 6;
/// A log that is larger than this is renamed, and a new log begins. One old log is kept.
const LOG_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The file that names the installation that owns the slot's folder.
const OWNER: &str = "installation";
const LOG_START: &str = "log-start";
/// The file in which the slot's launcher records its own process.
pub const LEADER: &str = "leader";

/// The folders on which operations of this process work. Replicas exclude each other by a lock in the database, but a
/// replica that is suspended can lose that lock.
static LOCKED: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

fn locked() -> MutexGuard<'static, HashSet<PathBuf>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The lock on a folder. Dropping it releases the folder.
#[derive(Debug)]
pub struct FolderLock(PathBuf);

impl Drop for FolderLock {
    fn drop(&mut self) {
        locked().remove(&self.0);
    }
}

/// The folder of one slot of an installation.
#[derive(Debug)]
pub struct SlotFolder<'a> {
    pub path: PathBuf,
    installation: &'a str,
}

impl<'a> SlotFolder<'a> {
    pub fn new(slots: &Path, slot: &SlotName, installation: &'a str) -> Self {
        Self { path: slots.join(slot.as_str()), installation }
    }

    pub fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    pub fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Where in the log the last start of the slot begins.
    pub fn log_start(&self) -> u64 {
        fs::read_to_string(self.path.join(LOG_START)).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Records that the slot starts now: the text that is already in the log belongs to earlier bots.
    pub fn note_log_start(&self, log: &File) -> Result<(), ProviderError> {
        let path = self.path.join(LOG_START);
        let noted = log.metadata().and_then(|log| write_whole(&path, &log.len().to_string()));
        noted.map_err(|error| failed("write", &path, &error))
    }

    /// The process that this installation started in the slot, if any.
    pub fn leader(&self) -> Option<Leader> {
        self.is_own().unwrap_or(false).then(|| Leader::read(&self.path.join(LEADER))).flatten()
    }

    /// Waits until no other operation of this process works on the slot. This includes operations whose caller has
    /// gone.
    pub(super) fn lock(&self, wanted: &mut Wanted) -> Result<FolderLock, ProviderError> {
        let begun = Instant::now();
        while !locked().insert(self.path.clone()) {
            wanted.check()?;
            if begun.elapsed() > LOCK_TIMEOUT {
                let text = format!("another operation on {} has not ended in time", self.path.display());
                return Err(ProviderError::transient(text));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(FolderLock(self.path.clone()))
    }

    /// Whether the folder exists and belongs to this installation.
    pub fn is_own(&self) -> Result<bool, ProviderError> {
        Ok(self.owner()?.as_deref() == Some(self.installation))
    }

    /// The installation that the folder names as its owner.
    fn owner(&self) -> Result<Option<String>, ProviderError> {
        match fs::read_to_string(self.path.join(OWNER)) {
            // The process that creates the file died before it wrote the name.
            Ok(owner) if owner.trim().is_empty() => Ok(None),
            Ok(owner) => Ok(Some(owner.trim().to_owned())),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("read", &self.path, &error)),
        }
    }

    /// Removes `path`, which is the folder or something in it, unless the folder belongs to another installation.
    pub fn remove_own(&self, path: &Path) -> Result<(), ProviderError> {
        match self.owner()? {
            Some(owner) if owner != self.installation => Ok(()),
            _ => remove(path),
        }
    }

    /// Makes the missing parts of the folder. With `fresh`, it first removes the files of an earlier bot.
    pub fn prepare(&self, account: Option<&Account>, fresh: bool) -> Result<(), ProviderError> {
        self.refuse_stranger()?;
        let work = self.work();
        if fresh {
            remove(&work)?;
            self.remove_leftovers()?;
        }
        let prepared = || {
            self.make()?;
            DirBuilder::new().recursive(true).mode(0o700).create(&work)?;
            if let Some(account) = account {
                std::os::unix::fs::chown(&work, Some(account.uid.as_raw()), Some(account.gid.as_raw()))?;
            }
            write_whole(&self.path.join(OWNER), self.installation)
        };
        prepared().map_err(|error| failed("make", &self.path, &error))
    }

    /// Removes the files that a killed process did not remove.
    fn remove_leftovers(&self) -> Result<(), ProviderError> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "gone"));
        left.map(|entry| entry.path()).try_for_each(|path| remove_all(&path))
    }

    /// The slot's account must be able to pass through the folder. Other users cannot read its content.
    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o711).create(&self.path)?;
        fs::set_permissions(&self.path, Permissions::from_mode(0o711))
    }

    fn refuse_stranger(&self) -> Result<(), ProviderError> {
        match self.owner()? {
            Some(owner) if owner != self.installation => {
                let text = format!("the folder {} belongs to another installation", self.path.display());
                Err(ProviderError::permanent(text))
            }
            _ => Ok(()),
        }
    }

    /// Opens the log. This happens before the slot is locked, because a file system can block for an unlimited time.
    pub fn open_log(&self) -> Result<File, ProviderError> {
        self.refuse_stranger()?;
        let log = self.log();
        let opened = || {
            self.make()?;
            if fs::metadata(&log).is_ok_and(|log| log.len() > LOG_BYTES_MAX) {
                fs::rename(&log, self.path.join("log.1"))?;
            }
            OpenOptions::new().create(true).append(true).mode(0o600).open(&log)
        };
        opened().map_err(|error| failed("open", &log, &error))
    }
}

/// Removes a folder. The folder gets another name first. So the removal does not touch a new folder that another
/// replica makes under the slot's name while this replica is suspended.
fn remove(path: &Path) -> Result<(), ProviderError> {
    let gone = path.with_extension(format!("{}-{}.gone", std::process::id(), next_number()));
    match fs::rename(path, &gone) {
        Ok(()) => remove_all(&gone),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("remove", path, &error)),
    }
}

fn remove_all(path: &Path) -> Result<(), ProviderError> {
    let mut removed = Ok(());
    for _ in 0..REMOVE_ATTEMPTS {
        removed = fs::remove_dir_all(path);
        match &removed {
            // Another process may be writing the description now.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            // A bot may have left folders that are not writable.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => make_writable(path),
            _ => break,
        }
    }
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Makes a folder and everything below it writable for this user, as far as the user has the right to.
fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

/// Every error names its folder or file.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> ProviderError {
    ProviderError::transient(format!("cannot {what} {}: {error}", path.display()))
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Writes a file in one step: a reader sees the old text or the new text, never a part.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension(format!("{}-{}.new", std::process::id(), next_number()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).inspect_err(|_| drop(fs::remove_file(&new)))
}
