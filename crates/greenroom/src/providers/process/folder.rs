//! The folder of a slot: what is in it, whose it is, and one operation at a time on it.
//!
//! ```text
//! greenroom-slots/pool-meet-001/        mode 0711
//!   installation                        whose it is
//!   leader                              the process that was started, and for what
//!   log, log.1                          what ran there has printed
//!   log-start                           where in the log the last start begins
//!   description                         for people
//!   work/                               the bot's home, mode 0700; gone after each bot
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
use crate::providers::ProviderError;

/// How long to wait for another operation on the same slot: longer than ending its processes takes.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How often a folder is removed once more when something was put into it meanwhile.
const REMOVE_ATTEMPTS: usize = 6;
/// A log is started anew when it has grown past this; the one before is kept.
const LOG_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// The file that names the installation in a slot's folder.
const OWNER: &str = "installation";
const LOG_START: &str = "log-start";
/// The file in which the launcher of a slot names itself.
pub const LEADER: &str = "leader";

/// The folders that operations of this process work on. Replicas exclude each other in the database, by a lock that a
/// replica which stands still does not keep.
static LOCKED: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);

fn locked() -> MutexGuard<'static, HashSet<PathBuf>> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to work on a folder, until it is dropped.
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

    /// Notes that the slot is started now: what the log holds already is of earlier bots.
    pub fn note_log_start(&self, log: &File) -> Result<(), ProviderError> {
        let path = self.path.join(LOG_START);
        let noted = log.metadata().and_then(|log| write_whole(&path, &log.len().to_string()));
        noted.map_err(|error| failed("write", &path, &error))
    }

    /// The process that was started in it, if this installation has started one.
    pub fn leader(&self) -> Option<Leader> {
        self.is_own().unwrap_or(false).then(|| Leader::read(&self.path.join(LEADER))).flatten()
    }

    /// Waits until no other operation of this process works on the slot, also one whose caller has gone.
    pub(super) fn lock(&self, wanted: &mut Wanted) -> Result<FolderLock, ProviderError> {
        let begun = Instant::now();
        while !locked().insert(self.path.clone()) {
            wanted.check()?;
            if begun.elapsed() > LOCK_PATIENCE {
                let text = format!("another operation on {} does not end", self.path.display());
                return Err(ProviderError::transient(text));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(FolderLock(self.path.clone()))
    }

    /// Whether the folder is there and says that it is this installation's.
    pub fn is_own(&self) -> Result<bool, ProviderError> {
        Ok(self.owner()?.as_deref() == Some(self.installation))
    }

    /// Whose the folder says that it is.
    fn owner(&self) -> Result<Option<String>, ProviderError> {
        match fs::read_to_string(self.path.join(OWNER)) {
            // The process that was to write it died before.
            Ok(owner) if owner.trim().is_empty() => Ok(None),
            Ok(owner) => Ok(Some(owner.trim().to_owned())),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("look into", &self.path, &error)),
        }
    }

    /// Removes `path`, which is the folder or something in it, unless it is another installation's.
    pub fn remove_own(&self, path: &Path) -> Result<(), ProviderError> {
        match self.owner()? {
            Some(owner) if owner != self.installation => Ok(()),
            _ => remove(path),
        }
    }

    /// Makes what is missing of it. With `fresh`, what an earlier bot left is removed first.
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

    /// What a process that was killed did not get to remove.
    fn remove_leftovers(&self) -> Result<(), ProviderError> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let left = entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "gone"));
        left.map(|entry| entry.path()).try_for_each(|path| remove_all(&path))
    }

    /// The account of a slot has to pass through the folder; what is in it is for nobody else.
    fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o711).create(&self.path)?;
        fs::set_permissions(&self.path, Permissions::from_mode(0o711))
    }

    fn refuse_stranger(&self) -> Result<(), ProviderError> {
        match self.owner()? {
            Some(owner) if owner != self.installation => {
                let text = format!("the folder {} is another installation's", self.path.display());
                Err(ProviderError::permanent(text))
            }
            _ => Ok(()),
        }
    }

    /// Opens the log. Before the slot is locked: a file system may let this wait for ever.
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

/// Removes a folder. It is given another name first: what is made under its own name meanwhile, by another replica after this
/// one stood still, is not touched.
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
            // Its description may be written just now.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            // A bot may have left folders in which nothing can be written.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => make_writable(path),
            _ => break,
        }
    }
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &error)),
        _ => Ok(()),
    }
}

/// Lets this user write in a folder and in all below it, as far as it may.
fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

/// Every error names the folder or file that it is about.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> ProviderError {
    ProviderError::transient(format!("cannot {what} {}: {error}", path.display()))
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Writes a file at once: a reader sees the text before or this one, never half of it.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension(format!("{}-{}.new", std::process::id(), next_number()));
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).inspect_err(|_| drop(fs::remove_file(&new)))
}
