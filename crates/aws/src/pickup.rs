//! The pickup manager, one for each class and process: it takes announcements out of the queue while somebody waits, offers
//! each to everyone who waits, and sends back what nobody wanted. What it holds is in memory only, and may be lost.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_sdk_sqs::types::Message;
use domain::{Attributes, Requirements, requirements};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::message::Announcement;
use crate::queue::{AT_ONCE, Outgoing, Queue};
use crate::steps::{Step, Steps};
use crate::{AwsError, Class, Pace};

/// A receive that does not wait asks only some of SQS's servers, and may find nothing where there is little. So many that
/// find nothing, one after the other, are believed.
const EMPTY_IN_A_ROW: usize = 3;
/// How much later than it should a message may be back.
const LATE: Duration = Duration::from_millis(500);
/// How often to look while everyone waits for what is on its way back: others may announce something meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Manager {
    class: Class,
    queue: Arc<Queue>,
    pace: Pace,
    clock: Clock,
    steps: Arc<Steps>,
    pickups: Mutex<PickupQueue>,
    /// Somebody new waits.
    arrival: Notify,
}

/// Who waits, and what is on its way back.
#[derive(Debug, Default)]
struct PickupQueue {
    /// In the order of arrival.
    waiting: VecDeque<Waiter>,
    /// How many have ever waited.
    arrived: u64,
    /// A task receives.
    is_open: bool,
    /// How many messages were ever looked at.
    examined: u64,
    away: Vec<Away>,
}

#[derive(Debug)]
struct Waiter {
    /// The how manieth it is.
    number: u64,
    wanted: Option<Requirements>,
    /// How many receives in a row have found nothing, of those that began while it waited.
    empty: usize,
    /// How often each runner has come by that does not fit.
    came_by: HashMap<String, u32>,
    reply: oneshot::Sender<PickupResult>,
}

type PickupResult = Result<Option<Announcement>, AwsError>;

/// A message that was sent back, and is not there yet.
#[derive(Debug)]
struct Away {
    instance: String,
    attributes: Attributes,
    until: Instant,
}

/// What becomes of a message.
enum Fate {
    HandedOver,
    /// It fits somebody who has got another, or is gone.
    NotNeeded(Announcement),
    FitsNobody(Announcement),
}

impl Manager {
    pub fn new(class: Class, queue: Arc<Queue>, pace: Pace, clock: Clock, steps: Arc<Steps>) -> Arc<Self> {
        let (pickups, arrival) = (Mutex::default(), Notify::new());
        Arc::new(Self { class, queue, pace, clock, steps, pickups, arrival })
    }

