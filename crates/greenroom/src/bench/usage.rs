//! Reads the processor time and the memory of processes from `/proc`.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::Done;
use super::database::Database;

/// Linux counts processor time in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);

/// The processor time of one process, without its children that have ended. `None` if it is gone.
pub fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = Stat::read(pid)?;
    Some(TICK * u32::try_from(stat.own_ticks).ok()?)
}

/// The peak of a process's resident memory, in MiB.
pub fn peak_mib(pid: u32) -> Option<u64> {
    Some(status_kib(pid, "VmHWM:")? / 1024)
}

/// A process's resident memory, in MiB.
pub fn resident_mib(pid: u32) -> Option<f64> {
    Some(status_kib(pid, "VmRSS:")? as f64 / 1024.0)
}

fn status_kib(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The local ports of a process's TCP connections.
pub fn local_ports(pid: u32) -> HashSet<u16> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let sockets: HashSet<String> =
        links.filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect();
    let tables = ["tcp", "tcp6"].map(|table| std::fs::read_to_string(format!("/proc/{pid}/net/{table}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, inode) = (fields.get(1)?, fields.get(9)?);
        let port = u16::from_str_radix(address.rsplit(':').next()?, 16).ok()?;
        sockets.contains(*inode).then_some(port)
    };
    lines.filter_map(port).collect()
}

/// A PostgreSQL on this machine: the postmaster and all its processes.
#[derive(Clone, Copy, Debug)]
pub struct Postgres {
    postmaster: u32,
}

impl Postgres {
    /// `None` if the server runs on another machine.
    pub async fn find(database: &Database) -> Done<Option<Self>> {
        let backend = u32::try_from(database.number("SELECT pg_backend_pid()::bigint").await?)?;
        let own = std::process::id();
        // The backend of that connection may have ended, so any other backend can lead to the postmaster.
        let pids = database.texts("SELECT pid::text FROM pg_stat_activity").await?;
        let pids = pids.iter().filter_map(|pid| pid.parse().ok()).chain([backend]);
        let parents = pids.filter_map(Stat::read).filter(|stat| stat.name == "postgres" && stat.parent != own);
        Ok(parents.map(|stat| Self { postmaster: stat.parent }).next())
    }

    /// The processor time of all its processes, including those that have ended.
    pub fn cpu(self) -> Duration {
        let all = all_processes();
        let Some(postmaster) = all.get(&self.postmaster) else { return Duration::ZERO };
        let children = all.values().filter(|stat| stat.parent == self.postmaster).map(|stat| stat.own_ticks);
        let ticks = postmaster.own_ticks + postmaster.ended_children_ticks + children.sum::<u64>();
        TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
    }
}

fn all_processes() -> BTreeMap<u32, Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect()
}

/// A line of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: u32,
    own_ticks: u64,
    ended_children_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The name is in parentheses and may contain parentheses.
        let (begin, end) = (line.find('(')?, line.rfind(')')?);
        let fields: Vec<&str> = line.get(end + 1..)?.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            name: line.get(begin + 1..end)?.to_owned(),
            parent: u32::try_from(number(1)?).ok()?,
            own_ticks: number(11)? + number(12)?,
            ended_children_ticks: number(13)? + number(14)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_whatever_the_process_is_called() {
        let line = "42 (a) b (c) S 7 42 42 0 -1 4194560 1 0 0 0 30 12 5 3 20 0 1 0 100 1 1";
        let expected = Stat { name: "a) b (c".into(), parent: 7, own_ticks: 42, ended_children_ticks: 8 };
        assert_eq!(Stat::parse(line), Some(expected));
        assert_eq!(Stat::parse("42"), None);
    }

    #[test]
    fn this_process_has_memory_and_time() {
        assert!(peak_mib(std::process::id()).is_some_and(|mib| mib > 0));
        assert!(cpu_of(std::process::id()).is_some());
        assert_eq!(cpu_of(u32::MAX), None);
    }
}
