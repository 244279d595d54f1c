//! The units of `deploy/systemd`. `systemd-analyze` reads them, and a systemd that boots for the test in its own
//! namespaces runs them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::{binary, read, succeed};
use crate::support::{ADMIN_TOKEN, Client, any_port, found, meet_link};

/// The unit, a drop-in, and the exposure that systemd may find at most, in tenths: 100 is a unit without any limits.
const RATED: [(&str, Option<&str>, u32); 5] = [
    ("greenroom.service", None, 25),
    ("greenroom.service", Some("docker.conf"), 25),
    ("greenroom.service", Some("process-slots.conf"), 32),
    // The server may become other users here, which systemd rates as much as being root.
    ("greenroom.service", Some("slot-user.conf"), 45),
    ("greenroom-agent.service", None, 30),
];

/// Copies a unit with a drop-in into a folder, with the binaries under test as its programs.
fn put_unit(folder: &Path, unit: &str, drop_in: Option<&str>) -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_greenroom")).parent().unwrap().display().to_string();
    let text = read(&format!("deploy/systemd/{unit}")).replace("/usr/local/bin", &programs);
    let path = folder.join(unit);
    fs::write(&path, text).unwrap();
    put_drop_in(folder, unit, drop_in);
    path
}

fn put_drop_in(folder: &Path, unit: &str, drop_in: Option<&str>) {
    if let Some(name) = drop_in {
        let folder = folder.join(format!("{unit}.d"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(name), read(&format!("deploy/systemd/drop-ins/{name}"))).unwrap();
    }
}

#[test]
fn systemd_accepts_the_units_and_rates_them_as_hardened() {
    binary("greenroom-agent");
    for (unit, drop_in, threshold) in RATED {
        let folder = tempfile::tempdir().unwrap();
        let unit = put_unit(folder.path(), unit, drop_in);
        let verified = succeed(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        // systemd also names faults of units that belong to the machine.
        let faults: Vec<_> = said.lines().filter(|line| line.contains("greenroom")).collect();
        assert!(faults.is_empty(), "{drop_in:?}: {faults:#?}");
        succeed(
            Command::new("systemd-analyze")
                .args(["security", "--no-pager", "--offline=true", &format!("--threshold={threshold}")])
                .arg(&unit),
        );
    }
}

#[test]
fn only_the_server_of_a_unit_gets_the_signal_so_that_process_slots_stay() {
    let unit = read("deploy/systemd/greenroom.service");
    assert!(unit.contains("\nKillMode=process\n"));
    // A slot of an earlier server would lose its /tmp, and would not be found in /proc.
    for off in ["\nPrivateTmp=", "\nPrivateUsers=", "\nProtectProc=", "\nProcSubset=", "\nRuntimeDirectory="] {
        assert!(!unit.contains(off), "{off}");
    }
}

/// A systemd in its own namespaces. It has the programs of this machine below `/usr`, and else only files of the test.
struct Machine {
    nspawn: Child,
    folder: tempfile::TempDir,
    cgroup: PathBuf,
    address: String,
}

impl Machine {
    /// Boots with the server's unit and this drop-in. `pool` are lines of the configuration of its pool.
    async fn boot(drop_in: Option<&str>, pool: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", any_port());
        let root = folder.path().join("root");
        put_root(&root, drop_in, pool, &address);
        let cgroup = own_cgroup();
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new("sh");
        // In a cgroup of its own, two machines do not take each other's services for theirs.
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&cgroup);
        command.args(["setpriv", "--pdeathsig", "KILL", "--", "systemd-nspawn", "--quiet", "--boot"]);
        command.args(["--register=no", "--keep-unit", "--console=pipe", "--machine=greenroom-test", "--directory"]);
        command.arg(&root).args(["--bind-ro=/usr", "--tmpfs=/usr/local"]);
        command.arg(format!("--bind-ro={}:/usr/local/bin/greenroom", binary("greenroom").display()));
        command.arg("systemd.unit=test.target");
        let nspawn = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let mut machine = Self { nspawn, folder, cgroup, address };
        machine.until_ready().await;
        machine
    }

    fn admin(&self) -> Client {
        Client::anywhere(&format!("http://{}", self.address), ADMIN_TOKEN)
    }

    async fn until_ready(&mut self) {
        found("the server is ready", async || {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(self.nspawn.try_wait().unwrap().is_none(), "the machine has ended: {log}");
            let answer = reqwest::get(format!("http://{}/readyz", self.address)).await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
    }

    /// The first process of the machine: systemd.
    fn init(&self) -> String {
        let id = self.nspawn.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        children.split_whitespace().next().expect("systemd runs").to_owned()
    }

    /// Runs `systemctl` in the machine.
    fn systemctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("nsenter");
        let output = succeed(command.args(["--all", "--target", &self.init(), "systemctl"]).args(arguments));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The kernel ends all processes of the machine with its first one.
        let _ = Command::new("kill").args(["-KILL", &self.init()]).output();
        let _ = self.nspawn.wait();
        let _ =
            Command::new("find").arg(&self.cgroup).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]).output();
    }
}

