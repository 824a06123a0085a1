//! The priority boost. If Kueue can preempt either of two jobs with the same priority, it preempts the job that saved
//! most recently, because this job loses the least training.
//!
//! A running job gets a boost that grows with the time since its newest checkpoint. A waiting job has no boost, and so
//! never preempts a running job of the same priority. The boost has few steps, because each change makes Kueue examine
//! its queues again.

use stagecoach_lifecycle::UnixMillis;

/// The largest boost. The values of two priority classes must differ by more than this number, so that no boost changes
/// the order of two classes.
pub(crate) const MAX_BOOST: u32 = 9;

/// Returns the boost of a job that has trained without a new checkpoint since `since`. The boost is 0 in the first
/// minute, and grows by 1 after one minute, after two, after four, and so on.
pub(crate) fn boost(since: UnixMillis, now: UnixMillis) -> u32 {
    let minutes = now.0.saturating_sub(since.0) / 60_000;
    minutes.checked_ilog2().map_or(0, |step| step + 1).min(MAX_BOOST)
}

/// Returns the time at which the boost changes next, if the job saves no checkpoint; `None` at the largest boost.
pub(crate) fn next_change(since: UnixMillis, now: UnixMillis) -> Option<UnixMillis> {
    let current = boost(since, now);
    (current < MAX_BOOST).then(|| since.plus_seconds((1_u64 << current) * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: UnixMillis = UnixMillis::from_seconds(1000);

    #[test]
    fn the_boost_grows_with_the_time_since_the_checkpoint_in_steps_that_double() {
        let after = |minutes: u64| boost(SINCE, SINCE.plus_seconds(minutes * 60));
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8, 15, 16, 255, 256, 511, 512, 100_000].map(after),
            [0, 1, 2, 2, 3, 3, 4, 4, 5, 8, 9, 9, 9, 9]
        );
        assert_eq!(boost(SINCE, UnixMillis(0)), 0, "a clock that went back");
    }

    #[test]
    fn the_next_change_is_the_first_time_with_another_boost() {
        for minutes in [0, 1, 2, 3, 5, 100, 255] {
            let now = SINCE.plus_seconds(minutes * 60);
            let next = next_change(SINCE, now).unwrap();
            assert!(next > now);
            assert_eq!(boost(SINCE, next), boost(SINCE, now) + 1);
            assert_eq!(boost(SINCE, UnixMillis(next.0 - 1)), boost(SINCE, now));
        }
        assert_eq!(next_change(SINCE, SINCE.plus_seconds(256 * 60)), None);
    }
}
