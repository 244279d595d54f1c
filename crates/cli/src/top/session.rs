//! One run in a terminal: takes in what the server and the keyboard send, and draws at most ten times a second. While
//! nothing happens it draws once a second, because the ages change.

use std::time::Duration;

use jiff::Timestamp;
use ratatui::crossterm::event::{self, Event};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use super::TopError;
use super::api::Api;
use super::explanation::{ExplanationLine, attention, explanation, pool_settings};
use super::input::{Effect, press};
use super::screen::{Link, Screen, Subject};
use super::stream::{self, Connection, StreamEvent};
use super::terminal::TakenTerminal;
use super::text::clean;
use super::view::{self, theme::Theme};

/// The shortest time between two pictures.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// How often the calls are made for what the stream does not tell.
const CALLS_EVERY: Duration = Duration::from_secs(5);

/// What the server answered to a call.
#[derive(Debug)]
enum Answer {
    /// The settings of the pools, and what needs a person. `None` if the call failed: the earlier answer is still shown.
    Overview {
        pools: Option<Value>,
        attention: Option<Value>,
    },
    Explained(Subject, Result<Vec<ExplanationLine>, String>),
}

struct Session {
    api: Api,
    screen: Screen,
    theme: Theme,
    /// By how many seconds the clock of the server is ahead.
    clock_difference: i64,
    answers: mpsc::Sender<Answer>,
    is_calling: bool,
    /// Something is to be drawn.
    is_outdated: bool,
    /// The rows are to be listed again. A second that passes changes only their ages.
    are_rows_outdated: bool,
}

/// Shows the fleet until a person quits, a signal comes, or the server refuses the token.
pub async fn run(api: Api, connection: Connection, screen: Screen) -> Result<(), TopError> {
    let clock_difference = connection.clock_difference.unwrap_or(0);
    let (events, mut from_stream) = mpsc::channel(16);
    let (answers, mut from_calls) = mpsc::channel(16);
    let following = tokio::spawn(stream::follow(api.clone(), connection, events));
    let theme = Theme::from_environment();
    let mut session = Session {
        api,
        screen,
        theme,
        clock_difference,
        answers,
        is_calling: false,
        is_outdated: true,
        are_rows_outdated: true,
    };
    let mut signals = Signals::new().map_err(|error| TopError::Other(error.to_string()))?;
    let (mut seconds, mut calls) = (ticks(Duration::from_secs(1)), ticks(CALLS_EVERY));
    let mut terminal = TakenTerminal::take().map_err(|error| TopError::Other(format!("no terminal: {error}")))?;
    let mut keys = read_keys();
    let mut draw_at = Instant::now();
    let done = loop {
        tokio::select! {
            biased;
            () = signals.next() => break Ok(()),
            key = keys.recv() => match key {
                Some(event) => match session.take_key(event) {
                    Some(Effect::Quit) => break Ok(()),
                    Some(Effect::Repaint) => {
                        // The next picture is drawn as if the screen were empty.
                        let _ = terminal.terminal.clear();
                    }
                    _ => {}
                },
                // The terminal is gone.
                None => break Ok(()),
            },
            () = sleep_until(draw_at), if session.is_outdated => {
                if let Err(error) = session.draw(&mut terminal) {
                    break Err(TopError::Other(format!("cannot draw: {error}")));
                }
                draw_at = Instant::now() + SHORTEST_PAUSE;
            }
            event = from_stream.recv() => match event {
                Some(StreamEvent::Refused(refusal)) => break Err(refusal),
                Some(event) => session.take_event(event),
                None => break Err(TopError::Other("the live view stopped by itself".to_owned())),
            },
            Some(answer) = from_calls.recv() => session.take_answer(answer),
            _ = calls.tick() => session.call(),
            _ = seconds.tick() => session.is_outdated = true,
        }
    };
    drop(terminal);
    following.abort();
    done
}

impl Session {
    fn now(&self) -> i64 {
        Timestamp::now().as_second() + self.clock_difference
    }

    fn take_event(&mut self, event: StreamEvent) {
        (self.is_outdated, self.are_rows_outdated) = (true, true);
        match event {
            StreamEvent::Message(message) => {
                self.screen.fleet.apply(&message);
                if let Some(subject) = self.screen.outdated_subject() {
                    self.explain(subject);
                }
            }
            StreamEvent::Connected(clock_difference) => {
                self.clock_difference = clock_difference.unwrap_or(self.clock_difference);
                self.screen.link = Link::Live;
                self.call();
            }
            StreamEvent::Lost { problem, retry_in } => {
                let now = self.now();
                let since = match self.screen.link {
                    Link::Lost { since, .. } => since,
                    Link::Live => now,
                };
                let retry_at = now + i64::try_from(retry_in.as_secs()).unwrap_or(i64::MAX);
                self.screen.link = Link::Lost { since, problem: clean(&problem), retry_at };
            }
            // The loop ends.
            StreamEvent::Refused(_) => {}
        }
    }

    fn take_key(&mut self, event: Event) -> Option<Effect> {
        self.is_outdated = true;
        let effect = match event {
            Event::Key(key) => press(&mut self.screen, key),
            _ => None,
        };
        if let Some(Effect::Explain(subject)) = effect {
            self.explain(subject);
            return None;
        }
        effect
    }

    fn take_answer(&mut self, answer: Answer) {
        (self.is_outdated, self.are_rows_outdated) = (true, true);
        match answer {
            Answer::Overview { pools, attention: items } => {
                self.is_calling = false;
                if let Some(pools) = pools {
                    self.screen.settings = pool_settings(&pools);
                }
                if let Some(items) = items {
                    (self.screen.attention, self.screen.attention_more) = attention(&items);
                }
            }
            Answer::Explained(subject, explained) => self.screen.explained(&subject, explained),
        }
    }

    /// Asks for what the stream does not tell, unless the last answer is still awaited.
    fn call(&mut self) {
        if self.is_calling || self.screen.link != Link::Live {
            return;
        }
        self.is_calling = true;
        let (api, answers) = (self.api.clone(), self.answers.clone());
        tokio::spawn(async move {
            let (pools, attention) = tokio::join!(api.read("/admin/pools"), api.read("/admin/attention"));
            let _ = answers.send(Answer::Overview { pools: pools.ok(), attention: attention.ok() }).await;
        });
    }

    fn explain(&mut self, subject: Subject) {
        let (api, answers, now) = (self.api.clone(), self.answers.clone(), self.now());
        tokio::spawn(async move {
            let explained = api.read(&subject.path()).await;
            let explained = explained.map(|answer| explanation(&answer, now)).map_err(|error| error.to_string());
            let _ = answers.send(Answer::Explained(subject, explained)).await;
        });
    }

    fn draw(&mut self, terminal: &mut TakenTerminal) -> std::io::Result<()> {
        self.is_outdated = false;
        self.screen.now = self.now();
        if std::mem::take(&mut self.are_rows_outdated) {
            self.screen.refresh();
        }
        let (screen, theme) = (&mut self.screen, self.theme);
        terminal.terminal.draw(|frame| {
            let area = frame.area();
            view::draw(frame.buffer_mut(), area, screen, theme);
        })?;
        Ok(())
    }
}

fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// The keyboard can be read only by a thread that waits for it. The thread ends with the program.
fn read_keys() -> mpsc::Receiver<Event> {
    let (keys, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if keys.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The signals that ask the program to end.
struct Signals {
    all: [Signal; 3],
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let all = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
        Ok(Self { all })
    }

    async fn next(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.all;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
