//! Exponential back-off: of restarts, and of the operator's failed reconciles.

use std::time::Duration;

/// Delay after this many consecutive failures: `initial` after the first, doubled by each further one up to `max`.
pub fn backoff_delay(initial: Duration, max: Duration, failures: u32) -> Duration {
    initial.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(max)
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
}
