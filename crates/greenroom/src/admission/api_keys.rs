//! This module makes and checks API keys and the admin token. A key is `grk_<id>_<secret>`: the prefix lets people and
//! scanners recognise it, the id finds its row, and the hash of the whole key is compared in constant time. Only the
//! hash is stored.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{KeyId, hex};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Uuid;

use crate::random::{NoRandomness, Random};

const PREFIX: &str = "grk_";
const ADMIN_PREFIX: &str = "gra_";

/// A key as its user holds it. It is shown once and never logged.
#[derive(Clone)]
pub struct ApiKey {
    pub id: KeyId,
    text: String,
}

impl ApiKey {
    pub fn make(random: &Random, now: Timestamp) -> Result<Self, NoRandomness> {
        let id = random.id(now)?;
        let text = format!("{PREFIX}{}_{}", URL_SAFE_NO_PAD.encode(id.as_bytes()), random.secret()?);
        Ok(Self { id: KeyId(id), text })
    }

    /// Parses the text that a caller sent. `None` when it cannot be a Greenroom key.
    pub fn parse(text: &str) -> Option<Self> {
        // The encoded id has 22 characters. It may contain `_`, which also separates it from the secret.
        let id = text.strip_prefix(PREFIX)?.get(..22)?;
        let id = Uuid::from_slice(&URL_SAFE_NO_PAD.decode(id).ok()?).ok()?;
        Some(Self { id: KeyId(id), text: text.to_owned() })
    }

    /// Returns the key's text, to show it once to its owner.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    pub fn hash(&self) -> String {
        hash(&self.text)
    }

    /// Whether `stored` is the hash of this key. The comparison takes the same time for every difference.
    pub fn matches(&self, stored: &str) -> bool {
        same(&self.hash(), stored)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKey({})", self.id)
    }
}

/// Makes a new admin token.
pub fn make_admin_token(random: &Random) -> Result<String, NoRandomness> {
    Ok(format!("{ADMIN_PREFIX}{}", random.secret()?))
}

/// The stored form of a key or token. Keys are random and long, so a plain hash cannot be reversed by guessing.
pub fn hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

/// Compares in constant time.
pub fn same(left: &str, right: &str) -> bool {
    left.as_bytes().ct_eq(right.as_bytes()).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_recognised_by_its_prefix_and_found_by_its_id() {
        // Many keys, because the id and the secret may contain the separator.
        let random = Random::seeded(3);
        for _ in 0..200 {
            let key = ApiKey::make(&random, Timestamp::UNIX_EPOCH).unwrap();
            assert!(key.reveal().starts_with("grk_"));
            let parsed = ApiKey::parse(key.reveal()).unwrap();
            assert_eq!(parsed.id, key.id);
            assert!(parsed.matches(&key.hash()));
        }
    }

    #[test]
    fn a_key_with_another_secret_does_not_match() {
        let key = ApiKey::make(&Random::seeded(3), Timestamp::UNIX_EPOCH).unwrap();
        let mut forged = key.reveal().to_owned();
        forged.pop();
        forged.push('!');
        assert!(!ApiKey::parse(&forged).unwrap().matches(&key.hash()));
    }

    #[test]
    fn an_invalid_key_is_not_parsed() {
        for text in ["", "grk_", "grk_short_x", "gra_AAAAAAAAAAAAAAAAAAAAAA_x", "grk_ééééééééééééééééééééééé"]
        {
            assert!(ApiKey::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_key_does_not_show_itself_when_it_is_logged() {
        let key = ApiKey::make(&Random::seeded(3), Timestamp::UNIX_EPOCH).unwrap();
        assert!(!format!("{key:?}").contains(&key.reveal()[30..]));
    }
}
