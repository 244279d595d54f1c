//! Measures the memory of this agent and of all its descendants. While a slot waits for a bot, this is what the slot
//! costs its host. The agent sends the figure with each poll.

use std::collections::HashSet;
use std::time::Duration;

use nix::unistd::Pid;
use tokio::task::JoinHandle;

use crate::child::children_of;

/// A poll does not wait longer than this for its figure.
const LONGEST: Duration = Duration::from_secs(1);
/// The largest number of processes that are measured. A browser has about 15.
const PROCESSES_MAX: usize = 4096;

/// Measures on another thread, because the kernel reads the whole page table of each process.
#[derive(Debug, Default)]
pub struct MemoryMeter {
    measuring: Option<JoinHandle<Option<u64>>>,
}

impl MemoryMeter {
    /// The memory in bytes. `None` if the kernel does not tell, or not in time.
    pub async fn measure(&mut self) -> Option<u64> {
        // A measurement that hangs is not started a second time: its thread would hang too.
        let measuring = self.measuring.get_or_insert_with(|| tokio::task::spawn_blocking(measure));
        let measured = tokio::time::timeout(LONGEST, measuring).await.ok()?;
        self.measuring = None;
        measured.ok().flatten()
    }
}

/// `None` if the memory of the agent itself cannot be read. A descendant that cannot be read has just ended.
fn measure() -> Option<u64> {
    let own = memory_of(Pid::this())?;
    let descendants = descendants(Pid::this());
    Some(descendants.into_iter().filter_map(memory_of).fold(own, u64::saturating_add))
}

/// All descendants of a process. Orphans are among them, because the agent adopts them.
fn descendants(process: Pid) -> HashSet<Pid> {
    let (mut found, mut left) = (HashSet::new(), vec![process]);
    while let Some(parent) = left.pop() {
        for child in children_of(parent) {
            if found.len() < PROCESSES_MAX && found.insert(child) {
                left.push(child);
            }
        }
    }
    found
}

/// The memory of one process in bytes. Memory that several processes share counts for each in part (`Pss`). The kernel
/// shows it only to a process that may trace the other. Otherwise shared memory counts in full (`VmRSS`).
fn memory_of(process: Pid) -> Option<u64> {
    let read =
        |file: &str, field: &str| field_of(&std::fs::read_to_string(format!("/proc/{process}/{file}")).ok()?, field);
    read("smaps_rollup", "Pss:").or_else(|| read("status", "VmRSS:"))
}

/// The value of a line such as `Pss:     1234 kB`, in bytes.
fn field_of(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_of_the_kernel_is_read_in_bytes() {
        let text = "00400000-7ffd [rollup]\nRss:            9999 kB\nPss:            1234 kB\nPss_Dirty:  12 kB\n";
        assert_eq!(field_of(text, "Pss:"), Some(1234 * 1024));
        assert_eq!(field_of("Name:\tsh\nVmRSS:\t    8 kB\n", "VmRSS:"), Some(8192));
        for other in ["", "Pss: many kB", "Pss: 12", "Pss: 18446744073709551615 kB"] {
            assert_eq!(field_of(other, "Pss:"), None, "{other}");
        }
    }

    #[test]
    fn this_process_and_its_descendants_are_found() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        let id = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let begun = std::time::Instant::now();
        // The shell has to start its own child first.
        let grandchild = loop {
            if let Some(id) = children_of(id).first() {
                break *id;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the shell starts no child");
            std::thread::yield_now();
        };
        let found = descendants(Pid::this());
        assert!(found.contains(&id) && found.contains(&grandchild), "{found:?}");
        assert!(measure().unwrap() > memory_of(Pid::this()).unwrap() / 2);
        let _ = nix::sys::signal::kill(grandchild, nix::sys::signal::Signal::SIGKILL);
        let _ = child.wait();
    }
}
