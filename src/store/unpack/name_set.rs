//! Remembers which entry names a tar has had, in 32 bytes of memory for each name of any length.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The cleaned names seen so far. A name is stored as 128 bits of a hash with random keys, so a million names take 32
/// MiB, and an attacker cannot choose two that collide.
#[derive(Default)]
pub(in crate::store) struct NameSet {
    keys: [RandomState; 2],
    names: HashSet<u128>,
}

impl NameSet {
    /// False if this cleaned name was seen before.
    pub(in crate::store) fn insert(&mut self, clean: &[u8]) -> bool {
        self.names.insert(self.hash(clean))
    }

    /// True if this cleaned name was seen before.
    pub(in crate::store) fn contains(&self, clean: &[u8]) -> bool {
        self.names.contains(&self.hash(clean))
    }

    fn hash(&self, clean: &[u8]) -> u128 {
        let [high, low] = self.keys.each_ref().map(|key| u128::from(key.hash_one(clean)));
        high << 64 | low
    }
}
