//! The profiles that `login` keeps: one file that only its owner can read, in `$XDG_CONFIG_HOME/greenroom` or
//! `~/.config/greenroom`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::client::Token;
use crate::error::CliError;

/// The profile of a `login` without a name.
pub const DEFAULT_NAME: &str = "default";

#[derive(Debug, Default, Deserialize, Serialize)]
pub struct Profiles {
    /// The profile of commands that name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    #[serde(default)]
    pub profiles: BTreeMap<String, Profile>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Profile {
    pub server: String,
    pub token: Token,
}

impl Profiles {
    pub fn read() -> Result<Self, CliError> {
        let Some(file) = file() else { return Ok(Self::default()) };
        match fs::read_to_string(&file) {
            // The error of the parser would quote the line, which may have a token.
            Ok(text) => toml::from_str(&text).map_err(|_| {
                CliError::failed(format!("{} is not a valid file of profiles", file.display()))
                    .next("Correct it, or delete it and sign in again with `greenroom login`.")
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(CliError::failed(format!("cannot read {}: {error}", file.display()))),
        }
    }

    /// The named profile, or the current one.
    pub fn find(&self, name: Option<&str>) -> Option<(String, &Profile)> {
        let name = name.or(self.current.as_deref())?;
        self.profiles.get(name).map(|profile| (name.to_owned(), profile))
    }

    pub fn names(&self) -> String {
        if self.profiles.is_empty() {
            return "none".to_owned();
        }
        self.profiles.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Keeps other commands from changing the profiles, until the value is dropped. The file of profiles itself cannot
    /// be locked: each change replaces it.
    pub fn lock() -> Result<File, CliError> {
        let file = file_to_write()?;
        let lock = || {
            let folder = make_folder(&file)?;
            let lock = File::options().append(true).create(true).mode(0o600).open(folder.join("profiles.lock"))?;
            // Some network file systems have no locks. A login must work there too.
            let _ = lock.lock();
            Ok(lock)
        };
        lock().map_err(|error: io::Error| CliError::failed(format!("cannot lock {}: {error}", file.display())))
    }

    /// Replaces the file in one step, so that no reader sees half of it, and a full disk loses nothing.
    pub fn write(&self) -> Result<PathBuf, CliError> {
        let file = file_to_write()?;
        let text =
            toml::to_string(self).map_err(|error| CliError::failed(format!("cannot write profiles: {error}")))?;
        replace(&file, text.as_bytes())
            .map_err(|error| CliError::failed(format!("cannot write {}: {error}", file.display())))?;
        Ok(file)
    }
}

/// `None` where neither variable is set.
fn file() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| folder("HOME").map(|home| home.join(".config")))?;
    Some(config.join("greenroom").join("profiles.toml"))
}

fn file_to_write() -> Result<PathBuf, CliError> {
    file().ok_or_else(|| {
        CliError::failed("there is no folder for profiles: neither XDG_CONFIG_HOME nor HOME is set")
            .next("Set GREENROOM_SERVER and GREENROOM_TOKEN instead.")
    })
}

/// The folder of this file, which only its owner can read.
fn make_folder(file: &Path) -> io::Result<&Path> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    if let Some(config) = folder.parent() {
        fs::create_dir_all(config)?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(folder),
    }
}

fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let folder = make_folder(file)?;
    let new = folder.join(format!(".profiles.{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let written = (|| {
        let mut out = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        out.write_all(text)?;
        out.sync_all()?;
        fs::rename(&new, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}
