//! A start that the API server rejects: what is shown, how long the pods that exist are held, and when it is tried again.

use std::time::Duration;

use stagecoach_lifecycle::{Attempt, AttemptPhase, CreationRefusal, JobState, UnixMillis, backoff_delay, jittered};

use crate::observe::BlockingReason;

/// Delays between two tries: the first, and the longest.
const INITIAL_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// How much longer a delay may be, in percent: jobs that were rejected together must not try together.
const RETRY_JITTER_PERCENT: u32 = 25;

/// Why the API server rejected the last try to start an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Its reason, for the condition `Scheduled`.
    pub reason: BlockingReason,
    attempt: u64,
    since: UnixMillis,
    tries: u32,
    retry_at: UnixMillis,
}

impl Rejection {
    /// A rejection of `attempt` after `before`, the one of the try before.
    pub(crate) fn new(before: Option<&Rejection>, attempt: u64, reason: BlockingReason, now: UnixMillis) -> Rejection {
        let before = before.filter(|before| before.attempt == attempt);
        let tries = before.map_or(1, |before| before.tries.saturating_add(1));
        let delay = backoff_delay(INITIAL_RETRY_DELAY, MAX_RETRY_DELAY, tries);
        let delay = jittered(delay, RETRY_JITTER_PERCENT, now.0.wrapping_add(attempt));
        let retry_at = UnixMillis(now.0.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)));
        Rejection { reason, attempt, since: before.map_or(now, |before| before.since), tries, retry_at }
    }

    /// Whether it still says something of the job: until a start succeeds, also between two attempts.
    pub(crate) fn concerns(&self, state: &JobState) -> bool {
        matches!(state.attempt_phase, AttemptPhase::Running { all_created: false, .. })
    }

    /// The refusal of the current attempt.
    pub(crate) fn refusal(&self, attempt: Attempt) -> Option<CreationRefusal> {
        let BlockingReason { reason, message } = &self.reason;
        (self.attempt == attempt.number)
            .then(|| CreationRefusal { since: self.since, message: format!("{reason}: {message}") })
    }

    /// How long the next try of the current attempt has to wait; None if it may start now.
    pub(crate) fn wait(&self, attempt: Attempt, now: UnixMillis) -> Option<Duration> {
        let wait = self.retry_at.0.saturating_sub(now.0);
        (self.attempt == attempt.number && wait > 0).then(|| Duration::from_millis(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_back_off_and_a_new_attempt_starts_anew() {
        let reason = || BlockingReason { reason: "QuotaExceeded".into(), message: "exceeded quota: one".into() };
        let attempt = |number| Attempt { number, stages: 2, revision: 7 };
        let mut now = UnixMillis::from_seconds(1000);
        let mut rejection = Rejection::new(None, 3, reason(), now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let wait = rejection.wait(attempt(3), now).unwrap();
            now = UnixMillis(now.0 + wait.as_millis() as u64);
            assert_eq!(rejection.wait(attempt(3), now), None);
            waits.push(wait.as_secs_f64());
            rejection = Rejection::new(Some(&rejection), 3, reason(), now);
        }
        for (wait, expected) in waits.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]) {
            assert!((expected..=expected * 1.25).contains(wait), "{waits:?}");
        }
        let refusal = rejection.refusal(attempt(3)).unwrap();
        assert_eq!(
            (refusal.since, refusal.message.as_str()),
            (UnixMillis::from_seconds(1000), "QuotaExceeded: exceeded quota: one")
        );
        // another attempt may be of another spec
        assert_eq!((rejection.refusal(attempt(4)), rejection.wait(attempt(4), now)), (None, None));
        let next = Rejection::new(Some(&rejection), 4, reason(), now);
        assert_eq!((next.since, next.tries), (now, 1));
    }
}
