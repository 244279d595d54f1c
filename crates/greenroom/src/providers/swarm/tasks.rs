//! What runs of a service: its tasks, the newest last. Each knows what it was started for.

use std::collections::{HashMap, HashSet};

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{Task, TaskState};
use bollard::query_parameters::ListTasksOptionsBuilder;

use super::service::START;

#[derive(Debug, Default)]
pub struct Tasks(Vec<Task>);

/// How far something is that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Run {
    /// Not yet running; Swarm may say why.
    Waiting(Option<String>),
    Running,
    /// It ran and has ended without an error.
    Over,
    Failed(String),
}

pub async fn list(docker: &Docker, service_id: &str) -> Result<Tasks, Error> {
    let filters = HashMap::from([("service".to_owned(), vec![service_id.to_owned()])]);
    let options = ListTasksOptionsBuilder::default().filters(&filters).build();
    let mut tasks = docker.list_tasks(Some(options)).await?;
    tasks.sort_by_key(|task| task.version.as_ref().and_then(|version| version.index));
    // The version changes with every sign of life; the order in which they were made does not.
    tasks.sort_by(|left, right| left.created_at.cmp(&right.created_at));
    Ok(Tasks(tasks))
}

fn state(task: &Task) -> Option<TaskState> {
    task.status.as_ref()?.state
}

/// Whether a task has come to its end. One that is not known to have does not count as ended.
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

/// Whether it never came to a node: there is nothing of it anywhere.
fn is_nowhere(task: &Task) -> bool {
    task.node_id.as_deref().unwrap_or_default().is_empty()
        && matches!(task.desired_state, Some(TaskState::SHUTDOWN | TaskState::REMOVE))
}

/// What Swarm says of it.
fn said(task: &Task) -> Option<String> {
    let status = task.status.as_ref()?;
    let text = status.err.as_deref().filter(|err| !err.is_empty())?;
    Some(text.to_owned())
}

impl Tasks {
    /// Whether nothing runs any more.
    pub fn are_over(&self) -> bool {
        self.0.iter().all(|task| is_over(task) || is_nowhere(task))
    }

    /// Whether one runs.
    pub fn run(&self) -> bool {
        self.0.iter().any(|task| state(task) == Some(TaskState::RUNNING))
    }

    /// Those that are not on these nodes.
    pub fn without(self, nodes: &HashSet<String>) -> Self {
        Self(self.0.into_iter().filter(|task| !task.node_id.as_ref().is_some_and(|id| nodes.contains(id))).collect())
    }

    pub fn newest(&self) -> Option<&str> {
        self.0.last()?.id.as_deref()
    }

    /// How far what was started for this is.
    pub fn of(&self, start: &str) -> Run {
        let label = |task: &Task| task.spec.as_ref()?.container_spec.as_ref()?.labels.as_ref()?.get(START).cloned();
        let Some(task) = self.0.iter().rev().find(|task| label(task).as_deref() == Some(start)) else {
            return Run::Waiting(None);
        };
        match state(task) {
            Some(TaskState::RUNNING) => Run::Running,
            Some(TaskState::COMPLETE) => Run::Over,
            Some(TaskState::FAILED | TaskState::REJECTED) => {
                Run::Failed(said(task).unwrap_or_else(|| "its task failed, and Swarm does not say why".to_owned()))
            }
            _ => Run::Waiting(said(task)),
        }
    }

    /// How it is, for a person.
    pub fn shown(&self) -> String {
        let Some(task) = self.0.last() else { return "no task".to_owned() };
        let state = state(task).map_or("unknown".to_owned(), |state| state.to_string());
        match said(task) {
            Some(said) => format!("task {state}: {said}"),
            None => format!("task {state}"),
        }
    }
}
