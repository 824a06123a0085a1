//! The order of the training sequences. Each epoch has a permutation with the key (seed, epoch). The permutation is
//! computed for one index at a time.
//!
//! A Feistel network permutes the integers below a power of four that is at least the number of sequences. An index
//! outside the range is permuted again until it is inside ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary
//! Finite Domains, 2002). The sequence at a position therefore depends on the position alone: there is no state to save
//! and nothing to replay on resume.

/// The number of rounds. Four rounds already make a strong pseudorandom permutation (Luby and Rackoff, 1988).
const FEISTEL_ROUNDS: u64 = 6;

/// Returns the index of the sequence that training reads after `position` other sequences. `count` is the number of
/// sequences of an epoch, at least one.
pub(crate) fn sequence_at(seed: u64, position: u64, count: u64) -> u64 {
    let (epoch, index) = (position / count, position % count);
    let key = splitmix64(splitmix64(seed) ^ epoch);
    let half_bits = (64 - (count - 1).leading_zeros()).div_ceil(2).max(1);
    let mut index = permute(index, key, half_bits);
    while index >= count {
        index = permute(index, key, half_bits);
    }
    index
}

/// Returns the seed of the order of the source with the index `source`. The first source has the seed of the job.
pub(crate) fn seed_of_source(seed: u64, source: usize) -> u64 {
    match source {
        0 => seed,
        _ => splitmix64(seed ^ splitmix64(source as u64)),
    }
}

/// Applies a bijection on `0..4^half_bits`.
fn permute(index: u64, key: u64, half_bits: u32) -> u64 {
    let mask = (1 << half_bits) - 1;
    let (mut left, mut right) = (index >> half_bits, index & mask);
    for round in 0..FEISTEL_ROUNDS {
        (left, right) = (right, left ^ (splitmix64(key ^ splitmix64(right ^ (round << 32))) & mask));
    }
    left << half_bits | right
}

/// Spreads every bit of `value` over all 64 bits (the output function of SplitMix64; Steele, Lea and Flood, 2014).
pub(crate) fn splitmix64(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(seed: u64, epoch: u64, count: u64) -> Vec<u64> {
        (epoch * count..(epoch + 1) * count).map(|position| sequence_at(seed, position, count)).collect()
    }

    proptest! {
        #[test]
        fn every_epoch_visits_every_sequence_once(seed: u64, number in 0u64..1000, count in 1u64..3000) {
            let mut order = epoch(seed, number, count);
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..count));
        }

        #[test]
        fn huge_counts_stay_in_range(seed: u64, position: u64, count in 1u64..=u64::MAX) {
            prop_assert!(sequence_at(seed, position, count) < count);
        }
    }

    #[test]
    fn all_small_counts_are_permuted() {
        for count in 1..300 {
            let mut order = epoch(7, 3, count);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count), "{count} sequences");
        }
    }

    #[test]
    fn seeds_and_epochs_give_different_orders() {
        let first = epoch(42, 0, 100);
        assert_ne!(first, epoch(42, 1, 100));
        assert_ne!(first, epoch(43, 0, 100));
        assert_ne!(first, (0..100).collect::<Vec<_>>());
    }

    /// Checkpoints of older versions resume in this order, so the order must never change.
    #[test]
    fn order_is_stable_across_versions() {
        assert_eq!(epoch(42, 0, 10), [8, 9, 3, 0, 5, 7, 4, 6, 1, 2]);
        assert_eq!(epoch(42, 1, 10), [4, 9, 6, 5, 7, 1, 8, 3, 2, 0]);
    }
}
