//! Finds the processes of this machine that belong to a slot, and ends them. A process belongs to a slot if its
//! environment has the slot's mark, or if it was started as the slot's leader. A leader may hide its environment, as
//! the agent does. All descendants of such a process belong to the slot too, even in another process group or session.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::SlotName;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Wanted;
use super::folder::{SlotFolder, failed};
use crate::ProviderError;

/// Names the slot in the environment of everything that runs in it.
pub const MARK: &str = "GREENROOM_PROCESS_MARK";
/// Names what the slot was started for. The agent does not pass this variable on to its bot.
pub const START: &str = "GREENROOM_PROCESS_START";

/// How long a process may take to end after a request, before it is killed.
const GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to disappear.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// How long the whole end of a slot may take.
const END_WITHIN: Duration = Duration::from_secs(12);
/// A process that has just run `exec` shows its environment within microseconds, or as soon as the kernel schedules it.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A process. Its start time distinguishes it from a later process with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub pid: i32,
    /// In ticks since the machine started.
    pub began: u64,
}

impl Identity {
    /// This process.
    pub fn own() -> Option<Self> {
        Entry::read(i32::try_from(std::process::id()).ok()?).map(|entry| entry.id)
    }
}

/// The process that was started in a slot, as its launcher recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    pub id: Identity,
    pub start: String,
}

impl Leader {
    pub fn read(file: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(file).ok()?;
        let mut parts = text.trim().splitn(3, ' ');
        let id = Identity { pid: parts.next()?.parse().ok()?, began: parts.next()?.parse().ok()? };
        Some(Self { id, start: parts.next()?.to_owned() })
    }

    pub fn text(&self) -> String {
        format!("{} {} {}\n", self.id.pid, self.id.began, self.start)
    }
}

#[derive(Debug)]
struct Entry {
    id: Identity,
    parent: i32,
    environment: Vec<u8>,
}

impl Entry {
    /// `None` if the process has ended or is ending.
    fn read(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name is in parentheses and may contain any character.
        let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // Field 22 of the whole line.
        let began = fields.nth(17)?.parse().ok()?;
        if matches!(state, "Z" | "X") {
            return None;
        }
        // The environment of another user's process, or of a process that hides it, is not readable.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        Some(Self { id: Identity { pid, began }, parent, environment })
    }

    fn has(&self, name: &str, value: &str) -> bool {
        self.value(name).is_some_and(|found| found == value.as_bytes())
    }

    fn value(&self, name: &str) -> Option<&[u8]> {
        let mut variables = self.environment.split(|byte| *byte == 0);
        variables.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

/// Waits until a process that has just run `exec` shows its environment: the kernel closes files first. It does not
/// wait for a process that hides its environment or has ended.
pub fn await_environment(pid: i32) {
    let begun = Instant::now();
    let is_empty = || std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| environment.is_empty());
    while is_empty() && Entry::read(pid).is_some() && begun.elapsed() < SHOWN_WITHIN {
        std::thread::yield_now();
    }
}

/// Every process of the machine, at one moment.
#[derive(Debug)]
pub struct Table(Vec<Entry>);

impl Table {
    pub fn read() -> Result<Self, ProviderError> {
        let folder = Path::new("/proc");
        let entries = std::fs::read_dir(folder).map_err(|error| failed("read", folder, &error))?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(Self(pids.filter_map(Entry::read).collect()))
    }

    /// The slots of an installation that have a marked process.
    pub fn slots(&self, installation: &str) -> Vec<SlotName> {
        let slot = |entry: &Entry| {
            let mark = std::str::from_utf8(entry.value(MARK)?).ok()?;
            let slot = mark.strip_prefix(installation)?.strip_prefix('/')?;
            Some(SlotName::stored(slot.to_owned()))
        };
        self.0.iter().filter_map(slot).collect()
    }

    pub fn lives(&self, id: Identity) -> bool {
        self.0.iter().any(|entry| entry.id == id)
    }

    /// Whether the process that was started for `start` runs.
    pub fn runs(&self, mark: &str, leader: Option<&Leader>, start: &str) -> bool {
        leader.is_some_and(|leader| leader.start == start && self.lives(leader.id))
            || self.0.iter().any(|entry| entry.has(MARK, mark) && entry.has(START, start))
    }

