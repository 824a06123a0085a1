//! The exponential back-off of restarts and of the operator's failed reconciles.

use std::time::Duration;

/// The jitter of a job's delay in a cluster, in percent of the delay. With jitter, jobs that failed or were rejected
/// together do not retry together.
pub const BACKOFF_JITTER_PERCENT: u32 = 25;

/// Returns the delay after `failures` consecutive failures. The delay is `initial` after the first failure, and each
/// further failure doubles it up to `max`.
pub fn backoff_delay(initial: Duration, max: Duration, failures: u32) -> Duration {
    initial.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(max)
}

/// Extends `delay` by a pseudorandom share of it, at most `percent` percent, so that jobs that failed together do not
/// retry together. `seed` determines the share.
pub fn jittered(delay: Duration, percent: u32, seed: u64) -> Duration {
    // the finaliser of SplitMix64 gives unrelated numbers for consecutive seeds
    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let share = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
    delay.saturating_add(delay.mul_f64(share * f64::from(percent) / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let delay = |initial, max, failures| {
            backoff_delay(Duration::from_secs(initial), Duration::from_secs(max), failures).as_secs()
        };
        let delays = [0, 1, 2, 3, 9, 10, 11, u32::MAX].map(|failures| delay(1, 300, failures));
        assert_eq!(delays, [1, 1, 2, 4, 256, 300, 300, 300]);
        assert_eq!(delay(0, 300, 20), 0);
        let widest = u32::MAX.into();
        assert_eq!([1, 33, u32::MAX].map(|failures| delay(widest, widest, failures)), [widest; 3]);
        assert_eq!([31, 32, 33].map(|failures| delay(1, widest, failures)), [1 << 30, 1 << 31, widest]);
    }

    #[test]
    fn jitter_spreads_over_its_share() {
        let delay = Duration::from_secs(100);
        let mut all: Vec<u64> =
            (1_767_225_600_000..).take(1000).map(|seed| jittered(delay, 25, seed).as_secs()).collect();
        all.sort_unstable();
        assert!(all[0] == 100 && all[999] == 124, "{} to {}", all[0], all[999]);
        assert!((109..=116).contains(&all[500]), "{}", all[500]);
        assert_eq!(jittered(delay, 0, 7), delay);
        assert_eq!(jittered(Duration::ZERO, 25, 7), Duration::ZERO);
    }
}
