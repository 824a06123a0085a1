//! The wait before a restart: doubled by each failure in a row, so that a broken job doesn't keep a cluster busy.

use stagecoach_api::job::Backoff;

/// Seconds to wait after so many failures in a row, the first being 1.
pub(crate) fn seconds(backoff: &Backoff, failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(32);
    (u64::from(backoff.initial_seconds) << doublings).min(backoff.max_seconds.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum() {
        let backoff = Backoff { initial_seconds: 1, max_seconds: 300 };
        let waits: Vec<_> = [0, 1, 2, 3, 9, 10, 11, u32::MAX].map(|failures| seconds(&backoff, failures)).into();
        assert_eq!(waits, [1, 1, 2, 4, 256, 300, 300, 300]);
        let never = Backoff { initial_seconds: 0, max_seconds: 300 };
        assert_eq!(seconds(&never, 20), 0);
        let widest = Backoff { initial_seconds: u32::MAX, max_seconds: u32::MAX };
        assert_eq!(seconds(&widest, u32::MAX), u64::from(u32::MAX));
    }
}
