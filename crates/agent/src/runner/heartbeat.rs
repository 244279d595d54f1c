//! Saying that the machine lives, whether it has a bot or not, and hearing what is to become of it.

use reqwest::StatusCode;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::link::{Link, Standing};
use crate::http::{Backoff, Refusal};
use crate::life::{Task, task};
use crate::log::log;

/// What was heard so far.
#[derive(Clone, Debug)]
pub struct Heard {
    /// When the server last answered.
    pub at: Instant,
    /// The run that is to be ended.
    pub stop: Option<String>,
    /// That the machine is to end, and why.
    pub end: Option<String>,
    /// That the server does not know this registration, and in which words.
    pub unknown: Option<String>,
}

/// A heart that beats for as long as this is held.
#[derive(Debug)]
pub struct Heartbeat {
    pub heard: watch::Receiver<Heard>,
    /// The run that the runner has.
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
            // Never later than the next would be, whatever patience is asked for: this is what keeps the machine.
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
                // What is said of a run is said of the one that was named, not of one that came meanwhile.
                self.stop = run.filter(|_| standing.stop);
                self.end = standing.end.then(|| "the server says so".to_owned());
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
