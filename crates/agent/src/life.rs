//! One bot's life in this slot: its process from its start to its end, and everything that is said of it meanwhile.
//! Ends only when nothing of the process is left and its end was reported, or cannot be.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use reqwest::Client;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::assignment::{BotData, container_id};
use crate::callbacks::{CallbackClient, Exit, Message, Outbox, Over, outbox};
use crate::child::{self, Process};
use crate::commands::{self, Command, Commands};
use crate::lines::Ending;
use crate::log::log;
use crate::options::Options;
use crate::pipes;
use crate::tail::Tail;

/// Greenroom's words for the end of a bot whose slot was ended from outside, and of one that would not leave.
const INTERRUPTED: &str = "interrupted";
const KILLED: &str = "killed";
const BURYING: Duration = Duration::from_secs(10);
/// How long what the process printed last may take to come through its pipe once the process is gone.
const DRAINING: Duration = Duration::from_secs(5);
/// How long a heartbeat that is under way may hold up the report of the end.
const LAST_BEAT: Duration = Duration::from_secs(1);
/// Docker sends SIGKILL 10 s after SIGTERM. The bot's end must be reported before that.
const INTERRUPTED_LEAVE_GRACE: Duration = Duration::from_secs(4);
const INTERRUPTED_KILL_GRACE: Duration = Duration::from_secs(2);
/// How many lines are told with a failure.
const TOLD_LINES: usize = 5;
const TERMINATED: i32 = 128 + Signal::SIGTERM as i32;

/// What those that speak with the server have to tell.
#[derive(Debug)]
pub enum News {
    /// The server knows that the bot runs.
    Started {
        stopping: bool,
    },
    Command(Command),
    /// The server does not listen to this assignment any more, and why.
    Over(String),
}

/// How the agent was asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndRequest {
    /// How often. More than once is impatience.
    pub times: u32,
    /// The last signal that asked for it; `None` when the server did.
    pub signal: Option<Signal>,
}

pub type Shutdown = watch::Receiver<EndRequest>;

/// A task that ends with the one who wanted it.
#[derive(Debug)]
pub struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub fn task<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Task(tokio::spawn(work))
}

/// Where a bot runs.
#[derive(Debug)]
pub struct RunLocation {
    /// What the server knows it by.
    pub id: Option<String>,
    /// The bot's own, if it has one.
    pub folder: Option<PathBuf>,
    /// Whether the server can learn only from the agent what the bot prints.
    pub sends_log: bool,
}

impl RunLocation {
    pub fn slot() -> Self {
        Self { id: container_id(), folder: None, sends_log: false }
    }
}

/// How far the bot's leaving has got.
#[derive(Debug, Default)]
struct Leaving {
    asked: bool,
    /// A signal asked for it, before the server did.
    interrupted_by: Option<Signal>,
    terminated: bool,
    killed: bool,
    /// When the next step is due.
    due: Option<Instant>,
}

/// Runs the bot to its end and reports it. Gives the exit code that was reported, or would have been. `note` hears which
/// process the bot runs as.
pub async fn live(
    http: &Client,
    options: &Options,
    data: BotData,
    location: RunLocation,
    note: impl FnOnce(i32),
    mut shutdown: Shutdown,
) -> i32 {
    let data = Arc::new(data);
    let callbacks = CallbackClient::new(http.clone(), data.clone());
    let (news_sender, mut news) = mpsc::unbounded_channel();
    let tail = Arc::new(Tail::default());
    let (outbox, delivery) = outbox(callbacks.clone(), tail.clone(), news_sender.clone());
    let delivery = task(delivery.run());
    let heard = Arc::new(Commands::default());
    let mut report = Report { outbox, delivery, heard, beating: None, waiting: None, over: false };

    let (process, pipes) = match Process::spawn(&options.command, &data.text, location.folder.as_deref()) {
        Ok(spawned) => spawned,
        Err(error) => {
            log!("bot {}: {error}", data.bot_id);
            let exit = Exit { code: error.code(), reason: None, error: Some(error.to_string()) };
            report.end(exit.clone(), options.report_for, &mut news, &mut shutdown).await;
            return exit.code;
        }
    };
    note(process.id());
    log!("bot {} on connection {}: runs as process {}", data.bot_id, data.connection_id, process.id());
    report.outbox.put(Message::Started { container_id: location.id }).await;

    let (lines, to_write) = mpsc::unbounded_channel();
    let _writing = task(pipes::write(pipes.stdin, to_write, report.heard.clone()));
    let mut logging = task(pipes::copy_errors(pipes.stderr, tail.clone()));
    let sending = location.sends_log.then(|| task(pipes::send_log(report.outbox.clone(), tail.clone())));
    let ending = Arc::new(Mutex::new(Ending::default()));
    let mut reading = task(pipes::read(pipes.stdout, report.outbox.clone(), ending.clone(), tail.clone()));

    let mut life = Life { options, process, lines, leaving: Leaving::default() };
    let status = life.until_end(&mut report, callbacks, news_sender, &mut news, &mut shutdown).await;

    let Life { process, leaving, .. } = life;
    process.clear().await;
    report.outbox.open_wide();
    let read_all = async {
        let _ = (&mut reading.0).await;
        let _ = (&mut logging.0).await;
    };
    if tokio::time::timeout(DRAINING, read_all).await.is_err() {
        log!("the command's output is still held open; what it holds is not waited for");
    }
    drop((reading, logging, sending));
    let ending = ending.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let exit = match status {
        Ok(status) => with_last_lines(exit(status, &leaving, ending), &tail),
        Err(error) => Exit { code: 1, reason: None, error: Some(format!("the command was lost: {error}")) },
    };
    let explained = exit.error.as_deref().or(exit.reason.as_deref()).unwrap_or("well");
    log!("bot {}: ended with {}: {explained}", data.bot_id, exit.code);
    report.end(exit.clone(), options.report_for, &mut news, &mut shutdown).await;
    exit.code
}

