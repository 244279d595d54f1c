//! The job of a slot: builds the job that is registered, and reads jobs from Nomad's answers. Its meta records the
//! installation, the slot and the start.

use std::collections::BTreeMap;

use domain::SlotName;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::fingerprint::fingerprint;
use crate::{Found, Spec};
use config::provider::NomadConfig;

/// The meta key of the installation that owns the job.
const INSTALLATION: &str = "greenroom.installation";
/// The meta key of the job's slot.
const SLOT: &str = "greenroom.slot";
/// The meta key of the slot's generation and the recipe of the job.
const MADE: &str = "greenroom.made";
/// The meta key of the connection that the job runs for. Empty if it runs for none.
const CONNECTION: &str = "greenroom.connection";
/// The name of the only group and of its only task.
pub const TASK: &str = "bot";

const SECOND: u64 = 1_000_000_000;
/// How long a process may take to end by itself before it is killed.
const GRACE: u64 = 3 * SECOND;
/// As long as a start may take. Nomad's own limit is 5 minutes.
const LONGEST_PULL: &str = "15m";
/// Longer than any meeting. Nomad treats an allocation that is unknown for this time as lost, and places it again.
const LOST_AFTER: u64 = 24 * 60 * 60 * SECOND;

/// The meta of a job.
pub type Meta = BTreeMap<String, String>;

/// How the pool makes its jobs.
#[derive(Debug)]
pub struct Recipe {
    pub config: NomadConfig,
    pub installation: String,
}

impl Recipe {
    /// The fingerprint of everything that a job is made of, except its slot's own variables.
    fn fingerprint(&self, spec: &Spec) -> String {
        let url = spec.environment.get("GREENROOM_URL");
        fingerprint(&format!("{}{url:?}", self.text()))
    }

    /// The fingerprint of the settings that all jobs of the pool share.
    pub fn own_fingerprint(&self) -> String {
        fingerprint(&self.text())
    }

    fn text(&self) -> String {
        let NomadConfig { datacenters, image, command, cpu, memory, env, .. } = &self.config;
        format!("{datacenters:?}{image:?}{command:?}{cpu:?}{memory:?}{env:?}")
    }

    fn made(&self, spec: &Spec) -> String {
        format!("{}/{}", spec.generation, self.fingerprint(spec))
    }

    /// Whether a job is registered to run exactly this spec.
    pub fn fits(&self, job: &Job, spec: &Spec) -> bool {
        !job.is_stopped()
            && job.meta(MADE) == self.made(spec)
            && job.meta(CONNECTION) == spec.connection.as_deref().unwrap_or_default()
    }

    pub fn owns(&self, job: &Job) -> bool {
        job.meta(INSTALLATION) == self.installation
    }

    /// Whether a job's meta alone shows that it belongs to this installation.
    pub fn owns_meta(&self, meta: &Meta) -> bool {
        meta.get(INSTALLATION) == Some(&self.installation)
    }

    /// A job with a count of 0. It contains no data of a bot, so no token can be read from it later.
    pub fn stopped_job(&self, slot: &SlotName) -> Value {
        self.job(slot, 0, json!({}), &BTreeMap::new(), true)
    }

    /// The job that runs a spec. It meets `fresh` in every case: each allocation has its own container and disk, and
    /// the disk neither moves nor stays.
    pub fn running(&self, spec: &Spec) -> Value {
        let mut environment: BTreeMap<String, String> =
            spec.environment.iter().map(|(name, value)| (name.clone(), literal(name, value))).collect();
        // The node fills it in, so a bot reports the id that `nomad alloc status` shows.
        environment.insert("GREENROOM_CONTAINER_ID".to_owned(), "${NOMAD_ALLOC_ID}".to_owned());
        let connection = spec.connection.as_deref();
        let meta = json!({MADE: self.made(spec), CONNECTION: connection.unwrap_or_default()});
        self.job(&spec.slot, 1, meta, &environment, connection.is_none())
    }

    fn job(
        &self,
        slot: &SlotName,
        count: u64,
        meta: Value,
        environment: &BTreeMap<String, String>,
        waits: bool,
    ) -> Value {
        let NomadConfig { datacenters, namespace, region, image, command, cpu, memory, env, .. } = &self.config;
        let environment: BTreeMap<&String, &String> = env.iter().chain(environment).collect();
        let mut config = json!({"image": image, "image_pull_timeout": LONGEST_PULL});
        // The driver passes `command` and `args` to the image's entrypoint. So the job sets the entrypoint instead.
        if let Some(command) = command {
            config["entrypoint"] = json!(command);
        }
        let mut of_job = json!({INSTALLATION: self.installation, SLOT: slot.as_str()});
        if let (Some(all), Value::Object(meta)) = (of_job.as_object_mut(), meta) {
            all.extend(meta);
        }
        let group = json!({
            "Name": TASK,
            "Count": count,
            "RestartPolicy": restart(waits),
            // For failed allocations, not for those that are lost with their node.
            "ReschedulePolicy": {"Attempts": 0, "Interval": 0, "Unlimited": false},
            "Disconnect": disconnect(),
            // Without deployments: there is nothing to roll out, and a deployment in progress would delay the next
            // change.
            "Update": {"MaxParallel": 0},
            "EphemeralDisk": {"SizeMB": 300, "Sticky": false, "Migrate": false},
            "Tasks": [{
                "Name": TASK,
                "Driver": "docker",
                "Config": config,
                "Env": environment,
                "Resources": {"CPU": cpu, "MemoryMB": memory},
                "KillTimeout": GRACE,
                "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 10},
            }],
        });
        let mut job = json!({
            "ID": slot.as_str(), "Name": slot.as_str(), "Type": "service", "Namespace": namespace, "Datacenters": datacenters,
            "Meta": of_job, "TaskGroups": [group],
        });
        if let Some(region) = region {
            job["Region"] = json!(region);
        }
        job
    }
}

