//! A dockerd that only one test has, because it stops it, or because it is a node of the test's own swarm. It does not
//! outlive its test, and neither does anything in it: see `scripts/lib/docker-engine`.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Engine, shared_folder, variable};
use crate::support::servers::{Running, log_of};
use crate::support::{found, in_repository};

/// An engine with images and containers of its own. Containers reach the machine at the same address as those of other
/// engines.
#[derive(Debug)]
pub struct PrivateEngine {
    /// None while it is away.
    running: Option<Running>,
    engine: Engine,
    folder: tempfile::TempDir,
    name: String,
}

impl Deref for PrivateEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl PrivateEngine {
    /// Its name is the host's name, which is also a node's.
    pub async fn start(name: &str) -> Self {
        // Where it is removed with the shared one, should this test be killed.
        let folder = tempfile::tempdir_in(shared_folder()).unwrap();
        let running = spawn(&folder, name).await;
        let engine = Engine::at(&format!("unix://{}", folder.path().join("docker.sock").display())).await;
        Self { running: Some(running), engine, folder, name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where other engines reach it, and nobody else.
    pub fn address(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("address")).unwrap().trim().to_owned()
    }

    /// Stops it as an operator does. It stops its containers first.
    pub async fn stop(&mut self) {
        self.end_by(Signal::SIGTERM).await;
    }

    /// Ends it, and everything in it, as a power cut would.
    pub async fn kill(&mut self) {
        self.end_by(Signal::SIGKILL).await;
    }

    async fn end_by(&mut self, signal: Signal) {
        let mut running = self.running.take().expect("it runs");
        send(first_process(&running), signal);
        found("dockerd has ended", async || running.has_ended().then_some(())).await;
    }

    /// Starts it where it was, with what it had.
    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "it runs");
        self.running = Some(spawn(&self.folder, &self.name).await);
    }

    /// Lets it answer nothing, while its containers run.
    /// The signal only asks for it: it stands still when its last thread does.
    pub fn freeze(&self) {
        let pid = self.dockerd();
        send(pid, Signal::SIGSTOP);
        while !stands_still(pid) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub fn thaw(&self) {
        send(self.dockerd(), Signal::SIGCONT);
    }

    /// Takes it off the network, while its containers run: neither another engine, nor the server under test, nor the
    /// registry reaches what is in it. The test itself does.
    pub fn cut_off(&self) {
        self.set_port("down");
    }

    pub fn connect_again(&self) {
        self.set_port("up");
    }

    fn set_port(&self, state: &str) {
        let address = self.address();
        let port: Vec<&str> = address.split('.').skip(2).collect();
        let mut ip = Command::new("nsenter");
        ip.args(["--net", "--target", &variable("TEST_DOCKER_SWITCH"), "ip", "link", "set"]);
        ip.args([&format!("port-{}", port.join(".")), state]);
        assert!(ip.status().unwrap().success());
    }

    fn dockerd(&self) -> i32 {
        let first = first_process(self.running.as_ref().expect("it runs"));
        let is_dockerd = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "dockerd";
        children(first).into_iter().find(is_dockerd).expect("dockerd runs")
    }
}

impl Drop for PrivateEngine {
    /// By its first process: only then has everything in it ended when the process ends that was started here, and
    /// nothing writes any more into the folder that is about to be removed.
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            send(first_process(&running), Signal::SIGKILL);
            while !running.has_ended() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }
}

async fn spawn(folder: &tempfile::TempDir, name: &str) -> Running {
    let (log, script) = (folder.path().join("log"), in_repository("scripts/lib/docker-engine"));
    let before = std::fs::metadata(&log).map_or(0, |log| log.len());
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(script).arg(folder.path()).arg(name);
    let mut running = Running::spawn(&mut command, &log, Signal::SIGKILL);
    // It takes connections long before it answers them.
    let is_ready = || log_of(folder.path())[usize::try_from(before).unwrap()..].contains("API listen on");
    assert!(running.serves(is_ready).await, "dockerd did not start: {}", log_of(folder.path()));
    running
}

/// The first process of an engine's namespace, with which all others end; what was started itself, when it has not yet
/// come to that.
fn first_process(running: &Running) -> i32 {
    let started = i32::try_from(running.child.id()).unwrap();
    children(started).first().copied().unwrap_or(started)
}

fn children(pid: i32) -> Vec<i32> {
    let list = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
    let list = std::fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether every thread of a process is stopped.
fn stands_still(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok()).all(|stat| {
        // The name, which is in brackets, may have anything in it.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
