//! One bot's run in this slot, from the start of its process to the report of its end. It returns when no process of
//! the bot is left, and its end is reported or cannot be reported.

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
use crate::bot_process::BotProcess;
use crate::callbacks::{CallbackClient, Exit, Message, Outbox, Over, outbox};
use crate::child::{self, Process};
use crate::commands::{self, Command, Commands};
use crate::lines::Ending;
use crate::log::log;
use crate::options::{CommandLine, Options};
use crate::pipes;
use crate::prewarm::GaveUp;
use crate::probe;
use crate::screenshots::Screenshots;
use crate::steps::Step;
use crate::tail::Tail;

/// Reasons in Greenroom's API: the slot was ended from outside, and the bot did not leave.
const INTERRUPTED: &str = "interrupted";
const KILLED: &str = "killed";
const BURYING: Duration = Duration::from_secs(10);
/// How long to read the last output of the process after it has ended.
const DRAINING: Duration = Duration::from_secs(5);
/// How long a heartbeat in progress may delay the report of the end.
const LAST_BEAT: Duration = Duration::from_secs(1);
/// Docker sends SIGKILL 10 s after SIGTERM. The agent must report the bot's end before that.
const INTERRUPTED_LEAVE_GRACE: Duration = Duration::from_secs(4);
const INTERRUPTED_KILL_GRACE: Duration = Duration::from_secs(2);
/// How many lines of output a failure report includes.
pub const TOLD_LINES: usize = 5;
/// The exit code of a bot whose command was never ready.
const NEVER_READY: i32 = 1;
const TERMINATED: i32 = 128 + Signal::SIGTERM as i32;

/// Messages from the tasks that call the server.
#[derive(Debug)]
pub enum News {
    /// The server has recorded that the bot runs.
    Started {
        stopping: bool,
    },
    Command(Command),
    /// The server does not accept this assignment any more, and why.
    Over(String),
}

/// How the agent was asked to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndRequest {
    /// The number of requests. From the second one on, the agent does not finish its report.
    pub times: u32,
    /// The last signal; `None` if the server asked.
    pub signal: Option<Signal>,
}

pub type Shutdown = watch::Receiver<EndRequest>;

/// A task that is aborted when this value is dropped.
#[derive(Debug)]
pub struct Task<T>(pub JoinHandle<T>);

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
    /// The id that the server uses for this place.
    pub id: Option<String>,
    /// The bot's own folder, if it has one. A process that runs already has its folder.
    pub folder: Option<PathBuf>,
    /// Whether the agent sends the bot's output, because the server cannot read it elsewhere.
    pub sends_log: bool,
}

impl RunLocation {
    pub fn slot() -> Self {
        Self { id: container_id(), folder: None, sends_log: false }
    }
}

/// How the bot's process comes to run.
#[derive(Debug)]
pub enum BotStart {
    /// It is started with the bot's data; for a probe, it is the demo bot.
    Spawn,
    /// It was started ahead, and gets the bot's data as its first line.
    Ready(Box<BotProcess>),
    /// It was started ahead, and no process is there to take the bot.
    Failed(Exit),
}

impl BotStart {
    /// The result of a command that was started ahead, and of a request to end the agent before that.
    pub fn ahead(taken: Option<Result<Option<Box<BotProcess>>, GaveUp>>) -> Self {
        match taken {
            Some(Ok(Some(process))) => Self::Ready(process),
            Some(Ok(None)) => Self::Spawn,
            Some(Err(gave_up)) => {
                Self::Failed(Exit { code: NEVER_READY, reason: None, error: Some(gave_up.to_string()) })
            }
            None => Self::Failed(Exit {
                code: TERMINATED,
                reason: Some(INTERRUPTED.to_owned()),
                error: Some("the agent was asked to end before a command was ready for the bot".to_owned()),
            }),
        }
    }
}

/// The progress of the bot's leaving.
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

