//! This module makes randomness a parameter. Keys, tokens and ids come from here: from the operating system, or from a
//! seed where a test needs repeatable values.

use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub enum Random {
    /// Random values of the operating system.
    System,
    /// A sequence that depends only on its seed. Not for secrets.
    Seeded(Arc<Mutex<u64>>),
}

/// The operating system gave no random values. Without them, no key, token or id may be made.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gives no randomness: {0}")]
pub struct NoRandomness(getrandom::Error);

impl Random {
    pub fn seeded(seed: u64) -> Self {
        Random::Seeded(Arc::new(Mutex::new(seed)))
    }

    pub fn bytes<const N: usize>(&self) -> Result<[u8; N], NoRandomness> {
        let mut bytes = [0; N];
        match self {
            Random::System => getrandom::fill(&mut bytes).map_err(NoRandomness)?,
            Random::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                for chunk in bytes.chunks_mut(8) {
                    chunk.copy_from_slice(&split_mix(&mut state).to_le_bytes()[..chunk.len()]);
                }
            }
        }
        Ok(bytes)
    }

    /// Makes a secret of 256 bits, in characters that need no escaping.
    pub fn secret(&self) -> Result<String, NoRandomness> {
        Ok(URL_SAFE_NO_PAD.encode(self.bytes::<32>()?))
    }

    /// Makes an id that sorts by `now`, to a quarter of a microsecond. It is a UUID version 7 with the fraction of the
    /// millisecond in the bits after it (RFC 9562, 6.2, method 3).
    pub fn id(&self, now: Timestamp) -> Result<Uuid, NoRandomness> {
        let mut bytes = self.bytes::<10>()?;
        let millis = now.as_millisecond().unsigned_abs();
        let micros_in_milli = now.as_microsecond().rem_euclid(1000).unsigned_abs();
        let fraction = u16::try_from(micros_in_milli * 4096 / 1000).unwrap_or(0) | u16::from(bytes[1] & 0b11);
        bytes[..2].copy_from_slice(&fraction.to_be_bytes());
        Ok(uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid())
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_one_microsecond_apart_sort_by_their_time() {
        let random = Random::seeded(1);
        let mut last = Uuid::nil();
        for micros in 0..5_000 {
            let now = Timestamp::from_microsecond(1_800_000_000_000_000 + micros).unwrap();
            let id = random.id(now).unwrap();
            assert!(id > last, "{id} is not after {last}");
            assert_eq!(id.get_version_num(), 7);
            last = id;
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_secrets_and_another_gives_others() {
        assert_eq!(Random::seeded(7).secret().unwrap(), Random::seeded(7).secret().unwrap());
        assert_ne!(Random::seeded(7).secret().unwrap(), Random::seeded(8).secret().unwrap());
    }
}
