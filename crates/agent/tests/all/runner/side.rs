//! The server's part of a runner: one machine, its run, and its instance metadata service.

use serde_json::{Value, json};

use crate::request::Request;
use crate::server::{Data, Server, State, TestResponse};

pub const POOL_TOKEN: &str = "grp_the-token-of-the-pool";
pub const OWN_TOKEN: &str = "grr_the-token-of-the-runner";
pub const INSTANCE: &str = "i-0123456789abcdef0";
const METADATA_TOKEN: &str = "the token of the metadata";

#[derive(Debug)]
pub struct Machine {
    /// The run for this machine, with the bot's data.
    run: Option<(String, Value)>,
    runs: usize,
    /// Whether the server gives a run to another runner at the moment of its acknowledgement.
    pub gives_away: bool,
    pub stop: bool,
    pub end: bool,
    pub is_spot: bool,
    /// Whether AWS has announced that it takes the machine back.
    pub notice: bool,
    pub orphaned_after_ms: u64,
    /// How its pool starts commands ahead: the time to become ready, and the time to wait.
    pub prewarm_ms: Option<(u64, u64)>,
    /// Whether the runner can get bots.
    pub is_registered: bool,
    /// Whether another runner renews its command.
    pub others_renew: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            run: None,
            runs: 0,
            gives_away: false,
            stop: false,
            end: false,
            is_spot: false,
            notice: false,
            orphaned_after_ms: 3_600_000,
            prewarm_ms: None,
            is_registered: false,
            others_renew: false,
        }
    }
}

impl Machine {
    /// The run belongs to no runner any more.
    pub fn forget_run(&mut self) {
        self.run = None;
    }
}

impl Server {
    /// Claims the runner for a bot, and returns the id of the run.
    pub fn claim(&self, data: &Data) -> String {
        let mut id = String::new();
        self.machine(|machine| {
            machine.runs += 1;
            id = format!("run-{}", machine.runs);
            let mut data = data.json.clone();
            data["run_id"] = json!(id);
            machine.run = Some((id.clone(), data));
        });
        id
    }

    /// How often this call was made, whatever the answer was.
    pub fn times(&self, name: &str) -> usize {
        self.calls().iter().filter(|call| call.name == name).count()
    }

    pub async fn until_called_times(&self, name: &str, times: usize) {
        let called = |state: &State| state.calls.iter().filter(|call| call.name == name).count() >= times;
        self.until(name, called).await;
    }

    /// The calls about the runner and its bots, in order, without long polls and heartbeats.
    pub fn course(&self) -> Vec<String> {
        let course = ["register", "acknowledge", "started", "exited", "release", "end"];
        self.calls().into_iter().map(|call| call.name).filter(|name| course.contains(&name.as_str())).collect()
    }

    pub async fn until_beat_with(&self, run: Option<&str>) {
        let beats = self.times("beat");
        let beaten = |state: &State| {
            let mut beats = state.calls.iter().filter(|call| call.name == "beat").skip(beats);
            beats.any(|call| call.body["run_id"] == json!(run))
        };
        self.until("a heartbeat with the run", beaten).await;
    }
}

/// The name of a call in the record.
pub fn name(method: &str, path: &str) -> Option<&'static str> {
    Some(match path {
        "/agent/runner" if method == "GET" => "pool_settings",
        "/agent/runner" => "register",
        "/agent/runner/heartbeat" => "beat",
        "/agent/runner/acknowledge" => "acknowledge",
        "/agent/runner/release" => "release",
        "/agent/runner/not_ready" => "runner_not_ready",
        "/agent/runner/end" => "end",
        "/latest/api/token" => "metadata-token",
        "/latest/meta-data/instance-id" => "instance-id",
        "/latest/meta-data/spot/instance-action" => "instance-action",
        _ => return None,
    })
}

