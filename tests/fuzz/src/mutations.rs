//! Random changes of bytes.

use proptest::prelude::*;
use proptest::sample::Index;

/// One change of a byte string. An [`Index`] selects a position in a string of any length.
#[derive(Clone, Debug)]
pub enum Mutation {
    /// Flips the bit of this number in the byte at this index.
    Flip(Index, u8),
    /// Replaces a byte. Half of the new bytes are special: zero, 0xff, digits, quotes, brackets and similar bytes.
    Set(Index, u8),
    /// Overwrites up to eight bytes at this index with a number in little-endian order, or up to four bytes if the flag
    /// is set.
    Number(Index, u64, bool),
    /// Removes this number of bytes at this index.
    Remove(Index, usize),
    /// Repeats this number of bytes at this index.
    Repeat(Index, usize),
    /// Removes all bytes from this index on.
    Truncate(Index),
    /// Inserts bytes at this index.
    Insert(Index, Vec<u8>),
}

/// Generates one to six changes.
pub fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let at = any::<Index>;
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"\0\x01\x7f\x80\xff09-.,:;{}[]\"'\\\n\t #&*!|>eE"[..])];
    let number = prop_oneof![
        any::<u64>(),
        (0..64u32).prop_map(|bit| 1 << bit),
        (0..64u32).prop_map(|bit| (1 << bit) - 1),
        Just(u64::MAX),
    ];
    let one = prop_oneof![
        4 => (at(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        4 => (at(), byte).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        3 => (at(), number, any::<bool>()).prop_map(|(at, number, is_short)| Mutation::Number(at, number, is_short)),
        2 => (at(), 1..40usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        2 => (at(), 1..40usize).prop_map(|(at, count)| Mutation::Repeat(at, count)),
        1 => at().prop_map(Mutation::Truncate),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
    ];
    prop::collection::vec(one, 1..7)
}

/// Returns the bytes after all changes.
pub fn mutate(bytes: &[u8], changes: &[Mutation]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes {
        let length = bytes.len();
        let place = |at: &Index| at.index(length + 1);
        match change {
            Mutation::Insert(at, new) => drop(bytes.splice(place(at)..place(at), new.iter().copied())),
            Mutation::Truncate(at) => bytes.truncate(place(at)),
            _ if bytes.is_empty() => {}
            Mutation::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
            Mutation::Set(at, byte) => bytes[at.index(length)] = *byte,
            Mutation::Number(at, number, is_short) => {
                let number = &number.to_le_bytes()[..if *is_short { 4 } else { 8 }];
                let place = at.index(length);
                let count = number.len().min(length - place);
                bytes[place..place + count].copy_from_slice(&number[..count]);
            }
            Mutation::Remove(at, count) => {
                let place = at.index(length);
                bytes.drain(place..length.min(place + count));
            }
            Mutation::Repeat(at, count) => {
                let place = at.index(length);
                let again = bytes[place..length.min(place + count)].to_vec();
                bytes.splice(place..place, again);
            }
        }
    }
    bytes
}
