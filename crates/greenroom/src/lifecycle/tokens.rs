//! This module makes and checks the token of an assignment. The token contains its bot and its connection and is signed
//! with the installation's secret. So every replica can make the same token again for a slot that asks twice, and can
//! check a token without the database. Slots, pools and runners have tokens of the same kind.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{BotId, ConnectionId, SlotName};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

pub use domain::SlotClaim;

const PREFIX: &str = "grb_";
const SLOT_PREFIX: &str = "grs_";
const POOL_PREFIX: &str = "grp_";
const RUNNER_PREFIX: &str = "grr_";
const ID: usize = 16;
/// Half of the full signature: 128 bits cannot be guessed, and the token stays short.
const SIGNATURE: usize = 16;

/// The owner of a token: a bot, under one of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub bot: BotId,
    pub connection: ConnectionId,
}

/// The owner of a token: a machine that has registered as a runner of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerClaim {
    pub pool: String,
    /// The id of the machine at EC2.
    pub instance: String,
}

/// Makes and checks tokens.
#[derive(Clone)]
pub struct Tokens {
    /// The state with the secret and nothing else: to begin with it costs half as much as to begin with the secret.
    mac: Option<Hmac<Sha256>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    pub fn new(secret: &str) -> Self {
        Self { mac: Hmac::new_from_slice(secret.as_bytes()).ok() }
    }

    pub fn make(&self, claim: Claim) -> String {
        let mut bytes = claimed(claim).to_vec();
        if let Some(mac) = self.mac(claim) {
            bytes.extend_from_slice(&mac.finalize().into_bytes()[..SIGNATURE]);
        }
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns the owner of a bot's token; `None` when this installation did not make the token.
    pub fn read(&self, token: &str) -> Option<Claim> {
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(PREFIX)?).ok()?;
        if bytes.len() != 2 * ID + SIGNATURE {
            return None;
        }
        let claim = Claim {
            bot: BotId(Uuid::from_slice(&bytes[..ID]).ok()?),
            connection: ConnectionId(Uuid::from_slice(&bytes[ID..2 * ID]).ok()?),
        };
        // This comparison takes constant time.
        self.mac(claim)?.verify_truncated_left(&bytes[2 * ID..]).ok()?;
        Some(claim)
    }

    pub fn make_slot(&self, claim: &SlotClaim) -> String {
        let SlotClaim { slot, incarnation, generation, number } = claim;
        let generation = generation.map_or("-".to_owned(), |generation| generation.to_string());
        self.signed(SLOT_PREFIX, b"greenroom slot ", &format!("{} {generation} {number} {slot}", incarnation.simple()))
    }

    /// Returns the owner of a slot's token; `None` when this installation did not make the token.
    pub fn read_slot(&self, token: &str) -> Option<SlotClaim> {
        let text = self.verified(SLOT_PREFIX, b"greenroom slot ", token)?;
        let mut parts = text.splitn(4, ' ');
        let incarnation = parts.next()?.parse().ok()?;
        let generation = match parts.next()? {
            "-" => None,
            generation => Some(generation.parse().ok()?),
        };
        let number = parts.next()?.parse().ok()?;
        Some(SlotClaim { slot: SlotName::stored(parts.next()?.to_owned()), incarnation, generation, number })
    }

    /// Makes the token with which a machine may register as a runner of this pool.
    pub fn make_pool(&self, pool: &str) -> String {
        self.signed(POOL_PREFIX, b"greenroom pool ", pool)
    }

    /// Returns the pool whose runners may register with this token.
    pub fn read_pool(&self, token: &str) -> Option<String> {
        self.verified(POOL_PREFIX, b"greenroom pool ", token)
    }

    pub fn make_runner(&self, claim: &RunnerClaim) -> String {
        self.signed(RUNNER_PREFIX, b"greenroom runner ", &format!("{} {}", claim.pool, claim.instance))
    }

    /// Returns the owner of a runner's token; `None` when this installation did not make the token.
    pub fn read_runner(&self, token: &str) -> Option<RunnerClaim> {
        let text = self.verified(RUNNER_PREFIX, b"greenroom runner ", token)?;
        let (pool, instance) = text.split_once(' ')?;
        Some(RunnerClaim { pool: pool.to_owned(), instance: instance.to_owned() })
    }

