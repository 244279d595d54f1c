//! The server as its users run it: the binary, in a process of its own.

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
    /// What it printed on standard output until it served.
    pub greeting: Vec<String>,
}

impl Process {
    pub fn command() -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
        // Nothing of the machine's own may get in the way.
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").kill_on_drop(true).stdin(Stdio::null());
        // What moto takes, and AWS does not.
        command.env("AWS_ACCESS_KEY_ID", "moto").env("AWS_SECRET_ACCESS_KEY", "moto");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    /// Starts with an admin token that is known, and pools whose slots run nothing: the test speaks for the bots.
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

    /// Starts with an admin token that is known, and this configuration.
    pub async fn start_configured(database: &Database, toml: &str) -> Self {
        let file = configuration(database, toml);
        Self::start_with(database, &["--config", &file]).await
    }

    /// The same, where containers reach it. As `public_url` is not set, this is also where it tells them to find it.
    pub async fn start_for_containers(database: &Database, toml: &str) -> Self {
        let (file, address) = (configuration(database, toml), format!("{}:0", docker_gateway()));
        Self::start_listening(database, &address, &["--config", &file]).await
    }

    /// The same, where another was.
    pub async fn start_for_containers_at(database: &Database, toml: &str, address: &str) -> Self {
        let file = configuration(database, toml);
        Self::start_listening(database, address, &["--config", &file]).await
    }

    /// The same, at this address or at one of its own, with its log in a file.
    pub async fn start_for_containers_logging(database: &Database, toml: &str, address: Option<&str>) -> Self {
        let (file, any) = (configuration(database, toml), format!("{}:0", docker_gateway()));
        let log = File::options().create(true).append(true).open(database.folder.path().join("log")).unwrap();
        // A file that may not grow any more is an error for it, and no signal.
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

    /// Starts again where another was, which bots remember.
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

    async fn start_listening(database: &Database, address: &str, arguments: &[&str]) -> Self {
        let mut command = Self::command();
        command
            .args(["serve", "--listen", address, "--database", &database.url])
            .args(arguments)
            .current_dir(database.folder.path());
        Self::spawn(command).await
    }

    /// Starts where a file that may not grow any more is what a full disk is: an error, and no signal.
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

    /// An error is what it printed before it ended instead of serving.
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
        self.child.id().expect("it runs")
    }

    /// Whether it has ended, by itself or by another's hand.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends it as a power cut would.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Asks it to stop.
    pub async fn terminate(&self) {
        self.signal(Signal::SIGTERM);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = self.child.id().expect("it runs");
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    /// Whether a signal has stopped it.
    pub fn is_stopped(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().expect("it runs"))).unwrap();
        status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
    }

    /// How much of the machine's memory it takes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().expect("it runs"))).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    }

    /// Lets no file of its own grow past so many bytes.
    pub async fn limit_files(&self, bytes: Option<u64>) {
        let pid = self.child.id().expect("it runs").to_string();
        let limit = bytes.map_or("unlimited".to_owned(), |bytes| bytes.to_string());
        let mut prlimit = Command::new("prlimit");
        prlimit.arg(format!("--fsize={limit}:unlimited")).args(["--pid", &pid]);
        assert!(prlimit.status().await.unwrap().success());
    }

    /// Waits for its end; true when it ended well.
    pub async fn wait(mut self) -> bool {
        self.child.wait().await.unwrap().success()
    }
}

/// The path of a configuration with an admin token that is known.
fn configuration(database: &Database, toml: &str) -> String {
    let file = database.folder.path().join("greenroom.toml");
    std::fs::write(&file, format!("admin_token = \"{ADMIN_TOKEN}\"\n{toml}")).unwrap();
    file.to_str().unwrap().to_owned()
}
