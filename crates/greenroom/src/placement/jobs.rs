//! What is asked of placement, sorted by its kind, and the answers.

use domain::{Attributes, SlotName, Status};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Looked, PlacementError, Reserved, SlotNews};
use crate::admission::{AdmissionError, Request};
use crate::lifecycle::LifecycleError;
use crate::lifecycle::ends::Ending;
use crate::store::StoreError;

type Reply<T, E> = oneshot::Sender<Result<T, E>>;

/// Who waits for a bot: whom to answer, and its place among those who may wait, which is free again after that.
pub struct Requester {
    reply: Reply<Reserved, PlacementError>,
    _place: OwnedSemaphorePermit,
}

impl Requester {
    pub fn new(reply: Reply<Reserved, PlacementError>, place: OwnedSemaphorePermit) -> Self {
        Self { reply, _place: place }
    }
}

pub enum Job {
    Reserve(Box<Request>, Requester),
    End(Box<Ending>, Reply<Status, LifecycleError>),
    Slot(SlotName, SlotNews, Reply<bool, StoreError>),
    /// Look at every pool: is someone waiting for what is free?
    Look(Reply<Looked, StoreError>),
    /// Something with these attributes came free where a place leads to: look at those who came back from there.
    Stir(Attributes),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Job::Reserve(..) => f.write_str("Reserve"),
            Job::End(ending, _) => write!(f, "End({})", ending.bot()),
            Job::Slot(name, news, _) => write!(f, "Slot({name}, {news:?})"),
            Job::Look(_) => f.write_str("Look"),
            Job::Stir(attributes) => write!(f, "Stir({attributes})"),
        }
    }
}

/// Jobs by their kind, with whom to answer.
#[derive(Default)]
pub struct Sorted {
    pub requests: Vec<Request>,
    requesters: Vec<Requester>,
    pub endings: Vec<Ending>,
    enders: Vec<Reply<Status, LifecycleError>>,
    pub news: Vec<(SlotName, SlotNews)>,
    tellers: Vec<Reply<bool, StoreError>>,
    lookers: Vec<Reply<Looked, StoreError>>,
    /// What came free where a place leads to.
    pub came_free: Vec<Attributes>,
}

/// The answers to a batch, in the order in which it was asked.
#[derive(Debug, Default)]
pub struct Replies {
    pub reserved: Vec<Result<Reserved, PlacementError>>,
    pub ended: Vec<Result<Status, LifecycleError>>,
    /// Of each news, whether it fitted.
    pub told: Vec<bool>,
    pub looked: Looked,
}

impl Sorted {
    pub fn new(jobs: impl Iterator<Item = Job>) -> Self {
        let mut sorted = Sorted::default();
        jobs.for_each(|job| sorted.add(job));
        sorted
    }

    fn add(&mut self, job: Job) {
        match job {
            Job::Reserve(request, reply) => {
                self.requests.push(*request);
                self.requesters.push(reply);
            }
            Job::End(ending, reply) => {
                self.endings.push(*ending);
                self.enders.push(reply);
            }
            Job::Slot(name, news, reply) => {
                self.news.push((name, news));
                self.tellers.push(reply);
            }
            Job::Look(reply) => self.lookers.push(reply),
            Job::Stir(attributes) => self.came_free.push(attributes),
        }
    }

    pub fn looks(&self) -> bool {
        !self.lookers.is_empty()
    }

    pub fn len(&self) -> usize {
        self.requests.len() + self.endings.len() + self.news.len() + self.lookers.len() + self.came_free.len()
    }

    /// Each job by itself.
    pub fn apart(self) -> impl Iterator<Item = Sorted> {
        let requests = self.requests.into_iter().map(Box::new).zip(self.requesters);
        let endings = self.endings.into_iter().map(Box::new).zip(self.enders);
        let news = self.news.into_iter().zip(self.tellers);
        let jobs = (requests.map(|(request, reply)| Job::Reserve(request, reply)))
            .chain(endings.map(|(ending, reply)| Job::End(ending, reply)))
            .chain(news.map(|((name, news), reply)| Job::Slot(name, news, reply)))
            .chain(self.lookers.into_iter().map(Job::Look))
            .chain(self.came_free.into_iter().map(Job::Stir));
        jobs.map(|job| Sorted::new(std::iter::once(job)))
    }

    /// Whoever no longer waits for its answer has gone away.
    pub fn answer(self, replies: Replies) {
        for (requester, reply) in self.requesters.into_iter().zip(replies.reserved) {
            let _ = requester.reply.send(reply);
        }
        for (ender, reply) in self.enders.into_iter().zip(replies.ended) {
            let _ = ender.send(reply);
        }
        for (teller, fitted) in self.tellers.into_iter().zip(replies.told) {
            let _ = teller.send(Ok(fitted));
        }
        for looker in self.lookers {
            let _ = looker.send(Ok(replies.looked));
        }
    }

    /// Tells all of them that the database cannot be had.
    pub fn refuse(self, error: &PlacementError) {
        let again = || match error {
            PlacementError::Admission(AdmissionError::Store(error)) => error.again(),
            other => StoreError::failed("placement", other),
        };
        for requester in self.requesters {
            let _ = requester.reply.send(Err(again().into()));
        }
        for ender in self.enders {
            let _ = ender.send(Err(again().into()));
        }
        for teller in self.tellers {
            let _ = teller.send(Err(again()));
        }
        for looker in self.lookers {
            let _ = looker.send(Err(again()));
        }
    }
}