/// Nomad restarts a waiting agent that fails on the same node. If it still fails, sync makes the slot again. A bot that
/// has ended is never restarted.
fn restart(waits: bool) -> Value {
    let attempts = if waits { 2 } else { 0 };
    json!({"Attempts": attempts, "Interval": 60 * SECOND, "Delay": 2 * SECOND, "Mode": "fail"})
}

/// How Nomad treats allocations on a node that falls silent.
///
/// By default Nomad places a lost allocation again, whatever its restart and reschedule policies are. It ends one of
/// the two when the node comes back. A bot would then run twice, because the first one may still be in its meeting. In
/// a hot pool a job does not show whether its agent has a bot, so all agents are treated alike.
///
/// So the allocation stays where it is, and continues if the node comes back. If the node is gone, the bot's heartbeats
/// stop and its slot is cleared. A waiting agent is unhealthy meanwhile, and sync makes it again on another node.
fn disconnect() -> Value {
    json!({"Replace": false, "LostAfter": LOST_AFTER})
}

/// Escapes a bot's data so that Nomad does not change it. Nomad would replace text such as `${node.unique.name}`. JSON
/// allows an escape sequence for each character.
fn literal(name: &str, value: &str) -> String {
    if name == "BOT_DATA" { value.replace("${", "\\u0024{") } else { value.to_owned() }
}

/// A job from Nomad's answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Job {
    /// The index that a change must name.
    #[serde(rename = "JobModifyIndex")]
    pub index: u64,
    pub version: u64,
    status: String,
    stop: bool,
    meta: Option<Meta>,
    task_groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Group {
    count: u64,
}

impl Job {
    fn meta(&self, key: &str) -> &str {
        self.meta.as_ref().and_then(|meta| meta.get(key)).map(String::as_str).unwrap_or_default()
    }

    /// Whether its count is 0.
    pub fn is_stopped(&self) -> bool {
        self.stop || self.task_groups.iter().all(|group| group.count == 0)
    }

    /// Whether nothing of it runs, and Nomad has nothing left to decide about it, now or later.
    pub fn is_dead(&self) -> bool {
        self.status == "dead"
    }

    pub fn status(&self) -> &str {
        &self.status
    }
}

/// A job in Nomad's list.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listed {
    #[serde(rename = "ID")]
    name: String,
    status: String,
    meta: Option<Meta>,
    job_summary: Summary,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Summary {
    summary: BTreeMap<String, Counts>,
}

/// How many allocations of a group have each status. Allocations that have to stop are included.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Counts {
    running: u64,
    starting: u64,
    queued: u64,
    #[serde(default)]
    unknown: u64,
}

impl Listed {
    pub fn is_of(&self, installation: &str) -> bool {
        let Some(meta) = &self.meta else { return false };
        meta.get(INSTALLATION).map(String::as_str) == Some(installation) && meta.get(SLOT) == Some(&self.name)
    }

    fn sum(&self, count: fn(&Counts) -> u64) -> u64 {
        self.job_summary.summary.values().map(count).sum()
    }

    /// How many allocations run, or are about to run.
    fn live(&self) -> u64 {
        self.sum(|counts| counts.running + counts.starting)
    }

    /// Whether Nomad's status of the job is running. Nomad reports this while something has to run, even on a silent
    /// node.
    fn is_running(&self) -> bool {
        self.status == "running"
    }

    /// Whether the counted allocations only have to end. Their progress is in the list of allocations.
    pub fn is_ending(&self) -> bool {
        !self.is_running() && self.live() > 0
    }

    pub fn slot(&self) -> SlotName {
        SlotName::stored(self.name.clone())
    }

    pub fn status(&self) -> &str {
        &self.status
    }

    /// The slot's state, for a job that is not ending.
    pub fn found(&self) -> Found {
        let (starting, queued) = (self.sum(|counts| counts.starting), self.sum(|counts| counts.queued));
        // Unknown allocations that only have to stop are counted too. So the count matters only if nothing else runs.
        let is_on_silent_node = self.is_running() && self.live() == 0 && self.sum(|counts| counts.unknown) > 0;
        let message = match (self.live(), starting, queued) {
            _ if is_on_silent_node => ", unknown: Nomad has no contact with its node",
            (0, _, queued) if queued > 0 => ", waits for room on a node",
            (live, starting, _) if live > 0 && live == starting => ", starting",
            _ => "",
        };
        let state = format!("{}{message}", self.status);
        Found { unhealthy: is_on_silent_node, ..Found::new(self.slot(), self.is_running(), state) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_bots_data_is_never_filled_in_by_nomad() {
        let data = r#"{"name": "${node.unique.name} ${NOMAD_ALLOC_ID} $5"}"#;
        let written = literal("BOT_DATA", data);
        assert!(!written.contains("${"));
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&written), read(data));
    }
}