/// Runs the bot to its end and reports the end. Returns the exit code of the report, even if the report failed. Calls
/// `note` with the id of the bot's process.
pub async fn live(
    http: &Client,
    options: &Options,
    data: BotData,
    start: BotStart,
    location: RunLocation,
    note: impl FnOnce(i32),
    mut shutdown: Shutdown,
) -> i32 {
    let data = Arc::new(data);
    let callbacks = CallbackClient::new(http.clone(), data.clone());
    let (news_sender, mut news) = mpsc::unbounded_channel();
    let first_line = matches!(start, BotStart::Ready(_)).then(|| pipes::assignment_line(&data.text));
    let started = match start {
        BotStart::Ready(process) => Ok(*process),
        BotStart::Failed(exit) => Err(exit),
        BotStart::Spawn => spawn(&options.command, &data, location.folder.clone()),
    };
    let tail = started.as_ref().map_or_else(|_| Arc::default(), |started| started.tail.clone());
    let screenshots = Screenshots::new(location.folder.clone());
    let (outbox, delivery) = outbox(callbacks.clone(), tail.clone(), screenshots, news_sender.clone());
    let delivery = task(delivery.run());
    let heard = Arc::new(Commands::default());
    let mut report = Report { outbox, delivery, heard, beating: None, waiting: None, over: false };

    let BotProcess { process, stdin, stdout, errors: mut logging, .. } = match started {
        Ok(started) => started,
        Err(exit) => {
            log!("bot {}: {}", data.bot_id, exit.error.as_deref().unwrap_or_default());
            report.end(exit.clone(), options.report_for, &mut news, &mut shutdown).await;
            return exit.code;
        }
    };
    note(process.id());
    note_step(&data, Step::Command);
    log!("bot {} on connection {}: runs as process {}", data.bot_id, data.connection_id, process.id());
    report.outbox.put(Message::Started { container_id: location.id }).await;

    let (lines, to_write) = mpsc::unbounded_channel();
    let _writing = task(pipes::write(stdin, first_line, to_write, report.heard.clone()));
    let sending = location.sends_log.then(|| task(pipes::send_log(report.outbox.clone(), tail.clone())));
    let ending = Arc::new(Mutex::new(Ending::default()));
    let printed = pipes::Output { tail: tail.clone(), steps: data.steps.clone() };
    let mut reading = task(pipes::read(stdout, report.outbox.clone(), ending.clone(), printed));

    let mut run = BotRun { options, process, lines, leaving: Leaving::default() };
    let status = run.until_end(&mut report, callbacks, news_sender, &mut news, &mut shutdown).await;

    note_step(&data, Step::Exited);
    let BotRun { mut process, leaving, .. } = run;
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

fn note_step(data: &BotData, step: Step) {
    if let Some(steps) = &data.steps {
        steps.note(step);
    }
}

/// Starts the bot's command; for a probe, the demo bot instead.
fn spawn(own: &CommandLine, data: &BotData, folder: Option<PathBuf>) -> Result<BotProcess, Exit> {
    let failed = |code, error| Exit { code, reason: None, error: Some(error) };
    let demo = match data.is_probe {
        true => Some(probe::command(own).map_err(|error| failed(error.code(), error.to_string()))?),
        false => None,
    };
    BotProcess::spawn(demo.as_ref().unwrap_or(own), Some(data), folder)
        .map_err(|error| failed(error.code(), error.to_string()))
}

/// Adds the last output lines of a crashed bot to its error.
fn with_last_lines(exit: Exit, tail: &Tail) -> Exit {
    let lines = if exit.code == 0 || exit.reason.is_some() { String::new() } else { tail.last_lines(TOLD_LINES) };
    let error = exit.error.map(|error| if lines.is_empty() { error } else { format!("{error}. Last lines:{lines}") });
    Exit { error, ..exit }
}

/// The result of the bot, from the end of its process.
fn exit(status: ExitStatus, leaving: &Leaving, Ending { reason, error }: Ending) -> Exit {
    let code = child::code(status);
    if let Some(signal) = leaving.interrupted_by {
        let own = reason.map(|word| format!("; it ended with code {code} and the reason {word}")).unwrap_or_default();
        let said = error.map(|error| format!(": {error}")).unwrap_or_default();
        let error = format!("the agent got {signal} while the bot ran, and not from Greenroom{own}{said}");
        return Exit { code: 128 + signal as i32, reason: Some(INTERRUPTED.to_owned()), error: Some(error) };
    }
    // The bot was asked to leave and did, even if only after SIGTERM. Programs that catch the signal exit with its
    // code.
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

struct BotRun<'a> {
    options: &'a Options,
    process: Process,
    lines: mpsc::UnboundedSender<Command>,
    leaving: Leaving,
}

impl BotRun<'_> {
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

    /// The agent was asked to end, so it asks the bot to leave. A signal is an end from outside: the agent reports it
    /// at once.
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

    /// Asks the bot to leave, once. Returns false if it was already asked.
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

    /// The bot has not left in time: sends SIGTERM, then SIGKILL.
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

/// The tasks that report to the server.
struct Report {
    outbox: Outbox,
    delivery: Task<Result<(), Over>>,
    heard: Arc<Commands>,
    beating: Option<Task<()>>,
    waiting: Option<Task<()>>,
    over: bool,
}

impl Report {
    /// Stops all reports.
    fn stop(&mut self) {
        self.over = true;
        self.beating = None;
        self.waiting = None;
        self.delivery.0.abort();
        self.outbox.open_wide();
    }

    /// Reports the end after all other callbacks. If the server is down, retries up to a time limit.
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
                // After one request to end, the agent still reports the bot's end. A second request ends the agent
                // without the report.
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
        // The bot has ended, so no more commands are needed.
        self.waiting = None;
        // Heartbeats continue until the server has all earlier callbacks, and stop before the end is reported.
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
