//! A machine whose agent the test plays: it registers, sends heartbeats, and controls its bot as the test says.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::super::{Client, Life, found, until};

const BEAT: Duration = Duration::from_millis(100);

/// The latest answer to its registration or to a heartbeat.
#[derive(Debug)]
struct Heard {
    status: StatusCode,
    answer: Value,
    at: Instant,
}

#[derive(Debug)]
pub struct Machine {
    pub instance: String,
    /// A client with the token of the runner.
    pub client: Client,
    busy_with: Arc<Mutex<Option<String>>>,
    heard: watch::Receiver<Heard>,
    beating: JoinHandle<()>,
}

impl Machine {
    /// Registers with a token, and sends heartbeats from then on.
    pub async fn up(server: &Client, token: &str, instance: &str) -> Self {
        let (status, answer) = Self::register(server, token, instance).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["runner"], instance);
        let client = server.with(answer["token"].as_str().unwrap());
        let busy_with = Arc::<Mutex<Option<String>>>::default();
        let (sender, heard) = watch::channel(Heard { status, answer, at: Instant::now() });
        let beating = tokio::spawn(beat(client.clone(), busy_with.clone(), sender));
        Self { instance: instance.to_owned(), client, busy_with, heard, beating }
    }

    pub async fn register(server: &Client, token: &str, instance: &str) -> (StatusCode, Value) {
        server.with(token).post("/agent/runner", json!({"instance_id": instance})).await
    }

    /// Waits for a bot, and returns its data.
    pub async fn bot(&self) -> Value {
        found("the runner is given a bot", async || {
            // The server may be unavailable for a moment.
            let asked = self.client.try_send(Method::GET, "/agent/assignment?wait_ms=1000", None).await.ok()?;
            assert!(asked.0.is_success(), "{asked:?}");
            (asked.0 == StatusCode::OK).then_some(asked.1)
        })
        .await
    }

    /// Waits for a bot, accepts it and starts it.
    pub async fn take(&self) -> Life {
        let data = self.bot().await;
        assert_eq!(self.acknowledge(&data).await, StatusCode::OK);
        let life = Life::from_data(&self.client, &data);
        life.report("started", json!({"container_id": self.instance})).await;
        life.report("joined", json!({})).await;
        life
    }

    pub async fn acknowledge(&self, data: &Value) -> StatusCode {
        let run_id = data["run_id"].as_str().unwrap();
        let (status, _) = self.client.post("/agent/runner/acknowledge", json!({"run_id": run_id})).await;
        if status == StatusCode::OK {
            *self.busy_with.lock().unwrap() = Some(run_id.to_owned());
        }
        status
    }

    /// Releases the runner.
    pub async fn release(&self) -> StatusCode {
        let run_id = self.busy_with.lock().unwrap().take().unwrap();
        self.client.post("/agent/runner/release", json!({"run_id": run_id})).await.0
    }

    /// Waits until a heartbeat's answer has this field set to true.
    pub async fn until_told(&self, what: &str) {
        until(&format!("the runner is told {what}"), async || self.heard.borrow().answer[what] == true).await;
    }

    /// Waits until the server answers that the runner has ended.
    pub async fn until_ended(&self) {
        until("the runner has ended", async || {
            let heard = self.heard.borrow();
            heard.status == StatusCode::GONE && heard.answer["code"] == "runner_ended"
        })
        .await;
    }

    /// Stops the heartbeats, and waits until the last one is older than this time.
    pub async fn fall_silent(&self, time: Duration) {
        self.beating.abort();
        until("it has been silent for long", async || self.heard.borrow().at.elapsed() > time).await;
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.beating.abort();
    }
}

async fn beat(client: Client, busy_with: Arc<Mutex<Option<String>>>, sender: watch::Sender<Heard>) {
    loop {
        let run_id = busy_with.lock().unwrap().clone();
        // The server may be unavailable for a moment.
        let body = json!({"run_id": run_id});
        if let Ok((status, answer)) = client.try_send(Method::POST, "/agent/runner/heartbeat", Some(body)).await {
            let _ = sender.send(Heard { status, answer, at: Instant::now() });
        }
        tokio::time::sleep(BEAT).await;
    }
}
