//! Sends the runner's heartbeats, with or without a bot, and keeps the server's instructions from the answers.

use reqwest::StatusCode;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::link::{Link, Standing};
use crate::bot_run::{Task, task};
use crate::http::{Backoff, Refusal};
use crate::log::log;

/// The state of a runner that gets no bot until it registers.
const UNREGISTERED: &str = "created";

/// The latest information from the server.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When the server last answered.
    pub at: Instant,
    /// The run that the agent must end.
    pub stop: Option<String>,
    /// The machine must end, and why.
    pub end: Option<String>,
    /// The server does not know this registration. The text is its error.
    pub unknown: Option<String>,
}

/// Sends heartbeats until it is dropped.
#[derive(Debug)]
pub struct Heartbeat {
    pub heard: watch::Receiver<Heard>,
    /// The current run of the runner.
    pub run: watch::Sender<Option<String>>,
    _beating: Task<()>,
}

impl Heartbeat {
    pub fn begin(link: Link, interval: Duration) -> Self {
        let (run, current) = watch::channel(None);
        let (sender, heard) = watch::channel(Heard { at: Instant::now(), stop: None, end: None, unknown: None });
        Self { heard, run, _beating: task(beat(link, interval, current, sender)) }
    }
}

async fn beat(link: Link, interval: Duration, run: watch::Receiver<Option<String>>, heard: watch::Sender<Heard>) {
    let what = "the runner's heartbeat";
    let mut backoff = Backoff::default();
    loop {
        let current = run.borrow().clone();
        let answer = link.heartbeat(current.as_deref(), interval).await;
        let pause = match &answer {
            Ok(_) => {
                backoff.succeeded(what);
                interval
            }
            // Never waits longer than the interval, even if the server asks for it: without heartbeats the machine is
            // terminated.
            Err(refusal @ Refusal::Away { .. }) => backoff.after(what, refusal).min(interval),
            Err(refusal) => {
                log!("{what} was refused: {refusal}");
                interval
            }
        };
        heard.send_modify(|heard| heard.take(answer, current));
        if heard.borrow().end.is_some() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

impl Heard {
    fn take(&mut self, answer: Result<Standing, Refusal>, run: Option<String>) {
        match answer {
            Err(Refusal::Away { .. }) => return,
            Ok(standing) => {
                self.unknown = None;
                // The answer is about the run that the request named, not about a run that started meanwhile.
                self.stop = run.filter(|_| standing.stop);
                self.end = standing.end.then(|| "the server says so".to_owned());
                // An old report that no command was ready may arrive late.
                if standing.state == UNREGISTERED {
                    self.unknown = Some("the runner is not registered".to_owned());
                }
            }
            Err(refusal) => match refusal.status() {
                Some(StatusCode::GONE) => self.end = Some(refusal.to_string()),
                Some(StatusCode::UNAUTHORIZED) => self.unknown = Some(refusal.to_string()),
                _ => {}
            },
        }
        self.at = Instant::now();
    }
}
