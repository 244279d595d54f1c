//! A sorted set that knows how many of its elements come before a given one. The elements are in chunks of limited
//! length, so that a change moves few of them, and a rank adds up the lengths of the chunks before.

/// The longest chunk. A longer one is split in the middle.
const CHUNK_MAX: usize = 128;

/// A sorted set with ranks.
#[derive(Clone, Debug)]
pub struct RankedSet<T> {
    /// Sorted, and none is empty.
    chunks: Vec<Vec<T>>,
    length: usize,
}

impl<T> Default for RankedSet<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), length: 0 }
    }
}

impl<T: Ord + Copy> RankedSet<T> {
    /// Adds an element. False if the set had it.
    pub fn insert(&mut self, value: T) -> bool {
        let at = self.chunk_of(&value).min(self.chunks.len().saturating_sub(1));
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(vec![value]);
            self.length = 1;
            return true;
        };
        let Err(position) = chunk.binary_search(&value) else { return false };
        chunk.insert(position, value);
        self.length += 1;
        if chunk.len() > CHUNK_MAX {
            let rest = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, rest);
        }
        true
    }

    /// Removes an element. False if the set did not have it.
    pub fn remove(&mut self, value: &T) -> bool {
        let at = self.chunk_of(value);
        let Some(chunk) = self.chunks.get_mut(at) else { return false };
        let Ok(position) = chunk.binary_search(value) else { return false };
        chunk.remove(position);
        self.length -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        true
    }

    /// How many elements are less than this one, which need not be in the set.
    pub fn rank(&self, value: &T) -> usize {
        let at = self.chunk_of(value);
        let before: usize = self.chunks[..at].iter().map(Vec::len).sum();
        before + self.chunks.get(at).map_or(0, |chunk| chunk.partition_point(|other| other < value))
    }

    /// The elements that are greater than this one, in order; all of them if it is `None`.
    pub fn after(&self, value: Option<T>) -> impl Iterator<Item = T> {
        let at = value.map_or(0, |value| self.chunk_of(&value));
        let skipped = value.and_then(|value| Some(self.chunks.get(at)?.partition_point(|other| *other <= value)));
        self.chunks[at..].iter().flatten().copied().skip(skipped.unwrap_or(0))
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The first chunk whose last element is not less than this one.
    fn chunk_of(&self, value: &T) -> usize {
        self.chunks.partition_point(|chunk| chunk.last().is_some_and(|last| last < value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranks_are_those_of_a_sorted_list(
            steps in proptest::collection::vec((any::<bool>(), 0..2_000_u32), 0..3_000),
            asked in 0..2_000_u32,
        ) {
            let (mut ranked, mut expected) = (RankedSet::default(), BTreeSet::new());
            for (inserts, value) in steps {
                if inserts || value % 3 > 0 {
                    prop_assert_eq!(ranked.insert(value), expected.insert(value));
                } else {
                    prop_assert_eq!(ranked.remove(&value), expected.remove(&value));
                }
            }
            prop_assert_eq!(ranked.rank(&asked), expected.range(..asked).count());
            prop_assert_eq!((ranked.len(), ranked.is_empty()), (expected.len(), expected.is_empty()));
            prop_assert!(ranked.after(None).eq(expected.iter().copied()));
            prop_assert!(ranked.after(Some(asked)).eq(expected.range(asked + 1..).copied()));
            prop_assert!(ranked.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_MAX));
        }
    }
}
