//! A batch holds the jobs that are planned together. [`Written`] holds the changes that were written for them.

use std::collections::HashMap;

use domain::BotId;
use domain::planner::Job;
use domain::planner::bot::OpenBot;
use domain::planner::changes::Changes;
use jiff::Timestamp;

use super::message::{Reply, Submitted};
use crate::store::{BotDetails, StoreError};

pub struct Batch {
    pub jobs: Vec<Job>,
    pub details: HashMap<usize, BotDetails>,
    pub replies: Vec<Reply>,
}

/// The written changes, and the time of the plan.
pub struct Written {
    pub changes: Changes,
    /// The new bots, as this plan has them.
    pub new: HashMap<BotId, OpenBot>,
    pub now: Timestamp,
}

impl Batch {
    pub fn new(submitted: Vec<Submitted>) -> Self {
        let (mut jobs, mut details, mut replies) = (Vec::new(), HashMap::new(), Vec::new());
        for (number, one) in submitted.into_iter().enumerate() {
            jobs.push(one.job);
            replies.push(one.reply);
            details.extend(one.details.map(|of| (number, of)));
        }
        Self { jobs, details, replies }
    }

    pub fn split(mut self) -> impl Iterator<Item = Batch> {
        let replies = self.replies.into_iter();
        self.jobs.into_iter().zip(replies).enumerate().map(move |(number, (job, reply))| {
            Batch::new(vec![Submitted { job, details: self.details.remove(&number), reply }])
        })
    }

    pub fn refuse(self, error: &StoreError) {
        self.replies.into_iter().for_each(|reply| reply.refuse(error));
    }
}
