//! A dockerd for a single test, which can stop it or use it as a node of its own swarm. It ends with the test, together
//! with its containers: see `scripts/lib/docker-engine`.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Engine, shared_folder, variable};
use crate::support::servers::{Running, log_of};
use crate::support::{found, in_repository};

/// An engine with its own images and containers. Containers reach the machine at the same address as those of other
/// engines.
#[derive(Debug)]
pub struct PrivateEngine {
    /// `None` while the engine is stopped.
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
    /// `name` is the name of the host, which is also the name of a swarm node.
    pub async fn start(name: &str) -> Self {
        // Inside the folder of the shared engine, which is removed even if this test is killed.
        let folder = tempfile::tempdir_in(shared_folder()).unwrap();
        let running = spawn(&folder, name).await;
        let engine = Engine::at(&format!("unix://{}", folder.path().join("docker.sock").display())).await;
        Self { running: Some(running), engine, folder, name: name.to_owned() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which only other engines reach this one.
    pub fn address(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("address")).unwrap().trim().to_owned()
    }

    /// Stops the engine as an operator does. It stops its containers first.
    pub async fn stop(&mut self) {
        self.end_by(Signal::SIGTERM).await;
    }

    /// Ends the engine and its containers at once, like a power cut.
    pub async fn kill(&mut self) {
        self.end_by(Signal::SIGKILL).await;
    }

    async fn end_by(&mut self, signal: Signal) {
        let mut running = self.running.take().expect("the engine runs");
        send(first_process(&running), signal);
        found("dockerd has ended", async || running.has_ended().then_some(())).await;
    }

    /// Starts the engine again, with its earlier images and containers.
    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "the engine runs already");
        self.running = Some(spawn(&self.folder, &self.name).await);
    }

    /// Suspends the engine, while its containers keep running. The signal takes effect only when the last thread has
    /// stopped, so this waits.
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

    /// Removes the engine from the network, while its containers keep running. Other engines, the server under test and
    /// the registry cannot reach it. The test itself can.
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
        let first = first_process(self.running.as_ref().expect("the engine runs"));
        let is_dockerd = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim() == "dockerd";
        children(first).into_iter().find(is_dockerd).expect("dockerd runs")
    }
}

impl Drop for PrivateEngine {
    /// Kills the first process of the namespace. Only then, all processes of the engine have ended when the started
    /// process ends, and nothing writes to the folder that is about to be removed.
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
    // The engine accepts connections long before it answers them.
    let is_ready = || log_of(folder.path())[usize::try_from(before).unwrap()..].contains("API listen on");
    assert!(running.serves(is_ready).await, "dockerd did not start: {}", log_of(folder.path()));
    running
}

/// The first process of an engine's namespace: all others end with it. If it does not exist yet, the process that was
/// started.
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
        // The name, in brackets, may contain any character.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}
