//! Delays by the clock of the machine, which may be set back, and which may be behind the clock of the machine on which
//! the operator ran before.

use std::time::Duration;

use stagecoach_lifecycle::UnixMillis;

/// Returns the rest of a delay that began at `since`; `None` if the delay is over. A delay that seems to begin in the
/// future is over: the clock was set back, or was ahead on another node, and the true beginning is unknown.
pub(crate) fn remaining(since: UnixMillis, delay: Duration, now: UnixMillis) -> Option<Duration> {
    let left = since.plus(delay).0.saturating_sub(now.0);
    (since <= now && left > 0).then(|| Duration::from_millis(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_ends_after_its_time_or_if_it_seems_to_begin_later() {
        let delay = Duration::from_secs(15);
        let since = UnixMillis::from_seconds(1000);
        let at = |seconds| remaining(since, delay, UnixMillis::from_seconds(seconds));
        assert_eq!((at(1000), at(1005)), (Some(delay), Some(Duration::from_secs(10))));
        assert_eq!((at(1015), at(9000), at(999)), (None, None, None));
    }
}