/// Adds what a bot that crashed printed last to what is told of it.
fn with_last_lines(exit: Exit, tail: &Tail) -> Exit {
    let lines = if exit.code == 0 || exit.reason.is_some() { String::new() } else { tail.last_lines(TOLD_LINES) };
    let error = exit.error.map(|error| if lines.is_empty() { error } else { format!("{error}. Last lines:{lines}") });
    Exit { error, ..exit }
}

/// What the end of the process means for the bot.
fn exit(status: ExitStatus, leaving: &Leaving, Ending { reason, error }: Ending) -> Exit {
    let code = child::code(status);
    if let Some(signal) = leaving.interrupted_by {
        let own = reason.map(|word| format!("; it ended with code {code} and the reason {word}")).unwrap_or_default();
        let said = error.map(|error| format!(": {error}")).unwrap_or_default();
        let error = format!("the agent got {signal} while the bot ran, and not from Greenroom{own}{said}");
        return Exit { code: 128 + signal as i32, reason: Some(INTERRUPTED.to_owned()), error: Some(error) };
    }
    // It was asked to leave and left, if only when it was pushed. Programs that catch the signal end with its code.
    if leaving.terminated && code == TERMINATED {
        return Exit { code: 0, reason: reason.or_else(|| Some("left".to_owned())), error };
    }
    if leaving.killed {
        let error = "the command did not leave when asked and did not end at SIGTERM, so it was killed";
        return Exit { code, reason: Some(KILLED.to_owned()), error: Some(error.to_owned()) };
    }
    let error = error.or_else(|| (code != 0).then(|| child::exit_text(status)));
    Exit { code, reason, error }
}

struct Life<'a> {
    options: &'a Options,
    process: Process,
    lines: mpsc::UnboundedSender<Command>,
    leaving: Leaving,
}

