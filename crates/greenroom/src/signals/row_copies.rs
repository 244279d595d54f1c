//! This module keeps copies of rows in memory, so that a call that is made again and again costs no query. A copy is
//! dropped as soon as its row changes, and the next call reads the row again. A copy that is read while its row changes
//! is not kept.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub struct RowCopies<K, V>(Arc<Mutex<Entries<K, V>>>);

#[derive(Debug)]
struct Entries<K, V> {
    rows: HashMap<K, Entry<V>>,
    /// How many reads have begun.
    reads: u64,
}

#[derive(Debug)]
enum Entry<V> {
    /// The row is being read, by the read with this number.
    Reading(u64),
    Known(Arc<V>),
}

impl<K, V> Clone for RowCopies<K, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, V> Default for RowCopies<K, V> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Entries { rows: HashMap::new(), reads: 0 })))
    }
}

impl<K: Eq + Hash + Clone, V> RowCopies<K, V> {
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        match self.entries().rows.get(key)? {
            Entry::Known(row) => Some(row.clone()),
            Entry::Reading(_) => None,
        }
    }

    /// Announces a read of the row. Only a change that is committed after this call can be missing in what is read.
    pub fn begin_read(&self, key: K) -> RowRead<'_, K, V> {
        let mut entries = self.entries();
        entries.reads += 1;
        let number = entries.reads;
        entries.rows.insert(key.clone(), Entry::Reading(number));
        drop(entries);
        RowRead { copies: self, key, number }
    }

    /// Drops the copy of a row that has changed. True if there was one, or if the row is being read.
    pub fn forget(&self, key: &K) -> bool {
        self.entries().rows.remove(key).is_some()
    }

    /// Drops the copies for which `has_changed` is true, and every read that is under way. Returns their keys.
    pub fn forget_changed(&self, has_changed: impl Fn(&K, &V) -> bool) -> Vec<K> {
        let mut entries = self.entries();
        let mut forgotten = Vec::new();
        entries.rows.retain(|key, entry| match entry {
            Entry::Known(row) if !has_changed(key, row) => true,
            Entry::Known(_) => {
                forgotten.push(key.clone());
                false
            }
            Entry::Reading(_) => false,
        });
        forgotten
    }

    /// The copies, in no order.
    pub fn all(&self) -> Vec<Arc<V>> {
        let entries = self.entries();
        let known = entries.rows.values().filter_map(|entry| match entry {
            Entry::Known(row) => Some(row.clone()),
            Entry::Reading(_) => None,
        });
        known.collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A read of one row. If it is dropped, nothing is kept.
#[derive(Debug)]
pub struct RowRead<'a, K: Eq + Hash + Clone, V> {
    copies: &'a RowCopies<K, V>,
    key: K,
    number: u64,
}

impl<K: Eq + Hash + Clone, V> RowRead<'_, K, V> {
    /// Keeps what was read, unless the row has changed meanwhile.
    pub fn keep(self, row: V) {
        let mut entries = self.copies.entries();
        if let Some(entry) = entries.rows.get_mut(&self.key)
            && matches!(entry, Entry::Reading(number) if *number == self.number)
        {
            *entry = Entry::Known(Arc::new(row));
        }
    }
}

impl<K: Eq + Hash + Clone, V> Drop for RowRead<'_, K, V> {
    fn drop(&mut self) {
        let mut entries = self.copies.entries();
        if matches!(entries.rows.get(&self.key), Some(Entry::Reading(number)) if *number == self.number) {
            entries.rows.remove(&self.key);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_changes_while_it_is_read_is_not_kept() {
        let copies = RowCopies::<u32, &str>::default();
        let read = copies.begin_read(1);
        assert!(copies.forget(&1));
        read.keep("before the change");
        assert_eq!(copies.get(&1), None);

        copies.begin_read(1).keep("after the change");
        assert_eq!(*copies.get(&1).unwrap(), "after the change");
        assert!(copies.forget(&1));
        assert_eq!(copies.get(&1), None);
        assert!(!copies.forget(&1));
    }

    #[test]
    fn of_two_reads_at_once_the_later_one_is_kept() {
        let copies = RowCopies::<u32, &str>::default();
        let [first, second] = [copies.begin_read(1), copies.begin_read(1)];
        first.keep("first");
        assert_eq!(copies.get(&1), None, "a change may lie between the two");
        second.keep("second");
        assert_eq!(*copies.get(&1).unwrap(), "second");
    }

    #[test]
    fn a_read_that_fails_leaves_nothing_behind() {
        let copies = RowCopies::<u32, &str>::default();
        drop(copies.begin_read(1));
        copies.begin_read(2).keep("kept");
        copies.begin_read(3).keep("changed");
        let under_way = copies.begin_read(4);
        assert_eq!(copies.forget_changed(|_, row| *row == "changed"), [3]);
        under_way.keep("read before the change");
        assert_eq!(copies.entries().rows.len(), 1);
        assert_eq!(copies.all().len(), 1);
    }
}
