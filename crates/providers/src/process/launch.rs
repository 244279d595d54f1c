//! Starts a slot's command. The server starts its own binary as `process-slot`, which records itself as the slot's
//! leader, gives up the rights that the slot must not have, and then runs the command in its place. If a step fails, it
//! writes the reason to its standard output, which the server reads. That pipe closes by itself once the command runs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::folder::{LEADER, SlotFolder, failed, write_whole};
use super::table::{self, Identity, Leader, START};
use super::user::Account;
use crate::ProviderError;

/// The hidden command of the binary.
pub const COMMAND: &str = "process-slot";
/// Folders that every user may write to. A slot with its own account gets private, empty copies, which disappear with
/// its command.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];
const PERMANENT: &str = "permanent ";

/// The limit of open files that this process had before the server raised it for its connections.
static FILE_LIMIT: OnceLock<Option<u64>> = OnceLock::new();

/// Stores the limit of open files for slots: the limit that the server had when it started.
pub fn remember_file_limit() {
    FILE_LIMIT.get_or_init(|| getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft));
}

/// Starts the command of a slot, and returns once it runs.
pub fn start(
    launcher: &Path,
    folder: &SlotFolder<'_>,
    log: File,
    account: Option<&Account>,
    command: &[String],
    environment: BTreeMap<String, String>,
) -> Result<(), ProviderError> {
    let spawned = tokio::process::Command::new(launcher)
        .arg(COMMAND)
        .arg(&folder.path)
        .arg(account.map_or("", |account| account.name.as_str()))
        .arg(FILE_LIMIT.get().copied().flatten().map_or(String::new(), |limit| limit.to_string()))
        .args(command)
        .env_clear()
        .envs(environment)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn();
    // The server does not wait for the process, which may outlive it. If it ends earlier, the runtime collects it.
    let mut child = spawned.map_err(|error| failed("run", launcher, &error))?;
    let mut error = String::new();
    if let Some(pipe) = child.stdout.take() {
        let read = pipe.into_owned_fd().and_then(|pipe| File::from(pipe).read_to_string(&mut error));
        read.map_err(|error| {
            ProviderError::transient(format!("the result of the slot's start cannot be read: {error}"))
        })?;
    }
    match error.strip_prefix(PERMANENT) {
        Some(error) => Err(ProviderError::permanent(error)),
        None if error.is_empty() => {
            child.id().and_then(|pid| i32::try_from(pid).ok()).inspect(|pid| table::await_environment(*pid));
            Ok(())
        }
        None => Err(ProviderError::transient(error)),
    }
}

/// The launcher: runs the command in its place, or reports why it cannot.
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(folder), Some(user), Some(files)) =
        (arguments.next().map(PathBuf::from), arguments.next(), arguments.next())
    else {
        return ExitCode::FAILURE;
    };
    if let (Ok(files), Ok((_, hard))) = (files.to_string_lossy().parse::<u64>(), getrlimit(Resource::RLIMIT_NOFILE)) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, files.min(hard), hard);
    }
    // If the command cannot run, standard output is already the command's own.
    let Ok(server) = io::stdout().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let error = match become_command(&folder, &user, &arguments.collect::<Vec<_>>()) {
        Err(error) if error.retryable => error.message,
        Err(error) => format!("{PERMANENT}{}", error.message),
    };
    let _ = File::from(server).write_all(error.as_bytes());
    ExitCode::FAILURE
}

/// Returns only on failure.
fn become_command(
    folder: &Path,
    user: &OsStr,
    command: &[OsString],
) -> Result<std::convert::Infallible, ProviderError> {
    let permanent = |text: String| ProviderError::permanent(text);
    let (program, arguments) = command.split_first().ok_or_else(|| permanent("the pool has no command".to_owned()))?;
    let (work, leader) = (folder.join("work"), folder.join(LEADER));
    // The server has opened the log.
    let log = io::stderr().as_fd().try_clone_to_owned().map_err(|error| failed("open the log in", folder, &error))?;
    let log = File::from(log);
    let id = Identity::own().ok_or_else(|| ProviderError::transient("/proc does not show this process"))?;
    let start = std::env::var(START).unwrap_or_default();
    write_whole(&leader, &Leader { id, start }.text()).map_err(|error| failed("write", &leader, &error))?;
    if !user.is_empty() {
        let account = Account::find(&user.to_string_lossy())?;
        if let Err(error) = separate(&work, command) {
            // A container may forbid this even to root. The account is still useful alone.
            let mut log = &log;
            let _ = writeln!(log, "greenroom: /tmp and /dev/shm are shared with other slots: {error}");
        }
        account.switch_to_account().map_err(permanent)?;
        nix::sys::prctl::set_no_new_privs().map_err(|error| permanent(error.to_string()))?;
    }
    std::env::set_current_dir(&work).map_err(|error| failed("enter the slot's folder", &work, &error))?;
    let mut command = Command::new(program);
    command.args(arguments).env("TMPDIR", if user.is_empty() { &work } else { Path::new("/tmp") });
    let error = command.stdin(Stdio::null()).stdout(log).exec();
    let text = format!("cannot run {}: {error}", program.display());
    Err(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => permanent(text),
        _ => ProviderError::transient(text),
    })
}

/// Replaces the folders that all users share with private ones for this process. The slot's own folder and the paths in
/// its command stay visible.
fn separate(work: &Path, command: &[OsString]) -> io::Result<()> {
    let below = |path: &Path, shared: &str| path.starts_with(shared) && path != Path::new(shared);
    let needed = std::iter::once(work).chain(command.iter().map(Path::new));
    let needed = needed.filter(|path| SHARED.iter().any(|shared| below(path, shared)));
    let kept: Vec<(&Path, File)> = needed.filter_map(|path| Some((path, File::open(path).ok()?))).collect();
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Mounts from now on are invisible to other processes.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    for shared in SHARED.iter().filter(|shared| Path::new(shared).is_dir()) {
        mount(Some("tmpfs"), *shared, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("mode=1777"))?;
    }
    for (path, file) in kept {
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
        }
        match file.metadata()?.is_dir() {
            true => DirBuilder::new().recursive(true).create(path)?,
            false => File::create(path).map(drop)?,
        }
        mount(Some(format!("/proc/self/fd/{}", file.as_raw_fd()).as_str()), path, none, MsFlags::MS_BIND, none)?;
    }
    Ok(())
}
