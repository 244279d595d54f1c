//! The job of a slot: what is registered, and what is read of one.

use std::collections::BTreeMap;

use domain::SlotName;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::config::provider::NomadConfig;
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
/// Longer than any bot whose node is silent is waited for.
const NEVER_LOST: u64 = 24 * 60 * 60 * SECOND;

/// How the pool's jobs are made.
#[derive(Debug)]
pub struct Recipe {
    pub config: NomadConfig,
    pub installation: String,
}

impl Recipe {
    /// Stands for what a job is made of, beside its slot's own variables.
    fn fingerprint(&self, spec: &Spec) -> String {
        let NomadConfig { datacenters, image, command, cpu, memory, env, .. } = &self.config;
        let url = spec.environment.get("GREENROOM_URL");
        let parts = format!("{datacenters:?}{image:?}{command:?}{cpu:?}{memory:?}{env:?}{url:?}");
        let digest = Sha256::digest(parts.as_bytes());
        digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
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
        if let Some((program, arguments)) = command.as_ref().and_then(|command| command.split_first()) {
            config["command"] = json!(program);
            config["args"] = json!(arguments);
        }
        let mut of_job = json!({INSTALLATION: self.installation, SLOT: slot.as_str()});
        if let (Some(all), Value::Object(meta)) = (of_job.as_object_mut(), meta) {
            all.extend(meta);
        }
        let mut group = json!({
            "Name": TASK,
            "Count": count,
            "RestartPolicy": restart(waits),
            // Of what failed, not of what is lost with its node.
            "ReschedulePolicy": {"Attempts": 0, "Interval": 0, "Unlimited": false},
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
        if !waits {
            group["Disconnect"] = disconnect();
        }
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

/// What becomes of a bot whose node falls silent. Nomad places what is lost with its node once more, whatever its policies
/// of restart and reschedule say. For an agent that waits this is just right: the slot is warm again, elsewhere. A bot
/// would be started twice, and the first may well be in its meeting still, since only Nomad has lost sight of it. So it
/// stays where it is, and goes on if the node comes back; if it is gone its heartbeats say so, and its slot is cleared.
fn disconnect() -> Value {
    json!({"Replace": false, "LostAfter": NEVER_LOST})
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
    meta: Option<BTreeMap<String, String>>,
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

    /// Whether Nomad has nothing left to decide about it.
    pub fn is_settled(&self) -> bool {
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
    meta: Option<BTreeMap<String, String>>,
    job_summary: Summary,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Summary {
    summary: BTreeMap<String, Counts>,
}

/// How many allocations of a group are in which status.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Counts {
    running: u64,
    starting: u64,
    queued: u64,
}

impl Listed {
    /// What it is, if it is this installation's.
    pub fn found(self, installation: &str) -> Option<Found> {
        let meta = self.meta?;
        if meta.get(INSTALLATION).map(String::as_str) != Some(installation) || meta.get(SLOT) != Some(&self.name) {
            return None;
        }
        let sum = |count: fn(&Counts) -> u64| self.job_summary.summary.values().map(count).sum::<u64>();
        let (running, starting) = (sum(|counts| counts.running), sum(|counts| counts.starting));
        // Nomad says of a job that it runs while something of it may, also where nobody hears of the node; what is only to end
        // still is counted.
        let is_live = self.status == "running";
        let state = match (running, starting, sum(|counts| counts.queued)) {
            (0, 0, 0) => self.status,
            (0, 0, _) => format!("{}, waits for room on a node", self.status),
            (0, ..) => format!("{}, starting", self.status),
            _ => self.status,
        };
        Some(Found::new(SlotName::stored(self.name), is_live || running + starting > 0, state))
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
