//! The pickup manager, one for each class and process. It receives announcements while a request waits, offers each to
//! every waiting request, and sends unused ones back. Its state is only in memory and may be lost.

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

/// A receive without waiting asks only some of SQS's servers, so it may miss messages in a short queue. The queue
/// counts as empty after this many empty receives in a row.
const EMPTY_IN_A_ROW: usize = 3;
/// How much later than planned a message may be back in the queue.
const LATE: Duration = Duration::from_millis(500);
/// How often to receive while all requests wait for messages that are on their way back. Another process may announce a
/// runner meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Manager {
    class: Class,
    queue: Arc<Queue>,
    pace: Pace,
    clock: Clock,
    steps: Arc<Steps>,
    pickups: Mutex<PickupQueue>,
    /// Notified when a new request starts to wait.
    arrival: Notify,
}

/// The waiting requests, and the messages that are on their way back.
#[derive(Debug, Default)]
struct PickupQueue {
    /// In the order of arrival.
    waiting: VecDeque<Waiter>,
    /// How many requests have ever waited.
    arrived: u64,
    /// A task is receiving messages.
    is_open: bool,
    /// How many messages were ever examined.
    examined: u64,
    returned_messages: Vec<ReturnedMessage>,
}

#[derive(Debug)]
struct Waiter {
    /// The position in the order of all arrivals.
    number: u64,
    wanted: Option<Requirements>,
    /// How many receives in a row were empty, counting only those that began while this request waited.
    empty: usize,
    /// How often each unfitting runner was offered to this request.
    times_offered: HashMap<String, u32>,
    reply: oneshot::Sender<PickupResult>,
}

type PickupResult = Result<Option<Announcement>, AwsError>;

/// A message that was sent back and is not in the queue yet.
#[derive(Debug)]
struct ReturnedMessage {
    instance: String,
    attributes: Attributes,
    until: Instant,
}

/// The result of offering a message.
enum OfferResult {
    HandedOver,
    /// It fits a request that got another message, or that stopped waiting.
    NotNeeded(Announcement),
    FitsNobody(Announcement),
}

impl Manager {
    pub fn new(class: Class, queue: Arc<Queue>, pace: Pace, clock: Clock, steps: Arc<Steps>) -> Arc<Self> {
        let (pickups, arrival) = (Mutex::default(), Notify::new());
        Arc::new(Self { class, queue, pace, clock, steps, pickups, arrival })
    }

    /// Waits for an announcement that fits. Returns `None` when the queue is exhausted. A caller that stops waiting
    /// takes no announcement.
    pub async fn pick(self: &Arc<Self>, wanted: Option<&Requirements>) -> Result<Option<Picked>, AwsError> {
        let (reply, answer) = oneshot::channel();
        {
            let mut pickups = self.pickups();
            pickups.arrived += 1;
            let number = pickups.arrived;
            let wanted = wanted.cloned();
            pickups.waiting.push_back(Waiter { number, wanted, empty: 0, times_offered: HashMap::new(), reply });
            if !pickups.is_open {
                pickups.is_open = true;
                tokio::spawn(self.clone().serve());
            }
        }
        self.arrival.notify_one();
        let mut ticket = Ticket { manager: self.clone(), answer };
        let answer = (&mut ticket.answer).await;
        // The serving task disappears only when the process ends.
        let answer = answer.unwrap_or(Ok(None))?;
        Ok(answer.map(|announcement| Picked { manager: self.clone(), announcement: Some(announcement) }))
    }