/// A cgroup that `./scripts/test` removes too, if a test is killed.
fn own_cgroup() -> PathBuf {
    let all = Path::new("/sys/fs/cgroup");
    let hierarchy = if all.join("cgroup.controllers").exists() { all.to_owned() } else { all.join("systemd") };
    let cgroup = hierarchy.join(format!("greenroom-nspawn-{}", uuid::Uuid::new_v4().simple()));
    fs::create_dir(&cgroup).unwrap();
    cgroup
}

/// The files of the machine: users, the units, and the configuration of the server.
fn put_root(root: &Path, drop_in: Option<&str>, pool: &str, address: &str) {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for folder in ["usr", "var", "run", "tmp", "proc", "sys", "dev", "root"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        symlink(format!("usr/{link}"), root.join(link)).unwrap();
    }
    put("etc/os-release", "ID=test\n");
    put("etc/machine-id", "");
    put("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n");
    put("etc/group", "root:x:0:\n");
    put("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n");
    put("etc/sysusers.d/greenroom.conf", &read("deploy/systemd/greenroom.sysusers"));
    let units = root.join("etc/systemd/system");
    put("etc/systemd/system/greenroom.service", &read("deploy/systemd/greenroom.service"));
    put_drop_in(&units, "greenroom.service", drop_in);
    let wanted = "basic.target greenroom.service";
    put("etc/systemd/system/test.target", &format!("[Unit]\nRequires={wanted}\nAfter={wanted}\nAllowIsolate=yes\n"));
    put("etc/greenroom/greenroom.env", &format!("GREENROOM_ADMIN_TOKEN={ADMIN_TOKEN}\nGREENROOM_LISTEN={address}\n"));
    let toml = "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"process\"\nmax_slots = 2\n";
    put("etc/greenroom/greenroom.toml", &format!("{toml}{pool}"));
}

async fn bots_survive_a_restart(drop_in: Option<&str>, pool: &str) {
    let mut machine = Machine::boot(drop_in, pool).await;
    let user = machine.admin().user(10).await;
    let mut bots = Vec::new();
    for number in 0..2 {
        let request = json!({"meeting_url": meet_link(number), "config": {"demo_ms": 600_000}});
        bots.push(user.ask(request).await["id"].as_str().unwrap().to_owned());
    }
    for bot in &bots {
        user.until(bot, "active").await;
    }
    let server = machine.systemctl(&["show", "--property=MainPID", "greenroom"]);
    machine.systemctl(&["restart", "greenroom"]);
    machine.until_ready().await;
    assert_ne!(machine.systemctl(&["show", "--property=MainPID", "greenroom"]), server);
    // The new server looks for the processes of its slots, and finds them.
    let (_, synced) = machine.admin().post("/admin/sync/run", json!({})).await;
    assert_eq!(synced["interrupted"], 0, "{synced}");
    for bot in &bots {
        assert_eq!(user.show_bot(bot).await["status"], "active");
        user.stop(bot).await;
        let bot = user.until(bot, "completed").await;
        assert_eq!(bot["reason"], "stopped", "{bot}");
    }
}

#[tokio::test]
async fn bots_in_process_slots_survive_a_restart_of_the_unit_under_systemd_nspawn() {
    bots_survive_a_restart(None, "standby = \"running\"\nmin_idle = 1\n").await;
}

#[tokio::test]
async fn bots_of_another_user_survive_a_restart_of_the_unit_under_systemd_nspawn() {
    let command = "[\"greenroom\", \"agent\", \"--\", \"greenroom\", \"demo-bot\"]";
    let pool = format!("process = {{ command = {command}, user = \"greenroom-bot\" }}\n");
    bots_survive_a_restart(Some("slot-user.conf"), &pool).await;
}
