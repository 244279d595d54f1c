//! This module defines the messages to the one task that places.

use domain::Status;
use domain::planner::invariants::Scope;
use domain::planner::job::WarmReport;
use domain::planner::{Job, Snapshot};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::copy_check::CopyDifference;
use super::{PlacementError, Reserved};
use crate::lifecycle::LifecycleError;
use crate::store::{BotDetails, StoreError};

type Sender<T, E> = oneshot::Sender<Result<T, E>>;

pub enum Message {
    Job(Box<Submitted>),
    ReadSnapshot(SnapshotReader),
    /// The view must show the change that made this token.
    RefreshView(Uuid, Sender<(), StoreError>),
    /// Rows to compare while no other task or replica can change them.
    Verify(Scope, Sender<Vec<CopyDifference>, StoreError>),
}

/// Gets the snapshot and its token, or the reason why it could not be read.
pub type SnapshotReader = Box<dyn FnOnce(Result<(&Snapshot, Uuid), StoreError>) + Send>;

/// A job, and how to answer it.
pub struct Submitted {
    pub job: Job,
    /// For a request: the fields that placement does not need for its decision.
    pub details: Option<BotDetails>,
    pub reply: Reply,
}

pub enum Reply {
    /// Includes the request's permit to wait, which is free again after the answer.
    Reserve(Sender<Reserved, PlacementError>, OwnedSemaphorePermit),
    End(Sender<Status, LifecycleError>),
    Slot(Sender<bool, StoreError>),
    KeepWarm(Sender<WarmReport, StoreError>),
    None,
}

impl Reply {
    /// Reports that the job failed. A caller that no longer waits is skipped.
    pub fn refuse(self, error: &StoreError) {
        match self {
            Reply::Reserve(reply, _permit) => drop(reply.send(Err(error.copy().into()))),
            Reply::End(reply) => drop(reply.send(Err(error.copy().into()))),
            Reply::Slot(reply) => drop(reply.send(Err(error.copy()))),
            Reply::KeepWarm(reply) => drop(reply.send(Err(error.copy()))),
            Reply::None => {}
        }
    }
}
