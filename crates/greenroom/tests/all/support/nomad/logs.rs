//! The logs of tasks. Nomad returns them as plain text or as JSON frames, at once or for as long as the task runs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::Response;
use serde_json::json;

use super::api::{NomadFakeResponse, Request};
use super::cluster::Cluster;
use super::state::Key;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The position of a reader.
#[derive(Debug)]
struct Reader {
    cluster: Arc<Cluster>,
    allocation: String,
    key: Key,
    /// 0 for standard output, 1 for standard error.
    stream: usize,
    offset: usize,
    file: String,
    is_plain: bool,
    follows: bool,
}

impl Reader {
    /// The text that was not read yet.
    fn rest(&mut self) -> String {
        let state = self.cluster.state();
        let text = state.logs.get(&self.key).map_or("", |logs| logs[self.stream].as_str());
        let rest = text.get(self.offset..).unwrap_or_default().to_owned();
        drop(state);
        self.offset += rest.len();
        rest
    }

    fn frame(&self, text: &str) -> Bytes {
        if self.is_plain {
            return Bytes::from(text.to_owned());
        }
        let frame = json!({"File": self.file, "Offset": self.offset, "Data": BASE64_STANDARD.encode(text)});
        Bytes::from(frame.to_string())
    }

    fn has_ended(&self) -> bool {
        self.cluster.state().allocation(&self.allocation).is_none_or(|one| one.has_ended())
    }
}

pub fn answer(cluster: &Arc<Cluster>, request: &Request) -> Result<Response<Body>, NomadFakeResponse> {
    let wrong = |message: &str| {
        cluster.state().violations.push(message.to_owned());
        NomadFakeResponse::error(400, message)
    };
    let task = request.parameter("task").ok_or_else(|| wrong("must provide task name"))?;
    let stream = match request.parameter("type") {
        Some("stdout") => 0,
        Some("stderr") => 1,
        _ => return Err(wrong("must provide log type (stdout/stderr)")),
    };
    let from_end = match request.parameter("origin") {
        None | Some("start") => false,
        Some("end") => true,
        _ => return Err(wrong("origin must be start or end")),
    };
    let offset: usize = request.parameter("offset").and_then(|offset| offset.parse().ok()).unwrap_or_default();
    let mut state = cluster.state();
    let Some(one) = state.allocation(&request.name).cloned() else {
        return Err(NomadFakeResponse::error(404, format!("Unknown allocation {:?}", request.name)));
    };
    if state.node(&one.node).is_none_or(|node| !node.is_up) {
        return Err(NomadFakeResponse::error(404, "No path to node"));
    }
    match one.tasks.get(task) {
        None => return Err(NomadFakeResponse::error(400, format!("unknown task name {task:?}"))),
        Some(known) if known.started.is_none() => {
            let message = format!("task {task:?} not started yet. No logs available");
            return Err(NomadFakeResponse::error(404, message));
        }
        Some(_) => {}
    }
    let length = state.logs.get(&one.key).map_or(0, |logs| logs[stream].len());
    drop(state);
    let file = format!("alloc/logs/{task}.{}.0", if stream == 0 { "stdout" } else { "stderr" });
    let reader = Reader {
        cluster: cluster.clone(),
        allocation: one.id,
        key: one.key,
        stream,
        offset: if from_end { length.saturating_sub(offset) } else { offset },
        file,
        is_plain: request.is_set("plain"),
        follows: request.is_set("follow"),
    };
    let kind = if reader.is_plain { "text/plain" } else { "application/json" };
    let frames = futures_util::stream::unfold((reader, false), |(mut reader, is_over)| async move {
        if is_over {
            return None;
        }
        loop {
            let has_ended = !reader.follows || reader.has_ended();
            let text = reader.rest();
            if !text.is_empty() {
                let frame = reader.frame(&text);
                return Some((Ok::<_, Infallible>(frame), (reader, has_ended)));
            }
            if has_ended {
                return None;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    Ok(Response::builder().header("Content-Type", kind).body(Body::from_stream(frames)).unwrap())
}
