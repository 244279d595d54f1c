//! A short text that identifies the recipe of a slot. The provider compares fingerprints to find slots with old
//! settings.

use domain::hex;
use sha2::{Digest, Sha256};

/// Short enough for a label. Different recipes have different fingerprints.
pub fn fingerprint(recipe: &str) -> String {
    let digest = Sha256::digest(recipe.as_bytes());
    hex(&digest[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot is replaced when its fingerprint changes, so it must never change without a change of the recipe.
    #[test]
    fn the_same_recipe_has_the_same_fingerprint_in_every_version() {
        assert_eq!(fingerprint("bot"), fingerprint("bot"));
        assert_eq!(fingerprint(""), "e3b0c44298fc");
        assert_ne!(fingerprint("bot"), fingerprint("bot "));
    }
}