    /// An announcement that fits; `None` when the queue is exhausted. Who stops waiting gets none.
    pub async fn pick(self: &Arc<Self>, wanted: Option<&Requirements>) -> Result<Option<Picked>, AwsError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut pickups = self.pickups();
            pickups.arrived += 1;
            let number = pickups.arrived;
            let wanted = wanted.cloned();
            pickups.waiting.push_back(Waiter { number, wanted, empty: 0, came_by: HashMap::new(), reply });
            if !pickups.is_open {
                pickups.is_open = true;
                tokio::spawn(self.clone().serve());
            }
        }
        self.arrival.notify_one();
        let mut ticket = Ticket { manager: self.clone(), answer };
        let answer = (&mut ticket.answer).await;
        // Whoever serves is gone only when the process ends.
        let answer = answer.unwrap_or(Ok(None))?;
        Ok(answer.map(|announcement| Picked { manager: self.clone(), announcement: Some(announcement) }))
    }

    fn pickups(&self) -> MutexGuard<'_, PickupQueue> {
        self.pickups.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Receives for as long as somebody waits.
    async fn serve(self: Arc<Self>) {
        let mut most = 1;
        loop {
            let (waiting, last) = {
                let mut pickups = self.pickups();
                pickups.waiting.retain(|waiter| !waiter.reply.is_closed());
                if pickups.waiting.is_empty() {
                    pickups.is_open = false;
                    return;
                }
                (pickups.waiting.len(), pickups.arrived)
            };
            most = most.max(waiting).min(AT_ONCE);
            match self.queue.receive(most).await {
                Ok(messages) if messages.is_empty() => self.found_nothing(last).await,
                Ok(messages) => {
                    let served = self.hand_out(messages).await;
                    most = if served { 1 } else { most * 2 };
                }
                Err(error) => self.tell_everyone(&error),
            }
        }
    }

    /// Offers what was received to everyone who waits; whether anybody was served.
    async fn hand_out(&self, messages: Vec<Message>) -> bool {
        self.steps.done(Step::Received).await;
        if let Err(error) = self.queue.delete(&messages).await {
            // It comes by again, and claims nothing that was claimed meanwhile.
            tracing::warn!(queue = self.queue.name, %error, "received messages not deleted");
        }
        self.steps.done(Step::Deleted).await;
        let announced = messages.iter().filter_map(|message| self.read(message)).collect();
        let fates = self.offer(announced);
        let (mut served, mut back) = (false, Vec::new());
        for fate in fates {
            match fate {
                Fate::HandedOver => served = true,
                Fate::NotNeeded(announcement) => back.push(Outgoing { body: announcement.body().to_owned(), delay: 0 }),
                Fate::FitsNobody(announcement) => {
                    back.push(Outgoing { body: announcement.body().to_owned(), delay: self.delay() });
                }
            }
        }
        if !back.is_empty() {
            // The next messages are received meanwhile.
            tokio::spawn(send_back(self.queue.clone(), back));
        }
        served
    }

    fn delay(&self) -> i32 {
        i32::try_from(self.pace.redelivery.as_secs()).unwrap_or(i32::MAX)
    }

    fn read(&self, message: &Message) -> Option<Announcement> {
        match Announcement::read(message.body().unwrap_or_default(), &self.class, self.clock.now()) {
            Ok(announcement) => Some(announcement),
            Err(why) => {
                tracing::info!(queue = self.queue.name, %why, "message dropped");
                None
            }
        }
    }

    /// How many messages it has ever looked at.
    pub fn examined(&self) -> u64 {
        self.pickups().examined
    }

    /// In one step, so that nobody arrives or leaves meanwhile.
    fn offer(&self, announced: Vec<Announcement>) -> Vec<Fate> {
        let mut pickups = self.pickups();
        pickups.examined += announced.len() as u64;
        let now = Instant::now();
        pickups.away.retain(|away| away.until > now && announced.iter().all(|here| here.instance != away.instance));
        for waiter in &mut pickups.waiting {
            waiter.empty = 0;
        }
        let mut served: Vec<Option<Requirements>> = Vec::new();
        let mut fates = Vec::new();
        for announcement in announced {
            let fate = pickups.offer(announcement, &mut served, self.pace.rounds);
            match &fate {
                Fate::HandedOver => {}
                Fate::NotNeeded(announcement) => pickups.send_away(announcement, now),
                Fate::FitsNobody(announcement) => pickups.send_away(announcement, now + self.pace.redelivery),
            }
            fates.push(fate);
        }
        fates
    }

    fn tell_everyone(&self, error: &AwsError) {
        for waiter in self.pickups().waiting.drain(..) {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// Tells those who have waited long enough that there is none, but for those whom something fits that is on its way
    /// back. When everyone who is left waits for that, so does this.
    async fn found_nothing(&self, last: u64) {
        let pause = {
            let mut pickups = self.pickups();
            let now = Instant::now();
            pickups.away.retain(|away| away.until > now);
            let PickupQueue { waiting, away, .. } = &mut *pickups;
            let mut pause = Some(POLL_INTERVAL);
            for mut waiter in std::mem::take(waiting) {
                if waiter.number <= last {
                    waiter.empty += 1;
                }
                let fits = |away: &Away| requirements::fits(waiter.wanted.as_ref(), &away.attributes);
                if waiter.empty < EMPTY_IN_A_ROW {
                    pause = None;
                } else if !away.iter().any(fits) {
                    let _ = waiter.reply.send(Ok(None));
                    continue;
                }
                waiting.push_back(waiter);
            }
            pause.filter(|_| !waiting.is_empty())
        };
        let Some(pause) = pause else { return };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.arrival.notified() => {}
        }
    }

    /// Puts an announcement back that was handed over and is not used.
    fn take_back(&self, announcement: Announcement) {
        self.pickups().send_away(&announcement, Instant::now());
        let back = vec![Outgoing { body: announcement.body().to_owned(), delay: 0 }];
        // Without a runtime the process ends, and the keeper of another finds it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(send_back(self.queue.clone(), back));
        }
    }
}

