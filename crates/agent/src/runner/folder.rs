//! A folder for each bot: empty when the bot starts, and removed after it ends. The next agent removes the processes
//! and folders that a killed agent left. Only one agent at a time may use a base folder.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::leftovers::{self, LostBot, Record};
use crate::assignment::BotData;

/// The name prefix of bot folders. The base folder may also contain folders of other programs.
const PREFIX: &str = "greenroom-bot-";
const LOCK: &str = "greenroom-runner.lock";
const TRIES: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The base folder in which the folders of bots are made.
#[derive(Debug)]
pub struct Folders {
    base: PathBuf,
    /// Held open: the lock ends with this process, however the process ends.
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{} cannot be used: {source}", .path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("{} is held by another agent: there is one for a machine", .0.display())]
    Taken(PathBuf),
    #[error("what an earlier bot left cannot be removed: {}: {source}", .path.display())]
    Left { path: PathBuf, source: io::Error },
}

impl Folders {
    /// Removes the processes and folders of earlier bots. Returns the bot that an earlier agent lost.
    pub async fn open(base: PathBuf) -> Result<(Self, Option<LostBot>), FolderError> {
        let failed = FolderError::Unusable { path: base.clone(), source: io::Error::other("the look at it failed") };
        tokio::task::spawn_blocking(move || Self::open_now(&base)).await.unwrap_or(Err(failed))
    }

    fn open_now(base: &Path) -> Result<(Self, Option<LostBot>), FolderError> {
        let unusable = |source| FolderError::Unusable { path: base.to_owned(), source };
        fs::create_dir_all(base).map_err(unusable)?;
        // Bots run in other folders than the agent, so the path must be absolute.
        let base = base.canonicalize().map_err(unusable)?;
        let lock = base.join(LOCK);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&lock);
        let locked = opened.map_err(|source| FolderError::Unusable { path: lock.clone(), source })?;
        locked.try_lock().map_err(|_| FolderError::Taken(lock))?;
        let lost = leftovers::end(&base, PREFIX).map_err(unusable)?;
        for entry in fs::read_dir(&base).map_err(unusable)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                remove(&entry.path()).map_err(|source| FolderError::Left { path: entry.path(), source })?;
            }
        }
        Ok((Self { base, _lock: locked }, lost))
    }

    /// Records the bot that is about to run, for the next agent if this one is killed.
    pub fn record(&self, data: &BotData) -> Result<Record, FolderError> {
        Record::write(&self.base, data).map_err(|source| FolderError::Unusable { path: self.base.clone(), source })
    }

    /// Makes a new folder, which only this user may read.
    pub fn make(&self) -> Result<PathBuf, FolderError> {
        // The name is short because programs create sockets below it, and socket paths have a short limit.
        let path = self.base.join(format!("{PREFIX}{:08x}", fastrand::u32(..)));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(path),
            Err(source) => Err(FolderError::Unusable { path, source }),
        }
    }

    /// Removes a folder with all its contents, on another thread because it may be large.
    pub async fn remove(&self, path: PathBuf) -> Result<(), FolderError> {
        let mut tries = 0;
        loop {
            let removing = path.clone();
            let removed = tokio::task::spawn_blocking(move || remove(&removing)).await;
            let Err(source) = removed.unwrap_or_else(|error| Err(io::Error::other(error))) else { return Ok(()) };
            tries += 1;
            if tries == TRIES {
                return Err(FolderError::Left { path, source });
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    // The bot mounted something there. It belongs elsewhere and must not be removed.
    if is_mounted_below(path, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()) {
        return Err(io::Error::other("something is mounted below it"));
    }
    let removed = match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            open_up(path)?;
            fs::remove_dir_all(path)
        }
        removed => removed,
    };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Whether something is mounted at or below a folder, by the kernel's list of mounts.
fn is_mounted_below(path: &Path, mounts: &str) -> bool {
    // The fifth field is the mount point, in which a blank is \040.
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| point.replace("\\040", " ")).any(|point| Path::new(&point).starts_with(path))
}

/// Makes folders accessible again that a bot protected, as some download tools do.
fn open_up(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // Does not follow links.
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_at_or_below_a_folder_is_seen() {
        let mounts = "36 35 98:0 / / rw - ext4 /dev/a rw\n37 36 0:5 / /bots/greenroom-bot-1/a\\040b rw - fuse b rw\n";
        assert!(is_mounted_below(Path::new("/bots/greenroom-bot-1"), mounts));
        assert!(is_mounted_below(Path::new("/bots/greenroom-bot-1/a b"), mounts));
        assert!(!is_mounted_below(Path::new("/bots/greenroom-bot-10"), mounts));
        assert!(!is_mounted_below(Path::new("/bots/greenroom-bot-1/a"), mounts));
    }
}
