//! Exponential back-off before a restart.

use stagecoach_api::job::BackoffSpec;

/// Delay in seconds after this many consecutive failures; 1 gives the initial delay.
pub(crate) fn delay_seconds(backoff: &BackoffSpec, failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(32);
    (u64::from(backoff.initial_seconds) << doublings).min(backoff.max_seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let backoff = BackoffSpec { initial_seconds: 1, max_seconds: 300 };
        let waits: Vec<_> = [0, 1, 2, 3, 9, 10, 11, u32::MAX].map(|failures| delay_seconds(&backoff, failures)).into();
        assert_eq!(waits, [1, 1, 2, 4, 256, 300, 300, 300]);
        let never = BackoffSpec { initial_seconds: 0, max_seconds: 300 };
        assert_eq!(delay_seconds(&never, 20), 0);
        let widest = BackoffSpec { initial_seconds: u32::MAX, max_seconds: u32::MAX };
        assert_eq!(delay_seconds(&widest, u32::MAX), u64::from(u32::MAX));
    }
}