    fn signed(&self, prefix: &str, purpose: &[u8], text: &str) -> String {
        let mut bytes = Vec::new();
        if let Some(mac) = self.keyed(purpose, text.as_bytes()) {
            bytes.extend_from_slice(&mac.finalize().into_bytes()[..SIGNATURE]);
        }
        bytes.extend_from_slice(text.as_bytes());
        format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes))
    }

    /// Returns the text of a token that was signed for this purpose.
    fn verified(&self, prefix: &str, purpose: &[u8], token: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(token.strip_prefix(prefix)?).ok()?;
        let (signature, text) = bytes.split_at_checked(SIGNATURE)?;
        self.keyed(purpose, text)?.verify_truncated_left(signature).ok()?;
        Some(std::str::from_utf8(text).ok()?.to_owned())
    }

    fn mac(&self, claim: Claim) -> Option<Hmac<Sha256>> {
        self.keyed(b"greenroom assignment ", &claimed(claim))
    }

    fn keyed(&self, purpose: &[u8], text: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = self.mac.clone()?;
        mac.update(purpose);
        mac.update(text);
        Some(mac)
    }
}

fn claimed(claim: Claim) -> [u8; 2 * ID] {
    let mut bytes = [0; 2 * ID];
    bytes[..ID].copy_from_slice(claim.bot.0.as_bytes());
    bytes[ID..].copy_from_slice(claim.connection.0.as_bytes());
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { bot: BotId(Uuid::from_u128(1)), connection: ConnectionId(Uuid::from_u128(2)) }
    }

    #[test]
    fn a_token_is_read_back_to_its_bot_and_connection() {
        let tokens = Tokens::new("secret");
        assert_eq!(tokens.read(&tokens.make(claim())), Some(claim()));
    }

    #[test]
    fn a_slots_token_names_the_slot_and_its_assignment_and_is_no_bots_token() {
        let tokens = Tokens::new("secret");
        let incarnation = Uuid::from_u128(5);
        let claim = SlotClaim { slot: SlotName::new("google-meet", 7), incarnation, generation: Some(3), number: 1 };
        let to_start_with = SlotClaim { generation: None, number: 0, ..claim.clone() };
        assert_eq!(tokens.read_slot(&tokens.make_slot(&to_start_with)), Some(to_start_with));
        let token = tokens.make_slot(&claim);
        assert_eq!(tokens.read_slot(&token), Some(claim));
        assert_eq!(tokens.read(&token), None);
        assert_eq!(Tokens::new("other").read_slot(&token), None);
        assert_eq!(tokens.read_slot("grs_"), None);
    }

    #[test]
    fn a_runners_token_names_its_pool_and_its_machine_and_is_not_the_pools() {
        let tokens = Tokens::new("secret");
        let claim = RunnerClaim { pool: "meet".to_owned(), instance: "i-0abc".to_owned() };
        let (runner, pool) = (tokens.make_runner(&claim), tokens.make_pool("meet"));
        assert_eq!(tokens.read_runner(&runner), Some(claim));
        assert_eq!(tokens.read_pool(&pool).as_deref(), Some("meet"));
        assert!(runner.starts_with("grr_") && pool.starts_with("grp_"));
        assert_eq!(tokens.read_runner(&pool.replace("grp_", "grr_")), None);
        assert_eq!(tokens.read_pool(&runner.replace("grr_", "grp_")), None);
        assert_eq!(tokens.read_slot(&runner.replace("grr_", "grs_")), None);
        assert_eq!(Tokens::new("other").read_pool(&pool), None);
    }

    #[test]
    fn a_token_of_another_installation_is_not_read() {
        assert_eq!(Tokens::new("secret").read(&Tokens::new("other").make(claim())), None);
    }

    #[test]
    fn a_token_that_was_changed_anywhere_is_not_read() {
        let tokens = Tokens::new("secret");
        let token = tokens.make(claim());
        for index in PREFIX.len()..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(tokens.read(std::str::from_utf8(&changed).unwrap()), None, "changed at {index}");
        }
        assert_eq!(tokens.read(&token[..token.len() - 4]), None);
        assert_eq!(tokens.read(""), None);
    }
}
