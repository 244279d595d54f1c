//! Allows only one server on an SQLite file. A second server would run the same keepers and overwrite the first one's
//! decisions. The lock is on a file beside the database, at the database's real path. The kernel releases it however
//! the process ends. Commands that only read need no lock.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{StoreError, connect};

/// How long a new server waits for one that is just ending.
const WAIT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The lock, held for the life of the server.
#[derive(Debug)]
pub struct ServerLock {
    _file: File,
}

impl ServerLock {
    /// Takes the lock of the database that the URL names. `None` on PostgreSQL, which several servers can share.
    pub async fn take(url: &str) -> Result<Option<Self>, StoreError> {
        let Some(database) = connect::sqlite_file(url)? else { return Ok(None) };
        let failed = |error: std::io::Error| {
            StoreError::Url(format!("the lock of the SQLite file {} cannot be taken: {error}", database.display()))
        };
        // Another path to the same file, such as a symbolic link, has the same lock.
        let path = beside(&database.canonicalize().map_err(failed)?);
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let begun = tokio::time::Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if begun.elapsed() < WAIT => tokio::time::sleep(RETRY_INTERVAL).await,
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::InUse { pid: holder(&mut file), database: database.display().to_string() });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Some(Self { _file: file }))
    }
}

fn beside(database: &Path) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push("-lock");
    path.into()
}

/// The process id that the holder wrote. The holder may not have written it yet.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).ok()?;
    text.trim().parse().ok()
}
