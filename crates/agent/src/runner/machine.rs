//! The machine: its instance metadata service, and how the agent ends it.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use reqwest::Client;
use tokio::process::Command;
use tokio::sync::watch;

use crate::bot_run::{Shutdown, Task, task};
use crate::http::{self, Backoff, Refusal};
use crate::log::log;
use crate::options::CommandLine;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const TRIES: u32 = 5;
/// AWS gives a spot machine two minutes between the notice and its end.
const NOTICE_POLL_INTERVAL: Duration = Duration::from_secs(5);
const ENDING: Duration = Duration::from_secs(60);

/// The instance metadata service, version 2.
#[derive(Clone, Debug)]
pub struct Metadata {
    http: Client,
    url: String,
}

#[derive(Debug, thiserror::Error)]
#[error("the instance metadata service does not say what this machine is ({0}); set GREENROOM_INSTANCE_ID")]
pub struct NoInstance(Refusal);

impl Metadata {
    pub fn new(http: Client, url: String) -> Self {
        Self { http, url }
    }

    async fn get(&self, path: &str) -> Result<String, Refusal> {
        let request = self.http.put(format!("{}/latest/api/token", self.url));
        let request = request.header("X-aws-ec2-metadata-token-ttl-seconds", "60").timeout(ANSWER_TIMEOUT);
        let (_, token) = http::send(request).await?;
        let request = self.http.get(format!("{}/latest/meta-data/{path}", self.url)).timeout(ANSWER_TIMEOUT);
        let (_, text) = http::send(request.header("X-aws-ec2-metadata-token", token.trim())).await?;
        Ok(text.trim().to_owned())
    }

    pub async fn instance_id(&self) -> Result<String, NoInstance> {
        let mut backoff = Backoff::default();
        for _ in 1..TRIES {
            match self.get("instance-id").await {
                Ok(id) => return Ok(id),
                Err(refusal) => backoff.wait("the instance metadata service", &refusal).await,
            }
        }
        self.get("instance-id").await.map_err(NoInstance)
    }

    /// Watches whether AWS takes this spot machine back. On other machines the value stays false.
    pub fn notice(&self, is_spot: bool) -> (watch::Receiver<bool>, Option<Task<()>>) {
        let (sender, receiver) = watch::channel(false);
        let metadata = self.clone();
        let looking = is_spot.then(|| {
            task(async move {
                // A failed request counts as no notice.
                while metadata.get("spot/instance-action").await.is_err() {
                    tokio::time::sleep(NOTICE_POLL_INTERVAL).await;
                }
                sender.send_replace(true);
            })
        });
        (receiver, looking)
    }
}

/// Ends the machine. The agent stops waiting when it is asked to end itself, because the shutdown of the machine may
/// begin that way.
pub async fn end(command: Option<&CommandLine>, shutdown: &mut Shutdown) -> ExitCode {
    let Some(CommandLine { program, arguments }) = command else { return ExitCode::SUCCESS };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("GREENROOM_RUNNER_TOKEN").stdin(Stdio::null());
    let mut ending = match command.spawn() {
        Ok(ending) => ending,
        Err(error) => {
            log!("the machine cannot be ended: {} cannot be run: {error}", program.display());
            return ExitCode::FAILURE;
        }
    };
    tokio::select! {
        status = ending.wait() => match status {
            Ok(status) if status.success() => ExitCode::SUCCESS,
            Ok(status) => {
                log!("the machine was not ended: {} says {status}", program.display());
                ExitCode::FAILURE
            }
            Err(error) => {
                log!("the machine was perhaps not ended: {error}");
                ExitCode::FAILURE
            }
        },
        Ok(()) = shutdown.changed() => ExitCode::SUCCESS,
        () = tokio::time::sleep(ENDING) => {
            log!("{} is still at it", program.display());
            ExitCode::SUCCESS
        }
    }
}