impl PickupQueue {
    /// Remembers what is on its way back, and when it can be received again.
    fn send_away(&mut self, announcement: &Announcement, back: Instant) {
        let (instance, attributes) = (announcement.instance.clone(), announcement.attributes.clone());
        self.away.push(Away { instance, attributes, until: back + LATE });
    }

    /// Hands an announcement to the first whom it fits, in the order of arrival.
    fn offer(&mut self, announcement: Announcement, served: &mut Vec<Option<Requirements>>, rounds: u32) -> Fate {
        let mut announcement = announcement;
        let (mut at, mut was_wanted) = (0, false);
        while at < self.waiting.len() {
            let waiter = &mut self.waiting[at];
            if requirements::fits(waiter.wanted.as_ref(), &announcement.attributes) {
                let Some(waiter) = self.waiting.remove(at) else { break };
                match waiter.reply.send(Ok(Some(announcement))) {
                    Ok(()) => {
                        served.push(waiter.wanted);
                        return Fate::HandedOver;
                    }
                    // Who waited is gone: the next one.
                    Err(Ok(Some(returned))) => (announcement, was_wanted) = (returned, true),
                    Err(_) => return Fate::HandedOver,
                }
                continue;
            }
            let times = waiter.came_by.entry(announcement.instance.clone()).or_default();
            *times += 1;
            if *times < rounds {
                at += 1;
                continue;
            }
            if let Some(waiter) = self.waiting.remove(at) {
                let _ = waiter.reply.send(Ok(None));
            }
        }
        was_wanted |= served.iter().any(|wanted| requirements::fits(wanted.as_ref(), &announcement.attributes));
        if was_wanted { Fate::NotNeeded(announcement) } else { Fate::FitsNobody(announcement) }
    }
}

async fn send_back(queue: Arc<Queue>, messages: Vec<Outgoing>) {
    if let Err(error) = queue.send(&messages).await {
        tracing::warn!(queue = queue.name, %error, "messages not returned to the queue; the keeper announces their runners again");
    }
}

/// Somebody who waits. What is handed over while nobody waits any more goes back.
struct Ticket {
    manager: Arc<Manager>,
    answer: oneshot::Receiver<PickupResult>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(Some(announcement))) = self.answer.try_recv() {
            self.manager.take_back(announcement);
        }
    }
}

/// An announcement that was handed over. Unless it is used, it goes back.
#[derive(Debug)]
pub(crate) struct Picked {
    manager: Arc<Manager>,
    announcement: Option<Announcement>,
}

impl Picked {
    pub fn announcement(&self) -> Option<&Announcement> {
        self.announcement.as_ref()
    }

    /// It is used from here on.
    pub fn take(mut self) -> Option<Announcement> {
        self.announcement.take()
    }
}

impl Drop for Picked {
    fn drop(&mut self) {
        if let Some(announcement) = self.announcement.take() {
            self.manager.take_back(announcement);
        }
    }
}

#[cfg(test)]
mod tests;