impl Life<'_> {
    async fn until_end(
        &mut self,
        report: &mut Report,
        callbacks: CallbackClient,
        news_sender: mpsc::UnboundedSender<News>,
        news: &mut mpsc::UnboundedReceiver<News>,
        shutdown: &mut Shutdown,
    ) -> std::io::Result<ExitStatus> {
        let heard = report.heard.clone();
        let mut burying = tokio::time::interval(BURYING);
        let request = *shutdown.borrow_and_update();
        if request.times > 0 {
            self.end(request, report).await;
        }
        loop {
            let due = self.leaving.due;
            tokio::select! {
                status = self.process.wait() => return status,
                Some(news) = news.recv() => match news {
                    News::Started { stopping } => {
                        report.beating = Some(task(commands::beat(callbacks.clone(), heard.clone(), news_sender.clone())));
                        report.waiting = Some(task(commands::wait(callbacks.clone(), heard.clone(), news_sender.clone())));
                        if stopping {
                            self.leave("the bot is stopping already", None);
                        }
                    }
                    News::Command(command) if command.is_leave() => {
                        let id = command.id.clone();
                        if !self.leave("the server says so", Some(command)) {
                            heard.heard(id);
                        }
                    }
                    News::Command(command) => {
                        log!("command {} {}", command.action, command.id);
                        let _ = self.lines.send(command);
                    }
                    News::Over(why) => {
                        log!("the assignment is over: {why}");
                        report.stop();
                        self.leave("the assignment is over", None);
                    }
                },
                Ok(()) = shutdown.changed() => {
                    let request = *shutdown.borrow_and_update();
                    self.end(request, report).await;
                }
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.push(),
                _ = burying.tick() => self.process.bury_orphans(),
            }
        }
    }

    /// The agent is asked to end, and so is its bot. By a signal that is an end from outside: the server hears of it at once.
    async fn end(&mut self, EndRequest { signal, .. }: EndRequest, report: &Report) {
        let Some(signal) = signal.filter(|_| !self.leaving.asked) else {
            self.leave("the server says so", None);
            return;
        };
        self.leave(&format!("the agent got {signal}"), None);
        self.leaving.interrupted_by = Some(signal);
        self.leaving.due = Some(Instant::now() + self.options.leave_grace.min(INTERRUPTED_LEAVE_GRACE));
        let (status, reason) = ("stopping".to_owned(), Some(INTERRUPTED.to_owned()));
        report.outbox.put(Message::Status { status, reason }).await;
    }

    /// Tells the bot to leave, once. False when it was told before.
    fn leave(&mut self, why: &str, command: Option<Command>) -> bool {
        if self.leaving.asked {
            return false;
        }
        log!("the command is told to leave: {why}");
        self.leaving.asked = true;
        self.leaving.due = Some(Instant::now() + self.options.leave_grace);
        let _ = self.lines.send(command.unwrap_or_else(Command::leave));
        true
    }

    /// It was told to leave and has not: the next step.
    fn push(&mut self) {
        if self.leaving.terminated {
            log!("the command has not ended at SIGTERM: SIGKILL");
            self.process.signal(Signal::SIGKILL);
            self.leaving.killed = true;
            self.leaving.due = None;
        } else {
            log!("the command has not left: SIGTERM");
            self.process.signal(Signal::SIGTERM);
            self.leaving.terminated = true;
            let grace = match self.leaving.interrupted_by {
                Some(_) => self.options.kill_grace.min(INTERRUPTED_KILL_GRACE),
                None => self.options.kill_grace,
            };
            self.leaving.due = Some(Instant::now() + grace);
        }
    }
}

/// What is said to the server, until nothing is left to say.
struct Report {
    outbox: Outbox,
    delivery: Task<Result<(), Over>>,
    heard: Arc<Commands>,
    beating: Option<Task<()>>,
    waiting: Option<Task<()>>,
    over: bool,
}

impl Report {
    /// Says nothing more.
    fn stop(&mut self) {
        self.over = true;
        self.beating = None;
        self.waiting = None;
        self.delivery.0.abort();
        self.outbox.open_wide();
    }

    /// Reports the end after all else. While the server is away that lasts, but not forever.
    async fn end(
        self,
        exit: Exit,
        report_for: Duration,
        news: &mut mpsc::UnboundedReceiver<News>,
        shutdown: &mut Shutdown,
    ) {
        if self.over {
            return;
        }
        let give_up = tokio::time::sleep(report_for);
        tokio::pin!(give_up);
        let reporting = self.say_end(exit);
        tokio::pin!(reporting);
        loop {
            tokio::select! {
                said = &mut reporting => {
                    if said.is_err() {
                        log!("the end was not reported: the assignment is over");
                    }
                    return;
                }
                Some(news) = news.recv() => if let News::Over(why) = news {
                    log!("the end was not reported: {why}");
                    return;
                },
                // Once is a wish to end well, and the report is part of that; more is impatience.
                Ok(()) = shutdown.changed() => if shutdown.borrow().times > 1 {
                    log!("the end was not reported: the agent was asked to end again");
                    return;
                },
                () = &mut give_up => {
                    log!("the end was not reported: the server was away for too long");
                    return;
                }
            }
        }
    }

    async fn say_end(mut self, exit: Exit) -> Result<(), Over> {
        // There is nobody left who could be told anything.
        self.waiting = None;
        // The heart beats until all that came before the end was heard, and not beyond the end.
        let (mark, reached) = oneshot::channel();
        self.outbox.put(Message::Mark(mark)).await;
        reached.await.map_err(|_| Over)?;
        if let Some(mut beating) = self.beating.take() {
            self.heard.stop_beating();
            let _ = tokio::time::timeout(LAST_BEAT, &mut beating.0).await;
        }
        self.outbox.put(Message::Exited(exit)).await;
        drop(self.outbox);
        (&mut self.delivery.0).await.unwrap_or(Err(Over))
    }
}
