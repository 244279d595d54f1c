//! The job of a slot: what is registered, and what is read of one.

use std::collections::BTreeMap;

use domain::SlotName;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::provider::NomadConfig;
use crate::providers::fingerprint::fingerprint;
use crate::providers::{Found, Spec};

/// The meta that says whose a job is.
const INSTALLATION: &str = "greenroom.installation";
/// The meta that says of which slot it is.
const SLOT: &str = "greenroom.slot";
/// The meta that says for which generation of its slot it runs, and by which recipe.
const MADE: &str = "greenroom.made";
/// The meta that says for which connection it runs; empty when for none.
const CONNECTION: &str = "greenroom.connection";
/// The one task of the one group, by the name of both.
pub const TASK: &str = "bot";

const SECOND: u64 = 1_000_000_000;
/// How long what runs may take to end by itself before it is killed.
const GRACE: u64 = 3 * SECOND;
/// As long as a start may take; Nomad gives up after 5 minutes otherwise.
const LONGEST_PULL: &str = "15m";
/// Longer than any meeting. What is unknown for so long is taken for lost, and then it is placed anew after all.
const LOST_AFTER: u64 = 24 * 60 * 60 * SECOND;

/// What a job says of itself.
pub type Meta = BTreeMap<String, String>;

/// How the pool's jobs are made.
#[derive(Debug)]
pub struct Recipe {
    pub config: NomadConfig,
    pub installation: String,
}

impl Recipe {
    /// Stands for what a job is made of, beside its slot's own variables.
    fn fingerprint(&self, spec: &Spec) -> String {
        let url = spec.environment.get("GREENROOM_URL");
        fingerprint(&format!("{}{url:?}", self.text()))
    }

    /// Stands for what the pool's jobs are made of.
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

    /// Whether a job is told to run just this.
    pub fn fits(&self, job: &Job, spec: &Spec) -> bool {
        !job.is_off()
            && job.meta(MADE) == self.made(spec)
            && job.meta(CONNECTION) == spec.connection.as_deref().unwrap_or_default()
    }

    pub fn owns(&self, job: &Job) -> bool {
        job.meta(INSTALLATION) == self.installation
    }

    /// The same by a job's meta alone, where there is no more of it.
    pub fn owns_meta(&self, meta: &Meta) -> bool {
        meta.get(INSTALLATION) == Some(&self.installation)
    }

    /// A job of which nothing runs. It has nothing of a bot in it, so that nobody finds a token there later.
    pub fn resting(&self, slot: &SlotName) -> Value {
        self.job(slot, 0, json!({}), &BTreeMap::new(), true)
    }

    /// The job that runs what is wanted. What it says of `fresh` is always so: every allocation has a container and a disk of
    /// its own, and the disk neither moves nor stays.
    pub fn running(&self, spec: &Spec) -> Value {
        let mut environment: BTreeMap<String, String> =
            spec.environment.iter().map(|(name, value)| (name.clone(), literal(name, value))).collect();
        // Filled in by the node: what a bot says that it runs in is what `nomad alloc status` shows.
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
        // The driver's `command` and `args` would only be handed to what the image runs by itself. Without them, nothing
        // of the image's own is run.
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
            // Of what failed, not of what is lost with its node.
            "ReschedulePolicy": {"Attempts": 0, "Interval": 0, "Unlimited": false},
            "Disconnect": disconnect(),
            // Without deployments: there is nothing to roll out, and one that is under way would hold up the next change.
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

/// An agent that waits is started again where it was when it fails; what still fails then is made anew by sync. A bot that
/// ended is at its end, however it ended.
fn restart(waits: bool) -> Value {
    let attempts = if waits { 2 } else { 0 };
    json!({"Attempts": attempts, "Interval": 60 * SECOND, "Delay": 2 * SECOND, "Mode": "fail"})
}

/// What becomes of what runs on a node that falls silent. Nomad places what is lost with its node once more, whatever its
/// policies of restart and reschedule say, and ends one of the two when the node comes back. A bot would be started twice,
/// and the first may well be in its meeting still, since only Nomad has lost sight of it. In a hot pool a job does not say
/// whether its agent has a bot, so agents are treated alike. So it stays where it is, and goes on if the node comes back. If
/// it is gone, a bot's heartbeats say so and its slot is cleared; an agent that waits is unwell meanwhile, and sync makes it
/// anew elsewhere.
fn disconnect() -> Value {
    json!({"Replace": false, "LostAfter": LOST_AFTER})
}

/// A bot's data as it is, whatever is in it: Nomad would fill in what looks like a variable of its own, such as
/// `${node.unique.name}`. In JSON a character can be written otherwise.
fn literal(name: &str, value: &str) -> String {
    if name == "BOT_DATA" { value.replace("${", "\\u0024{") } else { value.to_owned() }
}

/// A job as Nomad shows it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Job {
    /// What a change has to name.
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

    /// Whether nothing of it is to run.
    pub fn is_off(&self) -> bool {
        self.stop || self.task_groups.iter().all(|group| group.count == 0)
    }

    /// Whether nothing of it runs and Nomad has nothing left to decide about it, now or later.
    pub fn is_dead(&self) -> bool {
        self.status == "dead"
    }

    pub fn status(&self) -> &str {
        &self.status
    }
}

/// A job as it is listed.
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

/// How many allocations of a group are in which status, also of those that are to stop.
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

    /// How many allocations run, or are about to.
    fn live(&self) -> u64 {
        self.sum(|counts| counts.running + counts.starting)
    }

    /// Nomad says of a job that it runs while something of it is to, also where nobody hears of the node.
    fn is_running(&self) -> bool {
        self.status == "running"
    }

    /// Whether what is counted is only to end still. How far that is, its allocations say.
    pub fn is_ending(&self) -> bool {
        !self.is_running() && self.live() > 0
    }

    pub fn slot(&self) -> SlotName {
        SlotName::stored(self.name.clone())
    }

    pub fn status(&self) -> &str {
        &self.status
    }

    /// What it is, if it is not ending.
    pub fn found(&self) -> Found {
        let (starting, queued) = (self.sum(|counts| counts.starting), self.sum(|counts| counts.queued));
        // What is unknown and only to stop is counted too, so it says something only where nothing else runs.
        let is_unheard_of = self.is_running() && self.live() == 0 && self.sum(|counts| counts.unknown) > 0;
        let message = match (self.live(), starting, queued) {
            _ if is_unheard_of => ", unknown: Nomad does not hear of its node",
            (0, _, queued) if queued > 0 => ", waits for room on a node",
            (live, starting, _) if live > 0 && live == starting => ", starting",
            _ => "",
        };
        let state = format!("{}{message}", self.status);
        Found { unwell: is_unheard_of, ..Found::new(self.slot(), self.is_running(), state) }
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