    /// The processes of a slot with all their descendants. Includes the descendants of processes that are `known` to be
    /// the slot's.
    pub fn of_slot(&self, mark: &str, leader: Option<&Leader>, known: &HashSet<Identity>) -> HashSet<Identity> {
        let is_root = |entry: &&Entry| {
            entry.has(MARK, mark) || leader.is_some_and(|leader| leader.id == entry.id) || known.contains(&entry.id)
        };
        let mut children: BTreeMap<i32, Vec<Identity>> = BTreeMap::new();
        for entry in &self.0 {
            children.entry(entry.parent).or_default().push(entry.id);
        }
        let mut found: HashSet<Identity> = self.0.iter().filter(is_root).map(|entry| entry.id).collect();
        let mut unseen: Vec<Identity> = found.iter().copied().collect();
        while let Some(parent) = unseen.pop() {
            for child in children.get(&parent.pid).into_iter().flatten() {
                if found.insert(*child) {
                    unseen.push(*child);
                }
            }
        }
        found
    }
}

/// Ends all processes of a slot. It first asks them to end, then kills them, until none is left.
pub(super) fn end_all(
    slot: &SlotName,
    mark: &str,
    folder: &SlotFolder<'_>,
    wanted: &mut Wanted,
) -> Result<(), ProviderError> {
    let (begun, mut asked, mut killed) = (Instant::now(), None::<Instant>, None::<Instant>);
    // A process can lose its parent and clear its environment. It is then still known from the last read of the table.
    let mut known = HashSet::new();
    loop {
        known = Table::read()?.of_slot(mark, folder.leader().as_ref(), &known);
        // Another operation may have started the processes that are found now. The check is also needed if there are
        // none: after this function, the caller removes files that the next bot may already use.
        wanted.check()?;
        if begun.elapsed() > END_WITHIN {
            return Err(ProviderError::transient(format!("ending the processes of {slot} took too long")));
        }
        if known.is_empty() {
            return Ok(());
        }
        if killed.is_some_and(|at| at.elapsed() > GONE_WITHIN) {
            return Err(ProviderError::transient(format!("{} processes of {slot} do not end", known.len())));
        }
        let signal = match asked {
            None => Some(Signal::SIGTERM),
            Some(at) if at.elapsed() < GRACE => None,
            Some(_) => Some(Signal::SIGKILL),
        };
        for process in &known {
            // A process that has already ended is fine.
            let _ = signal.map(|signal| kill(Pid::from_raw(process.pid), signal));
        }
        asked = asked.or_else(|| Some(Instant::now()));
        if signal == Some(Signal::SIGKILL) {
            killed = killed.or_else(|| Some(Instant::now()));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(pid: i32, parent: i32, environment: &str) -> Entry {
        let environment = environment.replace(' ', "\0").into_bytes();
        Entry { id: Identity { pid, began: 1 }, parent, environment }
    }

    fn pids(found: &HashSet<Identity>) -> Vec<i32> {
        let mut pids: Vec<i32> = found.iter().map(|id| id.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn a_slots_processes_are_the_marked_ones_its_leader_and_all_below_them() {
        let table = Table(vec![
            entry(1, 0, ""),
            entry(10, 1, "A=b GREENROOM_PROCESS_MARK=here/pool-meet-001 C=d"),
            entry(11, 10, ""),
            entry(12, 11, ""),
            entry(20, 1, ""),
            entry(21, 20, ""),
            entry(30, 1, "GREENROOM_PROCESS_MARK=here/pool-meet-002"),
            entry(40, 1, "X=GREENROOM_PROCESS_MARK=here/pool-meet-001"),
        ]);
        let found = |leader: Option<Leader>, known: &[i32]| {
            let known = known.iter().map(|pid| Identity { pid: *pid, began: 1 }).collect();
            pids(&table.of_slot("here/pool-meet-001", leader.as_ref(), &known))
        };
        let leader = |began| Leader { id: Identity { pid: 20, began }, start: "1/a".to_owned() };
        assert_eq!(found(None, &[]), [10, 11, 12]);
        assert_eq!(found(Some(leader(1)), &[]), [10, 11, 12, 20, 21]);
        assert_eq!(found(Some(leader(2)), &[]), [10, 11, 12], "another process has its number by now");
        assert_eq!(found(None, &[21, 99]), [10, 11, 12, 21]);
        assert!(table.runs("here/pool-meet-001", Some(&leader(1)), "1/a"));
        assert!(!table.runs("here/pool-meet-001", Some(&leader(1)), "1/b"));
        assert_eq!(table.slots("here").len(), 2);
    }

    #[test]
    fn a_leader_is_read_as_it_was_written() {
        let leader = Leader { id: Identity { pid: 7, began: 99 }, start: "1/waits/ab cd".to_owned() };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), leader.text()).unwrap();
        assert_eq!(Leader::read(file.path()), Some(leader));
        std::fs::write(file.path(), "7").unwrap();
        assert_eq!(Leader::read(file.path()), None);
    }

    #[test]
    fn this_process_is_in_the_table() {
        assert!(Table::read().unwrap().lives(Identity::own().unwrap()));
    }
}
