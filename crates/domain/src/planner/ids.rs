//! Ids for the rows that a plan creates. They follow from a seed, so the same plan always creates the same ids.

use jiff::Timestamp;
use uuid::Uuid;

/// A source of ids.
#[derive(Clone, Debug)]
pub struct Ids {
    now: Timestamp,
    state: u64,
}

impl Ids {
    /// Ids for this time, from a seed.
    pub fn new(now: Timestamp, seed: u64) -> Self {
        Self { now, state: seed }
    }

    /// A UUID of version 7, which sorts by its time.
    pub fn next_id(&mut self) -> Uuid {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.random().to_le_bytes());
        bytes[8..].copy_from_slice(&self.random().to_le_bytes()[..2]);
        uuid::Builder::from_unix_timestamp_millis(self.now.as_millisecond().unsigned_abs(), &bytes).into_uuid()
    }

    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
