//! The bot's process with its pipes, from its start until its output is read to the end. A process that is started
//! ahead of its meeting lives here before there is a bot.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{ChildStdin, ChildStdout};

use crate::assignment::BotData;
use crate::bot_run::{Task, task};
use crate::child::{CannotRun, Process};
use crate::lines::Lines;
use crate::options::CommandLine;
use crate::pipes;
use crate::tail::Tail;

#[derive(Debug)]
pub struct BotProcess {
    pub process: Process,
    pub stdin: Option<ChildStdin>,
    /// `None` when the process has closed it.
    pub stdout: Option<Lines<ChildStdout>>,
    /// Copies standard error until the process closes it.
    pub errors: Task<()>,
    pub tail: Arc<Tail>,
    /// The bot's own folder, if it has one.
    pub folder: Option<PathBuf>,
}

impl BotProcess {
    /// Starts the command; without a bot's data, ahead of its meeting.
    pub fn spawn(command: &CommandLine, data: Option<&BotData>, folder: Option<PathBuf>) -> Result<Self, CannotRun> {
        let (process, pipes) = Process::spawn(command, data, folder.as_deref())?;
        let tail = Arc::new(Tail::default());
        let errors = task(pipes::copy_errors(pipes.stderr, tail.clone()));
        Ok(Self { process, stdin: pipes.stdin, stdout: pipes.stdout.map(Lines::new), errors, tail, folder })
    }

    /// Kills all remaining processes of the command, and reads the rest of its output. If its future is dropped, the next
    /// call continues.
    pub async fn clear(&mut self, drain: Duration) {
        self.process.clear().await;
        let Self { stdout, errors, tail, .. } = self;
        let reading = async {
            pipes::read_ahead(stdout, tail, |_| false).await;
            // A caller may have given up an earlier call after this task had ended.
            if !errors.0.is_finished() {
                let _ = (&mut errors.0).await;
            }
        };
        let _ = tokio::time::timeout(drain, reading).await;
    }
}
