//! Probes: an operator runs the demo bot through a real slot of one pool, to prove that the pool works. A probe is a bot
//! of a reserved user, and is placed like any other bot, but only in the pool that it probes.

use uuid::Uuid;

use crate::ids::UserId;
use crate::meeting::{Meeting, Platform};

/// The user of all probes. Its id is older than that of any other user. It has no API key, so nobody acts as this user,
/// and the user API does not show it.
pub const PROBE_USER: UserId = UserId(Uuid::from_u128(0x0000_0000_0000_7000_8000_0000_0000_0001));

/// How many probes may run at once, in all pools together.
pub const PROBES_MAX: i64 = 4;

/// How long a probe stays in its pretend meeting.
pub const PROBE_MS: u64 = 2_000;

/// The pretend meeting of a pool's probe. Nobody can have a host below `.invalid` (RFC 6761), so a bot that runs instead
/// of the demo bot cannot join. Each pool has its own meeting, so it has one probe at a time.
pub fn probe_meeting(platform: Platform, pool: &str) -> Meeting {
    Meeting { platform, native_id: pool.to_owned(), url: format!("https://probe.invalid/{pool}") }
}
