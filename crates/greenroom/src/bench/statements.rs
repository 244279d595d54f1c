//! Counts the statements of a server, from its own metrics. `BEGIN` and `COMMIT` are not counted, nor are the reads that
//! a scrape of the metrics causes.

use std::collections::BTreeMap;

use super::Done;
use super::client::Client;
use super::server::ServerProcess;

const COUNT: &str = "greenroom_database_call_duration_seconds_count";
const UNDER_WAY: &str = "greenroom_http_requests_under_way";
/// The calls without a statement of their own, and the reads for gauges.
const NOT_COUNTED: [&str; 6] =
    ["begin", "commit", "bots.count_open", "budgets.stopped", "deployments.count", "queue.oldest"];

/// The calls of a server since its start.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    counts: BTreeMap<String, f64>,
    /// How many requests are being answered.
    pub requests_under_way: f64,
}

impl Calls {
    pub async fn of(server: &ServerProcess) -> Done<Self> {
        let mut client = Client::connect(server.address).await?;
        let (status, body) = client.call("GET /metrics", "", None, "").await?;
        if status != 200 {
            return Err(format!("GET /metrics returned {status}").into());
        }
        Ok(Self::read(&String::from_utf8_lossy(body)))
    }

    fn read(text: &str) -> Self {
        let mut calls = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            if name == UNDER_WAY {
                calls.requests_under_way = value;
            }
            let Some(labels) = name.strip_prefix(COUNT) else { continue };
            let call = labels.split('"').nth(1).unwrap_or_default();
            if !NOT_COUNTED.contains(&call) {
                *calls.counts.entry(call.to_owned()).or_default() += value;
            }
        }
        calls
    }

    /// The calls in a second since an earlier count, by their name.
    pub fn per_second(&self, before: &Self, seconds: f64) -> BTreeMap<String, f64> {
        let since = |call: &str, count: f64| (count - before.counts.get(call).copied().unwrap_or(0.0)) / seconds;
        let rates = self.counts.iter().map(|(call, count)| (call.clone(), since(call, *count)));
        rates.filter(|(_, rate)| *rate > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_statements_are_counted_of_both_results() {
        let before = Calls::read("greenroom_database_call_duration_seconds_count{call=\"a.b\",result=\"ok\"} 3");
        let after = Calls::read(
            "greenroom_database_call_duration_seconds_count{call=\"a.b\",result=\"ok\"} 5\n\
             greenroom_database_call_duration_seconds_count{call=\"a.b\",result=\"error\"} 1\n\
             greenroom_database_call_duration_seconds_count{call=\"begin\",result=\"ok\"} 9\n\
             greenroom_database_call_duration_seconds_sum{call=\"a.b\",result=\"ok\"} 7\n\
             greenroom_http_requests_under_way 4",
        );
        assert_eq!(after.per_second(&before, 2.0), [("a.b".to_owned(), 1.5)].into());
        assert!((after.requests_under_way - 4.0).abs() < f64::EPSILON);
    }
}
