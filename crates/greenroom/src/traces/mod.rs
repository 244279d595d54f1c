//! Traces of bots, for a collector that speaks OTLP. One trace is one bot: its id is the bot's id, so that all replicas
//! and agents write into the same trace without passing anything on.
//!
//! A part of the server that has finished a step calls [`record`]. The call never waits: spans go into a bounded queue,
//! and those that do not fit are dropped and counted. Without `telemetry.otlp_endpoint` it does nothing.
//!
//! - this file: recording spans
//! - [`span`]: spans, their ids, and `traceparent`
//! - [`protobuf`]: the encoding of OTLP
//! - [`export`]: sending spans to the collector

pub mod export;
mod protobuf;
pub mod span;

use std::sync::OnceLock;

use tokio::sync::mpsc;

pub use span::{Span, SpanId, TraceParent};

/// How many spans may wait for the collector.
const WAITING: usize = 8_192;

/// One exporter per process, as for logs and metrics.
static SPANS: OnceLock<mpsc::Sender<Span>> = OnceLock::new();

/// Begins to record spans. Returns the spans for the task that exports them; `None` if this process records already.
pub fn begin() -> Option<mpsc::Receiver<Span>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    SPANS.set(sender).is_ok().then_some(receiver)
}

/// Whether anybody wants spans, so that it is worth making one.
pub fn is_on() -> bool {
    SPANS.get().is_some()
}

/// Records a finished step of a bot.
pub fn record(span: Span) {
    if let Some(spans) = SPANS.get()
        && spans.try_send(span).is_err()
    {
        count("dropped", 1);
    }
}

/// Counts spans by what became of them.
fn count(result: &'static str, spans: u64) {
    metrics::counter!("greenroom_trace_spans_total", "result" => result).increment(spans);
}

/// So that the first lost span counts as an increase.
pub fn begin_counting() {
    for result in ["sent", "dropped", "failed"] {
        count(result, 0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use domain::BotId;
    use jiff::Timestamp;

    use super::*;

    #[tokio::test]
    async fn spans_beyond_the_limit_are_dropped_and_nobody_waits() {
        let spans = begin().unwrap();
        let (bot, now) = (BotId(uuid::Uuid::now_v7()), Timestamp::now());
        for _ in 0..WAITING + 100 {
            record(Span::step(bot, "active", now, now));
        }
        assert_eq!(spans.len(), WAITING);
    }
}
