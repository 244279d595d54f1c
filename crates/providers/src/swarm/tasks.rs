//! The tasks of a service, oldest first. Each task names the attempt that it was started for, so the provider can
//! follow one start.

use std::collections::{HashMap, HashSet};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{Task, TaskState};
use bollard::query_parameters::ListTasksOptionsBuilder;

use super::service::ATTEMPT;

#[derive(Debug, Default)]
pub struct Tasks(Vec<Task>);

/// The progress of one start.
#[derive(Debug, PartialEq, Eq)]
pub enum Run {
    /// Not running yet. Swarm may give a reason.
    Waiting(Option<String>),
    Running,
    /// It ran and ended without an error.
    Over,
    Failed(String),
}

pub async fn list(docker: &Docker, service_id: &str) -> Result<Tasks, Error> {
    let filters = HashMap::from([("service".to_owned(), vec![service_id.to_owned()])]);
    let options = ListTasksOptionsBuilder::default().filters(&filters).build();
    let mut tasks = docker.list_tasks(Some(options)).await?;
    tasks.sort_by_key(|task| task.version.as_ref().and_then(|version| version.index));
    // The version changes with every update. The order of creation does not change.
    tasks.sort_by(|left, right| left.created_at.cmp(&right.created_at));
    Ok(Tasks(tasks))
}

fn state(task: &Task) -> Option<TaskState> {
    task.status.as_ref()?.state
}

/// Whether a task has ended. A task in an unknown state does not count as ended.
fn is_over(task: &Task) -> bool {
    matches!(
        state(task),
        Some(
            TaskState::COMPLETE
                | TaskState::SHUTDOWN
                | TaskState::FAILED
                | TaskState::REJECTED
                | TaskState::REMOVE
                | TaskState::ORPHANED
        )
    )
}

/// Whether the task was never assigned to a node, so that nothing of it exists anywhere.
fn is_unassigned(task: &Task) -> bool {
    task.node_id.as_deref().unwrap_or_default().is_empty()
        && matches!(task.desired_state, Some(TaskState::SHUTDOWN | TaskState::REMOVE))
}

/// Swarm's message about the task.
fn task_message(task: &Task) -> Option<String> {
    let status = task.status.as_ref()?;
    let text = status.err.as_deref().filter(|err| !err.is_empty())?;
    Some(text.to_owned())
}

impl Tasks {
    /// Whether no task runs any more.
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(|task| is_over(task) || is_unassigned(task))
    }

    pub fn has_running(&self) -> bool {
        self.0.iter().any(|task| state(task) == Some(TaskState::RUNNING))
    }

    /// The tasks that are not on these nodes.
    pub fn without(self, nodes: &HashSet<String>) -> Self {
        Self(self.0.into_iter().filter(|task| !task.node_id.as_ref().is_some_and(|id| nodes.contains(id))).collect())
    }

    /// The newest task that was assigned to a node. A task without a node has written nothing.
    pub fn newest_that_ran(&self) -> Option<&str> {
        let ran = |task: &&Task| task.status.as_ref().is_some_and(|status| status.container_status.is_some());
        self.0.iter().rev().find(ran)?.id.as_deref()
    }

    /// The progress of an attempt. Swarm replaces a failed task at once, but the failure counts.
    pub fn of(&self, attempt: &str) -> Run {
        let label = |task: &Task| task.spec.as_ref()?.container_spec.as_ref()?.labels.as_ref()?.get(ATTEMPT).cloned();
        let own: Vec<&Task> = self.0.iter().filter(|task| label(task).as_deref() == Some(attempt)).collect();
        let has_failed = |task: &&&Task| matches!(state(task), Some(TaskState::FAILED | TaskState::REJECTED));
        if let Some(task) = own.iter().rev().find(has_failed) {
            return Run::Failed(
                task_message(task).unwrap_or_else(|| "its task failed, and Swarm gives no reason".to_owned()),
            );
        }
        match own.last().map(|task| (state(task), task_message(task))) {
            Some((Some(TaskState::RUNNING), _)) => Run::Running,
            Some((Some(TaskState::COMPLETE), _)) => Run::Over,
            Some((_, message)) => Run::Waiting(message),
            None => Run::Waiting(None),
        }
    }

    /// The state of the tasks, as text for a person.
    pub fn shown(&self) -> String {
        let Some(task) = self.0.last() else { return "no task".to_owned() };
        let state = state(task).map_or("unknown".to_owned(), |state| state.to_string());
        match task_message(task) {
            Some(said) => format!("task {state}: {said}"),
            None => format!("task {state}"),
        }
    }
}
