//! Maps and sets whose keys are a few small numbers, as actions and work items are. A program has a hundred thousand of them and each
//! is looked up many times: the standard hash would take most of the time of a plan. It has no secret, so that somebody who writes
//! a schedule can make it slow; that somebody can as well write a longer one.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;
pub(crate) type FastSet<K> = HashSet<K, BuildHasherDefault<FastHasher>>;

/// Multiplies and rotates, as rustc's own hash does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastHasher(u64);

/// Odd, with bits all over.
const FACTOR: u64 = 0x517c_c1b7_2722_0a95;

impl Hasher for FastHasher {
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    /// The bits that a product mixes best are its high ones, and a table takes the low ones.
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
