//! The server as its users run it: the binary, in a separate process.

use std::fs::File;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Client, Database, docker_gateway};

pub const ADMIN_TOKEN: &str = "the-admin-token-of-the-tests";

#[derive(Debug)]
pub struct Process {
    child: Child,
    pub url: String,
    /// The lines on standard output before the server accepted requests.
    pub greeting: Vec<String>,
}

impl Process {
    pub fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
        // The environment of this machine must not influence the server.
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").kill_on_drop(true).stdin(Stdio::null());
        // moto accepts these credentials, and AWS does not.
        command.env("AWS_ACCESS_KEY_ID", "moto").env("AWS_SECRET_ACCESS_KEY", "moto");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Starts with a known admin token, and with pools whose slots run nothing. The test sends the callbacks of the
    /// bots.
    pub async fn start(database: &Database) -> Self {
        let mut pools = String::new();
        for (name, platform) in [("google-meet", "google_meet"), ("teams", "teams"), ("zoom", "zoom")] {
            pools.push_str(&format!(
                "[[pool]]\nname = \"{name}\"\nplatform = \"{platform}\"\nprovider = \"process\"\nmax_slots = 2000\n\
                 process = {{ command = [\"true\"] }}\n"
            ));
        }
        Self::start_configured(database, &pools).await
    }

    /// Starts with a known admin token and this configuration.
    pub async fn start_configured(database: &Database, toml: &str) -> Self {
        let file = configuration(database, toml);
        Self::start_with(database, &["--config", &file]).await
    }

    /// Like `start_configured`, but on an address that containers can reach. `public_url` is not set, so the server
    /// gives this address to the bots.
    pub async fn start_for_containers(database: &Database, toml: &str) -> Self {
        let (file, address) = (configuration(database, toml), format!("{}:0", docker_gateway()));
        Self::start_listening(database, &address, &["--config", &file]).await
    }

    /// Like `start_for_containers`, but on the address of an earlier server.
    pub async fn start_for_containers_at(database: &Database, toml: &str, address: &str) -> Self {
        let file = configuration(database, toml);
        Self::start_listening(database, address, &["--config", &file]).await
    }

    /// Like `start_for_containers`, on this address or on a free one, with the log in a file.
    pub async fn start_for_containers_logging(database: &Database, toml: &str, address: Option<&str>) -> Self {
        let (file, any) = (configuration(database, toml), format!("{}:0", docker_gateway()));
        let log = File::options().create(true).append(true).open(database.folder.path().join("log")).unwrap();
        // Without SIGXFSZ, a write beyond the limit of the file size is an error and does not end the server.
        let script = format!("trap '' XFSZ; exec \"{}\" \"$@\"", env!("CARGO_BIN_EXE_greenroom"));
        let mut command = Command::new("sh");
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .kill_on_drop(true)
            .stdin(Stdio::null())
            .args(["-c", &script, "greenroom", "serve", "--listen", address.unwrap_or(&any)])
            .args(["--database", &database.url, "--config", &file])
            .current_dir(database.folder.path())
            .stderr(log);
        Self::spawn(command).await
    }

    /// Starts on the address of an earlier server, which its bots still use.
    pub async fn start_at(database: &Database, address: &str) -> Self {
        let mut command = Self::command();
        command
            .args(["serve", "--listen", address, "--database", &database.url])
            .args(["--set", &format!("admin_token={ADMIN_TOKEN}")])
            .current_dir(database.folder.path());
        Self::spawn(command).await
    }

    pub async fn start_with(database: &Database, arguments: &[&str]) -> Self {
        Self::start_listening(database, "127.0.0.1:0", arguments).await
    }

    /// Starts on this address, with further arguments.
    pub async fn start_listening(database: &Database, address: &str, arguments: &[&str]) -> Self {
        let mut command = Self::command();
        command
            .args(["serve", "--listen", address, "--database", &database.url])
            .args(arguments)
            .current_dir(database.folder.path());
        Self::spawn(command).await
    }

    /// Starts so that a limit of the file size acts like a full disk: a write fails, and no signal ends the server.
    pub async fn start_on_small_disk(database: &Database) -> Self {
        let binary = env!("CARGO_BIN_EXE_greenroom");
        let script = format!("trap '' XFSZ; exec \"{binary}\" \"$@\"");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "greenroom", "serve", "--listen", "127.0.0.1:0", "--database", &database.url])
            .args(["--set", &format!("admin_token={ADMIN_TOKEN}")])
            .args(["--set", "pool.0.name=meet", "--set", "pool.0.platform=google_meet"])
            .args(["--set", "pool.0.provider=process", "--set", "pool.0.process.command=[\"true\"]"])
            .args(["--set", "pool.0.max_slots=500"])
            .kill_on_drop(true)
            .current_dir(database.folder.path());
        Self::spawn(command).await
    }

    pub async fn spawn(command: Command) -> Self {
        let started = Self::try_spawn(command).await;
        started.unwrap_or_else(|greeting| panic!("the server did not start: {greeting:?}"))
    }

    /// An error holds the lines that the process printed before it ended.
    pub async fn try_spawn(mut command: Command) -> Result<Self, Vec<String>> {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut greeting = Vec::new();
        let (mut url, mut ready) = (None, false);
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("serves at ") {
                url = Some(address.to_owned());
            }
            ready = line == "Ready.";
            greeting.push(line);
            if ready {
                break;
            }
        }
        match url.filter(|_| ready) {
            Some(url) => Ok(Self { child, url, greeting }),
            None => Err(greeting),
        }
    }

    pub fn client(&self, token: &str) -> Client {
        Client::new(&self.url, token)
    }

    pub fn admin(&self) -> Client {
        self.client(ADMIN_TOKEN)
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Whether the process has ended, by itself or by a signal.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends the process at once, like a power cut.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks the process to stop.
    pub async fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("the process runs");
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Whether SIGSTOP has stopped the process.
    pub fn is_stopped(&self) -> bool {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id().expect("the process runs"))).unwrap();
        status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
    }

    /// How much memory of the machine the process uses.
    pub fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id().expect("the process runs"))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    }

    /// Limits the size of each file that the process writes.
    pub async fn limit_files(&self, bytes: Option<u64>) {
        let pid = self.child.id().expect("the process runs").to_string();
        let limit = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let mut prlimit = Command::new("prlimit");
        prlimit.arg(format!("--fsize={limit}:unlimited")).args(["--pid", &pid]);
        assert!(prlimit.status().await.unwrap().success());
    }

    /// Waits for the end of the process. Returns true if it succeeded.
    pub async fn wait(mut self) -> bool {
        self.child.wait().await.unwrap().success()
    }
}

/// Writes a configuration with a known admin token, and returns its path.
fn configuration(database: &Database, toml: &str) -> String {
    let file = database.folder.path().join("greenroom.toml");
    std::fs::write(&file, format!("admin_token = \"{ADMIN_TOKEN}\"\n{toml}")).unwrap();
    file.to_str().unwrap().to_owned()
}