    fn pickups(&self) -> MutexGuard<'_, PickupQueue> {
        self.pickups.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Receives messages for as long as a request waits.
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
                Err(error) => self.fail_waiting(&error),
            }
        }
    }

    /// Offers the received messages to the waiting requests. Returns whether any request got one.
    async fn hand_out(&self, messages: Vec<Message>) -> bool {
        self.steps.done(Step::Received).await;
        if let Err(error) = self.queue.delete(&messages).await {
            // The message is received again later. It cannot claim a runner that was claimed meanwhile.
            tracing::warn!(queue = self.queue.name, %error, "received messages not deleted");
        }
        self.steps.done(Step::Deleted).await;
        let announced = messages.iter().filter_map(|message| self.read(message)).collect();
        let results = self.offer(announced);
        let (mut served, mut back) = (false, Vec::new());
        for result in results {
            match result {
                OfferResult::HandedOver => served = true,
                OfferResult::NotNeeded(announcement) => {
                    back.push(Outgoing { body: announcement.body().to_owned(), delay: 0 });
                }
                OfferResult::FitsNobody(announcement) => {
                    back.push(Outgoing { body: announcement.body().to_owned(), delay: self.delay() });
                }
            }
        }
        if !back.is_empty() {
            // Runs in the background, so the next messages can be received.
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

    /// How many messages this manager has ever examined.
    pub fn examined(&self) -> u64 {
        self.pickups().examined
    }

    /// One step under the lock, so no request arrives or leaves in between.
    fn offer(&self, announced: Vec<Announcement>) -> Vec<OfferResult> {
        let mut pickups = self.pickups();
        pickups.examined += announced.len() as u64;
        let now = Instant::now();
        pickups
            .returned_messages
            .retain(|message| message.until > now && announced.iter().all(|here| here.instance != message.instance));
        for waiter in &mut pickups.waiting {
            waiter.empty = 0;
        }
        let mut served: Vec<Option<Requirements>> = Vec::new();
        let mut results = Vec::new();
        for announcement in announced {
            let result = pickups.offer(announcement, &mut served, self.pace.rounds);
            match &result {
                OfferResult::HandedOver => {}
                OfferResult::NotNeeded(announcement) => pickups.note_returned(announcement, now),
                OfferResult::FitsNobody(announcement) => {
                    pickups.note_returned(announcement, now + self.pace.redelivery);
                }
            }
            results.push(result);
        }
        results
    }

    fn fail_waiting(&self, error: &AwsError) {
        for waiter in self.pickups().waiting.drain(..) {
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }

    /// Answers `None` to the requests that saw enough empty receives. A request keeps waiting if a fitting message is
    /// on its way back. When all remaining requests wait for such messages, this function pauses.
    async fn found_nothing(&self, last: u64) {
        let pause = {
            let mut pickups = self.pickups();
            let now = Instant::now();
            pickups.returned_messages.retain(|message| message.until > now);
            let PickupQueue { waiting, returned_messages, .. } = &mut *pickups;
            let mut pause = Some(POLL_INTERVAL);
            for mut waiter in std::mem::take(waiting) {
                if waiter.number <= last {
                    waiter.empty += 1;
                }
                let fits = |message: &ReturnedMessage| requirements::fits(waiter.wanted.as_ref(), &message.attributes);
                if waiter.empty < EMPTY_IN_A_ROW {
                    pause = None;
                } else if !returned_messages.iter().any(fits) {
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

    /// Returns an announcement that was handed over but not used.
    fn take_back(&self, announcement: Announcement) {
        self.pickups().note_returned(&announcement, Instant::now());
        let back = vec![Outgoing { body: announcement.body().to_owned(), delay: 0 }];
        // Without a runtime, this process is ending. The keeper of another process announces the runner again.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(send_back(self.queue.clone(), back));
        }
    }
}

impl PickupQueue {
    /// Remembers a message that is on its way back, and when it can be received again.
    fn note_returned(&mut self, announcement: &Announcement, back: Instant) {
        let (instance, attributes) = (announcement.instance.clone(), announcement.attributes.clone());
        self.returned_messages.push(ReturnedMessage { instance, attributes, until: back + LATE });
    }

    /// Hands an announcement to the first waiting request that it fits, in the order of arrival.
    fn offer(
        &mut self,
        announcement: Announcement,
        served: &mut Vec<Option<Requirements>>,
        rounds: u32,
    ) -> OfferResult {
        let mut announcement = announcement;
        let (mut at, mut was_wanted) = (0, false);
        while at < self.waiting.len() {
            let waiter = &mut self.waiting[at];
            if requirements::fits(waiter.wanted.as_ref(), &announcement.attributes) {
                let Some(waiter) = self.waiting.remove(at) else { break };
                match waiter.reply.send(Ok(Some(announcement))) {
                    Ok(()) => {
                        served.push(waiter.wanted);
                        return OfferResult::HandedOver;
                    }
                    // This request stopped waiting: try the next one.
                    Err(Ok(Some(returned))) => (announcement, was_wanted) = (returned, true),
                    Err(_) => return OfferResult::HandedOver,
                }
                continue;
            }
            let times = waiter.times_offered.entry(announcement.instance.clone()).or_default();
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
        if was_wanted { OfferResult::NotNeeded(announcement) } else { OfferResult::FitsNobody(announcement) }
    }
}

async fn send_back(queue: Arc<Queue>, messages: Vec<Outgoing>) {
    if let Err(error) = queue.send(&messages).await {
        tracing::warn!(queue = queue.name, %error, "messages not returned to the queue; the keeper announces their runners again");
    }
}

/// A waiting request. If it stops waiting, an announcement that was already handed over goes back.
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

/// An announcement that was handed over. It goes back when this value is dropped, unless `take` was called.
#[derive(Debug)]
pub(crate) struct Picked {
    manager: Arc<Manager>,
    announcement: Option<Announcement>,
}

impl Picked {
    pub fn announcement(&self) -> Option<&Announcement> {
        self.announcement.as_ref()
    }

    /// Takes the announcement for good.
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
