//! The command of a probe: the demo bot, which this program contains. It runs instead of the bot's own command, which a
//! probe never starts. The bot's own command only has to be there.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::demo;
use crate::options::CommandLine;

/// Why a probe cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NoProbe {
    #[error("{0} cannot be run: there is no such program in this slot")]
    CommandMissing(String),
    #[error("the agent cannot find its own program, which contains the demo bot: {0}")]
    OwnProgram(#[from] std::io::Error),
}

impl NoProbe {
    /// The exit code that a shell uses.
    pub fn code(&self) -> i32 {
        match self {
            Self::CommandMissing(_) => 127,
            Self::OwnProgram(_) => 126,
        }
    }
}

/// The demo bot, if the slot has the program of the bot's own command.
pub fn command(own: &CommandLine) -> Result<CommandLine, NoProbe> {
    if !is_there(&own.program, std::env::var_os("PATH").as_deref()) {
        return Err(NoProbe::CommandMissing(own.program.display().to_string()));
    }
    Ok(CommandLine { program: std::env::current_exe()?.into(), arguments: vec![demo::COMMAND.into()] })
}

/// Whether a program can be found, in the way in which the system finds it. Without `PATH` the system has its own
/// folders, so the program counts as found.
fn is_there(program: &OsStr, path: Option<&OsStr>) -> bool {
    if Path::new(program).components().count() > 1 {
        return is_executable(Path::new(program));
    }
    path.is_none_or(|path| std::env::split_paths(path).any(|folder| is_executable(&folder.join(program))))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(program: &str, path: Option<&str>) -> bool {
        is_there(OsStr::new(program), path.map(OsStr::new))
    }

    #[test]
    fn a_program_is_found_by_its_path_or_in_the_folders_of_the_system() {
        assert!(there("/bin/sh", None));
        assert!(there("sh", Some("/nowhere:/bin")));
        assert!(there("sh", None));
        assert!(!there("sh", Some("/nowhere")));
        assert!(!there("/nowhere/sh", Some("/bin")));
        assert!(!there("/etc/passwd", None), "nobody may execute it");
        assert!(!there("/etc", None), "it is a folder");
    }
}
