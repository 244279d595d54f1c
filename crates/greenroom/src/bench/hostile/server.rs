//! The attacked server, which runs as a separate process, and the data that is prepared in it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::bench::Done;
use crate::bench::client::{Client, HttpResponse};

const ADMIN_TOKEN: &str = "the-admin-token-of-the-benchmark";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const STOPS_WITHIN: Duration = Duration::from_secs(30);
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// One slot on a Docker Engine that does not exist: the first bot keeps it, and all others wait in the queue.
const SETTINGS: [&str; 6] = [
    "pool.0.name=bench",
    "pool.0.platform=google_meet",
    "pool.0.provider=docker",
    "pool.0.max_slots=1",
    "pool.0.docker.host=unix:///nowhere/docker.sock",
    "pool.0.docker.image=bench",
];
/// The largest size of `config` and `metadata`, minus room for the name of the field.
const DOCUMENT: usize = 64 * 1024 - 64;

#[derive(Debug)]
pub struct Server {
    pub address: SocketAddr,
    child: Child,
    folder: PathBuf,
    /// Whether it used too much memory and was ended.
    too_large: Arc<AtomicBool>,
    limit_mib: u64,
}

impl Server {
    pub async fn start(binary: &Path, database: &str, limit_mib: u64) -> Done<Self> {
        let folder = std::env::temp_dir().join(format!("greenroom_hostile_{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder)?;
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--database", database]);
        for setting in SETTINGS {
            command.args(["--set", setting]);
        }
        command
            .env("GREENROOM_ADMIN_TOKEN", ADMIN_TOKEN)
            .env("RUST_LOG", "error")
            .env_remove("GREENROOM_CONFIG")
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let address = tokio::time::timeout(STARTS_WITHIN, async {
            let (mut lines, mut address) = (BufReader::new(output).lines(), None);
            while let Some(line) = lines.next_line().await? {
                if let Some((_, url)) = line.split_once("serves at http://") {
                    address = Some(url.parse()?);
                }
                if line == "Ready." {
                    // Its later output is discarded, so that a full pipe does not block it.
                    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                    return address.ok_or_else(|| "the server did not print its address".into());
                }
            }
            Err::<SocketAddr, Box<dyn std::error::Error + Send + Sync>>("the server ended during its start".into())
        });
        let server = Self { address: address.await??, child, folder, too_large: Arc::default(), limit_mib };
        server.watch_memory();
        Ok(server)
    }

    /// Ends the server if it uses more memory than the limit, to protect the machine.
    fn watch_memory(&self) {
        let (Some(pid), limit, too_large) = (self.child.id(), self.limit_mib, self.too_large.clone()) else { return };
        tokio::spawn(async move {
            while let Some(resident) = mib_of(pid, "VmRSS:") {
                if resident > limit {
                    too_large.store(true, Ordering::SeqCst);
                    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX));
                    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
                    return;
                }
                tokio::time::sleep(MEMORY_SAMPLE_INTERVAL).await;
            }
        });
    }

    /// Resets the peak of the memory, so that the next peak belongs to the next attack.
    pub fn forget_peak(&self) {
        if let Some(pid) = self.child.id() {
            let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
        }
    }

    /// The peak of the resident memory since then, in MiB.
    pub fn peak_mib(&self) -> u64 {
        self.child.id().and_then(|pid| mib_of(pid, "VmHWM:")).unwrap_or(self.limit_mib)
    }

    /// How the server ended, if it did.
    pub fn has_ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(if self.too_large.load(Ordering::SeqCst) {
            format!("the benchmark ended the server, because it used more than {} MiB", self.limit_mib)
        } else {
            format!("the server ended: {status}")
        })
    }

    pub async fn kill(&mut self) -> Done {
        Ok(self.child.kill().await?)
    }

    pub async fn stop(mut self) -> Done {
        if let Some(pid) = self.child.id() {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        }
        if tokio::time::timeout(STOPS_WITHIN, self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A value of `/proc/PID/status`, in MiB. `None` if the process is gone.
fn mib_of(pid: u32, line: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: u64 =
        status.lines().find_map(|found| found.strip_prefix(line))?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

/// The measured user and the attacker.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub user_key: String,
    pub bot: Uuid,
    pub bot_token: String,
    pub connection_id: Uuid,
    pub attacker_key: String,
}

#[derive(Deserialize)]
struct NewUser {
    api_key: String,
}

#[derive(Deserialize)]
struct Assigned {
    connection_id: Uuid,
    token: String,
}

/// A user with a bot in its meeting, and another user with a limit of one bot, who has had many large bots that are
/// stopped.
pub async fn prepare(address: SocketAddr, bots: usize) -> Done<Prepared> {
    let mut client = Client::connect(address).await?;
    let mut keys = Vec::new();
    for (name, limit) in [("user", 10), ("attacker", 1)] {
        let body = json!({"email": format!("{name}@localhost"), "name": name, "max_concurrent_bots": limit});
        let made: NewUser = client.send("POST /admin/users", ADMIN_TOKEN, None, &body.to_string(), 201).await?;
        keys.push(made.api_key);
    }
    let [user_key, attacker_key] = keys.try_into().map_err(|_| "two users were created")?;

    // The first bot has the only slot.
    let ask = |number: usize| json!({"meeting_url": meeting(number)}).to_string();
    let _: HttpResponse = client.send("POST /bots", &user_key, None, &ask(0), 201).await?;
    let asked: HttpResponse = client.send("POST /bots", &user_key, None, &ask(1), 201).await?;
    let path = format!("POST /admin/bots/{}/assignment", asked.bot.id);
    let Assigned { connection_id, token } = client.send(&path, ADMIN_TOKEN, None, "{}", 201).await?;
    for callback in ["started", "joined"] {
        let body = json!({"connection_id": connection_id}).to_string();
        let _: Value = client.send(&format!("POST /callback/{callback}"), &token, None, &body, 200).await?;
    }

    let document = "x".repeat(DOCUMENT);
    for number in 0..bots {
        let body =
            json!({"meeting_url": meeting(100 + number), "config": {"x": document}, "metadata": {"x": document}});
        let asked: HttpResponse = client.send("POST /bots", &attacker_key, None, &body.to_string(), 201).await?;
        let path = format!("DELETE /bots/{}", asked.bot.id);
        let _: Value = client.send(&path, &attacker_key, None, "", 202).await?;
    }
    // The only bot that the limit allows, so that every further request is refused.
    let _: HttpResponse = client.send("POST /bots", &attacker_key, None, &ask(2), 201).await?;
    Ok(Prepared { user_key, bot: asked.bot.id, bot_token: token, connection_id, attacker_key })
}

/// A different meeting for each number.
pub fn meeting(number: usize) -> String {
    let letter = |digit: u32| char::from(b'a' + u8::try_from(number / 26_usize.pow(digit) % 26).unwrap_or(0));
    let code: String = (0..4).map(letter).collect();
    format!("https://meet.google.com/abc-{code}-xyz")
}