pub fn assignment(state: &State, is_last_poll: bool) -> Option<TestResponse> {
    match &state.machine.run {
        Some((_, data)) => Some((200, data.clone(), None)),
        None if is_last_poll => Some((204, Value::Null, None)),
        None => None,
    }
}

fn problem(status: u16, code: &str) -> TestResponse {
    (status, json!({"code": code, "detail": "so it is"}), None)
}

pub fn answer(request: &Request, name: &str, body: &Value, state: &mut State) -> TestResponse {
    if request.path.starts_with("/latest/") {
        return metadata(request, name, state);
    }
    if name == "pool_settings" {
        let prewarm =
            state.machine.prewarm_ms.map(|(ready, age)| json!({"ready_timeout_ms": ready, "max_warm_age_ms": age}));
        return (200, json!({"prewarm": prewarm}), None);
    }
    let (token, fields): (&str, &[&str]) = match name {
        "register" => (POOL_TOKEN, &["agent", "instance_id"]),
        "release" if body["ready"] == false => (OWN_TOKEN, &["ready", "run_id"]),
        "beat" | "acknowledge" | "release" => (OWN_TOKEN, &["run_id"]),
        "runner_not_ready" => (OWN_TOKEN, &["message", "renewal"]),
        _ => (OWN_TOKEN, &["reason"]),
    };
    if request.method != "POST" || body.as_object().unwrap().keys().collect::<Vec<_>>() != fields {
        state.mistakes.push(format!("{} {name} with {body}", request.method));
    }
    if request.token != token {
        state.mistakes.push(format!("{name} with the token {:?}", request.token));
        return problem(401, "unauthorized");
    }
    let machine = &mut state.machine;
    let run = machine.run.as_ref().map(|(id, _)| json!(id));
    let is_its_run = run.is_some_and(|run| run == body["run_id"]);
    let success = match name {
        "register" => {
            machine.is_registered = true;
            json!({
                "runner": body["instance_id"], "token": OWN_TOKEN, "pool": "machines", "resource_class": "large",
                "usage_class": if machine.is_spot { "spot" } else { "on-demand" },
                "heartbeat_interval_ms": 50, "orphaned_after_ms": machine.orphaned_after_ms,
            })
        }
        "beat" => {
            let stop = !body["run_id"].is_null() && (machine.stop || !is_its_run);
            let state = if machine.is_registered { "idle" } else { "created" };
            json!({"state": state, "stop": stop, "end": machine.end})
        }
        "runner_not_ready" => {
            let (assigned, refused) = (machine.run.is_some(), machine.others_renew && body["renewal"] == true);
            machine.is_registered = machine.is_registered && (assigned || refused);
            json!({"registered": machine.is_registered, "assigned": assigned})
        }
        "end" => json!({}),
        "acknowledge" if std::mem::take(&mut machine.gives_away) => {
            machine.run = None;
            return problem(409, "stale_run");
        }
        _ if !is_its_run => return problem(409, "stale_run"),
        "release" => {
            machine.run = None;
            machine.stop = false;
            machine.is_registered = body["ready"] != false;
            json!({"registered": machine.is_registered})
        }
        _ => json!({}),
    };
    (200, success, None)
}

fn metadata(request: &Request, name: &str, state: &mut State) -> TestResponse {
    let header = |name: &str| request.metadata_headers.get(name).map(String::as_str);
    let asked_well = match name {
        "metadata-token" => request.method == "PUT" && header("x-aws-ec2-metadata-token-ttl-seconds").is_some(),
        _ => request.method == "GET" && header("x-aws-ec2-metadata-token") == Some(METADATA_TOKEN),
    };
    if !asked_well {
        state.mistakes.push(format!("{name} with {request:?}"));
    }
    match name {
        "metadata-token" => (200, json!(METADATA_TOKEN), None),
        "instance-id" => (200, json!(INSTANCE), None),
        _ if state.machine.notice => (200, json!({"action": "terminate", "time": "2026-01-01T00:00:00Z"}), None),
        _ => (404, json!("not found"), None),
    }
}
