//! Redis and PostgreSQL servers for a single test, which can stop them. They end with the test.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{found, in_repository};

/// Another test's server may have the port.
pub(super) const TRIES: usize = 20;
const GONE_WITHIN: Duration = Duration::from_secs(10);

pub(super) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; ./scripts/test finds the server and sets it"))
}

/// Ports below 32768 only: the kernel gives higher ports to outgoing connections, and could do so while the server is
/// stopped.
pub fn any_port() -> u16 {
    16_384 + (uuid::Uuid::new_v4().as_u128() % 16_384) as u16
}

/// A process that ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Running {
    pub child: Child,
    /// The signal that the process gets on drop.
    last: Signal,
}

impl Running {
    pub fn spawn(command: &mut Command, log: &Path, last: Signal) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        let errors = log.try_clone().unwrap();
        let child = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().unwrap();
        Self { child, last }
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until `is_ready` returns true. Returns false if the process ends before that.
    pub async fn serves(&mut self, is_ready: impl Fn() -> bool) -> bool {
        found("a server accepts connections, or ends", async || {
            if self.has_ended() { Some(false) } else { is_ready().then_some(true) }
        })
        .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The id of a process that has ended may belong to another process now.
        if self.has_ended() {
            return;
        }
        self.signal(self.last);
        let begun = std::time::Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > GONE_WITHIN {
                self.signal(Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A Redis that keeps nothing when it ends.
#[derive(Debug)]
pub struct PrivateRedis {
    /// `None` while Redis is stopped.
    running: Option<Running>,
    port: u16,
    folder: tempfile::TempDir,
}

impl PrivateRedis {
    pub async fn start() -> Self {
        for _ in 0..TRIES {
            let mut redis = Self { running: None, port: any_port(), folder: tempfile::tempdir().unwrap() };
            if redis.try_start().await {
                return redis;
            }
        }
        panic!("Redis did not start");
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The address with the credentials of bots.
    pub fn url_for_bots(&self) -> String {
        format!("redis://bots:narrow@{}", self.address())
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends Redis at once, like a power cut.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Starts Redis on its earlier port.
    pub async fn start_again(&mut self) {
        self.kill();
        assert!(self.try_start().await, "Redis did not restart: {}", log_of(self.folder.path()));
    }

    async fn try_start(&mut self) -> bool {
        let folder = self.folder.path();
        // Redis writes this file when it has its port. A connection could reach another Redis on the same port.
        let pid = folder.join("pid");
        let _ = std::fs::remove_file(&pid);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(variable("REDIS_SERVER"));
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.arg("--dir").arg(folder).arg("--pidfile").arg(&pid);
        command.args(["--user", "bots", "on", ">narrow"]).args(rights_of_bots());
        let mut running = Running::spawn(&mut command, &folder.join("log"), Signal::SIGKILL);
        let serves = running.serves(|| std::fs::metadata(&pid).is_ok_and(|file| file.len() > 0)).await;
        self.running = serves.then_some(running);
        serves
    }
}

/// The permissions of bots that the documentation recommends.
fn rights_of_bots() -> Vec<String> {
    let text = std::fs::read_to_string(in_repository("docs/how-to/replicas.md")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("ACL SETUSER bots on >PASSWORD ")).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

/// A PostgreSQL with only its empty databases. Committed data survives every stop, crash and restart.
#[derive(Debug)]
pub struct PrivatePostgres {
    /// `None` while PostgreSQL is stopped.
    running: Option<Running>,
    port: u16,
    folder: tempfile::TempDir,
    bin: PathBuf,
}

impl PrivatePostgres {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        if is_root() {
            let (user, group) = postgres_ids();
            chown(folder.path(), Some(user), Some(group)).unwrap();
        }
        let mut postgres = Self { running: None, port: 0, folder, bin: variable("POSTGRES_BIN").into() };
        postgres.create();
        for _ in 0..TRIES {
            postgres.port = any_port();
            if postgres.try_start().await {
                return postgres;
            }
        }
        panic!("PostgreSQL did not start: {}", log_of(postgres.folder.path()));
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Stops PostgreSQL without waiting for clients, as an operator may do.
    pub async fn stop(&mut self) {
        self.end_by(Signal::SIGINT).await;
    }

    /// Stops PostgreSQL so that it must recover from its log at the next start.
    pub async fn crash(&mut self) {
        self.end_by(Signal::SIGQUIT).await;
    }

    /// Starts PostgreSQL on its earlier port.
    pub async fn start_again(&mut self) {
        assert!(self.try_start().await, "PostgreSQL did not restart: {}", log_of(self.folder.path()));
    }

    async fn end_by(&mut self, signal: Signal) {
        let mut running = self.running.take().expect("PostgreSQL runs");
        running.signal(signal);
        found("PostgreSQL has ended", async || running.has_ended().then_some(())).await;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A command prefix for PostgreSQL, which refuses to run as root. Its user may have no access to the current
    /// folder.
    fn command(&self) -> Command {
        let mut command = Command::new(if is_root() { "setpriv" } else { "env" });
        if is_root() {
            let (user, group) = postgres_ids();
            command.args([&format!("--reuid={user}"), &format!("--regid={group}"), "--init-groups", "--", "env"]);
        }
        command.arg("-C").arg(self.folder.path());
        command
    }

    fn create(&self) {
        let mut initdb = self.command();
        initdb.arg(self.bin.join("initdb")).arg("--pgdata").arg(self.data());
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]);
        let made = initdb.stdin(Stdio::null()).output().unwrap();
        assert!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        let settings = "listen_addresses = '127.0.0.1'\nunix_socket_directories = ''\nmax_connections = 200\n\
                        fsync = on\n";
        let file = self.data().join("postgresql.conf");
        let default = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, default + settings).unwrap();
        std::fs::write(self.data().join("pg_hba.conf"), "host all all 127.0.0.1/32 trust\n").unwrap();
    }

    async fn try_start(&mut self) -> bool {
        let mut command = self.command();
        // `--pdeathsig` comes after the change of user, which would clear it.
        command.args(["setpriv", "--pdeathsig", "QUIT", "--"]).arg(self.bin.join("postgres"));
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string()]);
        let mut running = Running::spawn(&mut command, &self.folder.path().join("log"), Signal::SIGQUIT);
        let state = self.data().join("postmaster.pid");
        let id = running.child.id().to_string();
        // The first line of this file is the process id, the eighth line the state.
        let serves = running.serves(|| {
            let text = std::fs::read_to_string(&state).unwrap_or_default();
            let line = |number| text.lines().nth(number).unwrap_or_default();
            line(0) == id && line(7).starts_with("ready")
        });
        let serves = serves.await;
        self.running = serves.then_some(running);
        serves
    }
}

pub(super) fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// The user and group of PostgreSQL, for tests that run as root.
fn postgres_ids() -> (u32, u32) {
    let id = |which: &str| {
        let output = Command::new("id").args([which, "postgres"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("there is a user postgres")
    };
    (id("-u"), id("-g"))
}
