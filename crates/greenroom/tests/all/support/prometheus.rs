//! A Prometheus for a single test, which scrapes one server. It ends with the test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::servers::{Running, TRIES, any_port, variable};
use super::until;

#[derive(Debug)]
pub struct PrivatePrometheus {
    _running: Running,
    url: String,
    _folder: tempfile::TempDir,
}

impl PrivatePrometheus {
    /// Starts a Prometheus that scrapes the server at this address several times a second, with these rules.
    pub async fn start(server: &str, rules: &Path) -> Self {
        let target = server.trim_start_matches("http://");
        for _ in 0..TRIES {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let (config, address) = (folder.path().join("prometheus.yml"), format!("127.0.0.1:{}", any_port()));
            let text = format!(
                "global: {{ scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 1s }}\n\
                 rule_files: [{rules:?}]\n\
                 scrape_configs:\n  - job_name: greenroom\n    static_configs: [{{ targets: [{target:?}] }}]\n"
            );
            std::fs::write(&config, text).unwrap();
            let mut command = Command::new(variable("PROMETHEUS"));
            command
                .arg(format!("--config.file={}", config.display()))
                .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
                .arg(format!("--web.listen-address={address}"));
            let mut running = Running::spawn(&mut command, &folder.path().join("log"), Signal::SIGKILL);
            if running.serves(|| std::net::TcpStream::connect(&address).is_ok()).await {
                let prometheus = Self { _running: running, url: format!("http://{address}"), _folder: folder };
                until("the server is scraped", async || !prometheus.query("greenroom_build_info").await.is_empty())
                    .await;
                return prometheus;
            }
        }
        panic!("Prometheus did not start");
    }

    pub fn promtool() -> PathBuf {
        Path::new(&variable("PROMETHEUS")).with_file_name("promtool")
    }

    /// The series that a query finds, with their labels and values. None while Prometheus starts.
    pub async fn query(&self, query: &str) -> Vec<(BTreeMap<String, String>, String)> {
        let url = format!("{}/api/v1/query", self.url);
        let Ok(answer) = reqwest::Client::new().get(url).query(&[("query", query)]).send().await else { return vec![] };
        let text = answer.text().await.unwrap();
        let Ok(answer) = serde_json::from_str::<Value>(&text) else { return vec![] };
        assert_eq!(answer["status"], "success", "{query}: {text}");
        let found = answer["data"]["result"].as_array().unwrap();
        let series = found.iter().map(|series| {
            let labels = serde_json::from_value(series["metric"].clone()).unwrap();
            (labels, series["value"][1].as_str().unwrap().to_owned())
        });
        series.collect()
    }

    /// The rules, once each was evaluated.
    pub async fn rules(&self) -> Vec<Value> {
        let mut rules = Vec::new();
        until("every rule was evaluated", async || {
            let answer = reqwest::get(format!("{}/api/v1/rules", self.url)).await.unwrap();
            let answer: Value = answer.json().await.unwrap();
            rules = answer["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
            !rules.is_empty() && rules.iter().all(|rule| rule["health"] != "unknown")
        })
        .await;
        rules
    }

    /// Waits until a scrape that begins after this call has read new gauges.
    pub async fn scrape_again(&self) {
        let requests = "sum(greenroom_http_requests_total{route=\"/metrics\"})";
        let count = async || self.query(requests).await.first().and_then(|(_, value)| value.parse::<f64>().ok());
        let before = count().await.unwrap_or(0.0);
        // The server reads its gauges at most every 5 seconds, and Prometheus scrapes twice a second.
        until("the server is scraped again", async || count().await.is_some_and(|now| now > before + 12.0)).await;
    }
}
