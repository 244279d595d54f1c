//! Sends spans to the collector, in batches. A collector that is away or slow costs nothing but spans: a batch is tried
//! a few times and then dropped, and meanwhile the queue fills and drops the rest.

use std::time::Duration;

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Span, count, protobuf};

const BATCH: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// How long the last spans may delay the end of the server.
const LAST_SPANS: Duration = Duration::from_secs(2);

/// Where the spans go.
#[derive(Clone, Debug)]
pub struct Exporter {
    url: String,
    /// The name of this replica.
    instance: String,
    http: Client,
}

impl Exporter {
    /// `endpoint` is the address of the collector, with or without the path of traces.
    pub fn new(endpoint: &str, instance: String) -> Result<Self, reqwest::Error> {
        let http = Client::builder().timeout(ANSWER_WITHIN).connect_timeout(ANSWER_WITHIN).build()?;
        Ok(Self { url: traces_url(endpoint), instance, http })
    }

    /// Exports until `ending`, and then sends the remaining spans.
    pub async fn run(self, mut spans: mpsc::Receiver<Span>, ending: CancellationToken) {
        let mut is_failing = false;
        while !ending.is_cancelled() {
            let mut batch = Vec::new();
            tokio::select! {
                _ = spans.recv_many(&mut batch, BATCH) => {}
                () = ending.cancelled() => {}
            }
            let gather = tokio::time::sleep(GATHER);
            tokio::pin!(gather);
            while batch.len() < BATCH && !ending.is_cancelled() {
                let room = BATCH - batch.len();
                tokio::select! {
                    _ = spans.recv_many(&mut batch, room) => {}
                    () = &mut gather => break,
                    () = ending.cancelled() => {}
                }
            }
            tokio::select! {
                sent = self.send(&batch) => Self::report(sent, batch.len(), &mut is_failing),
                () = ending.cancelled() => {
                    let _ = tokio::time::timeout(LAST_SPANS, self.send_once(&batch)).await;
                }
            }
        }
        let mut rest = Vec::new();
        while let Ok(span) = spans.try_recv() {
            rest.push(span);
        }
        let send_rest = async {
            for batch in rest.chunks(BATCH) {
                if self.send_once(batch).await.is_err() {
                    break;
                }
            }
        };
        let _ = tokio::time::timeout(LAST_SPANS, send_rest).await;
    }

    fn report(sent: Result<(), String>, spans: usize, is_failing: &mut bool) {
        count(if sent.is_ok() { "sent" } else { "failed" }, spans as u64);
        // This logs the first failure, and not each batch while the collector is away.
        if let Err(error) = &sent
            && !*is_failing
        {
            tracing::warn!(error, spans, "spans not exported; they are dropped until the collector answers");
        }
        *is_failing = sent.is_err();
    }

    async fn send(&self, batch: &[Span]) -> Result<(), String> {
        let mut tries = 1;
        loop {
            match self.send_once(batch).await {
                Err((_, true)) if tries < TRIES => tokio::time::sleep(PAUSE * tries).await,
                sent => return sent.map_err(|(error, _)| error),
            }
            tries += 1;
        }
    }

    /// An error says whether a retry may help.
    async fn send_once(&self, batch: &[Span]) -> Result<(), (String, bool)> {
        if batch.is_empty() {
            return Ok(());
        }
        let body = protobuf::request(batch, &self.instance);
        let request = self.http.post(&self.url).header(CONTENT_TYPE, "application/x-protobuf").body(body);
        let answer = request.send().await.map_err(|error| (error.without_url().to_string(), true))?;
        let status = answer.status();
        let is_retryable = matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        if status.is_success() { Ok(()) } else { Err((format!("the collector answered {status}"), is_retryable)) }
    }
}

/// The address for traces, as OTLP says: below the endpoint, unless that is one already.
fn traces_url(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.ends_with("/v1/traces") { endpoint.to_owned() } else { format!("{endpoint}/v1/traces") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_go_below_the_endpoint() {
        for endpoint in ["http://collector:4318", "http://collector:4318/", "http://collector:4318/v1/traces"] {
            assert_eq!(traces_url(endpoint), "http://collector:4318/v1/traces");
        }
    }
}
