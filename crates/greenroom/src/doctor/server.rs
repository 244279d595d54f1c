//! This module examines the servers that run on the database: whether each answers, its version, whether it is ready,
//! and whether all servers give bots the same address.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::config_url;
use crate::config::Config;
use crate::providers::check::Check;
use crate::server::{self, record};
use crate::store::{ServerFacts, ServerRow, Store};
use secrecy::ExposeSecret;

/// A working server answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The result for the servers.
#[derive(Debug, Default)]
pub struct Servers {
    pub checks: Vec<Check>,
    /// Servers that answer, or that are alive on another machine.
    pub running: Vec<ServerFacts>,
}

impl Servers {
    /// Returns the server on this machine.
    pub fn on_this_machine(&self) -> Option<&ServerFacts> {
        self.running.iter().find(|facts| facts.host == server::host())
    }
}

/// Calls the servers of a database.
pub async fn check(config: &Config, store: Option<&Store>) -> Servers {
    let mut servers = Servers::default();
    let rows = match store {
        Some(store) => match store.servers_seen_within(record::ALIVE_WITHIN).await {
            Ok(rows) => rows,
            Err(error) => {
                servers.checks.push(Check::bad("running", format!("the list of servers cannot be read: {error}")));
                return servers;
            }
        },
        None => Vec::new(),
    };
    for row in rows {
        ask(row, &mut servers).await;
    }
    if servers.running.is_empty() && servers.checks.is_empty() {
        let is_unavailable = store.is_none() && config.database.expose_secret().starts_with("postgres");
        let message = match is_unavailable {
            true => "it is unknown whether a server runs, because the database cannot be read".to_owned(),
            false => none(config).await,
        };
        servers.checks.push(Check::bad("running", message));
    }
    check_public_urls(&mut servers);
    if let Some(check) = path(&servers) {
        servers.checks.push(check);
    }
    servers
}

/// Explains why nothing would run now, and whether another installation's server uses the address.
async fn none(config: &Config) -> String {
    let url = config_url(config);
    match get(&format!("{url}/healthz")).await {
        Ok((200, body)) if body["version"].is_string() => format!(
            "no server runs on this database, but another Greenroom server answers at {url}: run `greenroom doctor` \
             with the configuration of that server, or in its folder"
        ),
        _ => "no server runs on this database; `greenroom serve` starts one".to_owned(),
    }
}

async fn ask(ServerRow { seen, facts, .. }: ServerRow, servers: &mut Servers) {
    let ServerFacts { url, host, pid, .. } = &facts;
    if *host != server::host() {
        let text = format!("a server runs on {host} (pid {pid}); it last updated its record {} s ago", seen.as_secs());
        servers.checks.push(Check::good("running", text));
        servers.checks.extend(other_version(&facts.version, host));
        servers.running.push(facts);
        return;
    }
    match get(&format!("{url}/healthz")).await {
        Ok((200, body)) => {
            let version = body["version"].as_str().unwrap_or("of an unknown version").to_owned();
            servers.checks.push(Check::good("running", format!("Greenroom {version} answers at {url} (pid {pid})")));
            servers.checks.extend(other_version(&version, url));
            servers.checks.push(readiness(url).await);
            servers.running.push(facts);
        }
        Ok((status, _)) => {
            let text = format!("no Greenroom server answers at {url}: it returned status {status}");
            servers.checks.push(Check::bad("running", text));
        }
        Err(message) => {
            let text = format!(
                "the server at {url} (pid {pid}) does not answer: {message}; it last updated its record {} s ago",
                seen.as_secs()
            );
            servers.checks.push(Check::bad("running", text));
        }
    }
}

fn other_version(version: &str, address: &str) -> Option<Check> {
    let text = format!("the server at {address} is Greenroom {version}, but this program is Greenroom {VERSION}");
    (version != VERSION).then(|| Check::doubtful("version", text))
}

async fn readiness(url: &str) -> Check {
    match get(&format!("{url}/readyz")).await {
        Ok((200, body)) => {
            let missing: Vec<&str> =
                body["missing"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if missing.is_empty() {
                Check::good("ready", "the server accepts requests, and everything that it needs answers")
            } else {
                Check::doubtful(
                    "ready",
                    format!("the server accepts requests, but these do not answer: {}", missing.join(", ")),
                )
            }
        }
        Ok((status, body)) => {
            let detail = body["detail"].as_str().unwrap_or("the server gave no reason");
            Check::bad("ready", format!("the server is not ready (status {status}): {detail}"))
        }
        Err(message) => Check::bad("ready", format!("the readiness of the server cannot be read: {message}")),
    }
}

/// Checks that all servers have one public address: bots that one server started must reach the others when it is gone.
fn check_public_urls(servers: &mut Servers) {
    let urls: BTreeSet<&str> = servers.running.iter().map(|facts| facts.public_url.as_str()).collect();
    if servers.running.len() < 2 {
        return;
    }
    let check = if urls.len() > 1 {
        let urls: Vec<&str> = urls.into_iter().collect();
        Check::doubtful(
            "public_url",
            format!(
                "the servers give bots different addresses ({}). When a server stops, its bots cannot reach another \
                 one. Set the same `public_url` on all servers, such as the address of a load balancer",
                urls.join(", ")
            ),
        )
    } else {
        Check::good("public_url", format!("all {} servers give bots the same address", servers.running.len()))
    };
    servers.checks.push(check);
}

/// Compares the two `PATH`s: the server looks programs up on its own, not on the doctor's.
fn path(servers: &Servers) -> Option<Check> {
    let (facts, own) = (servers.on_this_machine()?, std::env::var("PATH").unwrap_or_default());
    let text = format!(
        "the server has another PATH than this command. It searches for the programs of bots in {}",
        facts.path
    );
    (facts.path != own).then(|| Check::note("PATH", text))
}

/// Returns the status and the body of an answer.
async fn get(url: &str) -> Result<(u16, Value), String> {
    let asked = async {
        let client = reqwest::Client::builder().timeout(TIMEOUT).no_proxy().build()?;
        let answer = client.get(url).send().await?;
        let status = answer.status().as_u16();
        let body = answer.bytes().await?;
        Ok::<_, reqwest::Error>((status, serde_json::from_slice(&body).unwrap_or_default()))
    };
    asked.await.map_err(|error| crate::providers::with_causes(&error))
}
