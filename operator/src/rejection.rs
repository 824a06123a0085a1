//! Pods that the API server rejects: what is shown, how long those that exist are held, and when it is tried again.

use std::time::Duration;

use stagecoach_lifecycle::{
    Attempt, AttemptAction, AttemptPhase, BACKOFF_JITTER_PERCENT, CreationRefusal, Decision, JobState, UnixMillis,
    backoff_delay, jittered,
};

use crate::observe::BlockingReason;

/// Delays between two tries: the first, and the longest.
const INITIAL_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// What the API server rejected of a job when it was tried last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rejections {
    /// The start of an attempt, or of a stage that replaces another.
    pub start: Option<Rejection>,
    /// A spare, without which the job goes on.
    pub spare: Option<Rejection>,
}

/// What the API server has just rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// As in [`Rejections`].
    pub start: Option<BlockingReason>,
    /// As in [`Rejections`].
    pub spare: Option<BlockingReason>,
}

impl Rejections {
    /// Leaves out of `decision` what is tried again later.
    pub(crate) fn remove_backed_off_actions(&self, decision: &mut Decision, now: UnixMillis) {
        let attempt = decision.state.attempt;
        let waits = |it: &Option<Rejection>| it.as_ref().is_some_and(|it| it.retry_delay(attempt, now).is_some());
        let (start_waits, spare_waits) = (waits(&self.start), waits(&self.spare));
        decision
            .actions
            .retain(|action| !(start_waits && is_start(action) || spare_waits && is_start_of_spares(action)));
    }

    /// After the actions of `decision`, of which this was rejected.
    pub(crate) fn after(
        &self,
        rejected: &Rejected,
        decision: &Decision,
        wants_spares: bool,
        now: UnixMillis,
    ) -> Rejections {
        let state = &decision.state;
        let was_tried = |is_try: fn(&AttemptAction) -> bool| decision.actions.iter().any(is_try);
        let after = |before: &Option<Rejection>, rejected: &Option<BlockingReason>, was_tried: bool| match rejected {
            Some(reason) => Some(Rejection::new(before.as_ref(), state.attempt.number, reason.clone(), now)),
            None if was_tried => None,
            None => before.clone(),
        };
        let start = after(&self.start, &rejected.start, was_tried(is_start));
        let spare = after(&self.spare, &rejected.spare, was_tried(is_start_of_spares));
        Rejections {
            start: start.filter(|rejection| rejection.concerns(state)),
            spare: spare.filter(|rejection| wants_spares && rejection.concerns_spares(state)),
        }
    }

    /// Whether this is rejected for another reason than before.
    pub(crate) fn has_new_reason(&self, rejected: &Rejected) -> bool {
        let is_news = |before: &Option<Rejection>, now: &Option<BlockingReason>| {
            now.is_some() && before.as_ref().map(|before| &before.reason) != now.as_ref()
        };
        is_news(&self.start, &rejected.start) || is_news(&self.spare, &rejected.spare)
    }

    /// How long the next try of the current attempt has to wait; None if nothing waits.
    pub(crate) fn retry_delay(&self, attempt: Attempt, now: UnixMillis) -> Option<Duration> {
        [&self.start, &self.spare]
            .into_iter()
            .flatten()
            .filter_map(|rejection| rejection.retry_delay(attempt, now))
            .min()
    }
}

fn is_start(action: &AttemptAction) -> bool {
    matches!(action, AttemptAction::StartAttempt { .. } | AttemptAction::ReplaceStages { .. })
}

fn is_start_of_spares(action: &AttemptAction) -> bool {
    matches!(action, AttemptAction::StartSpares { .. })
}

/// Why the API server rejected the last try to create pods of an attempt.
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
        let delay = jittered(delay, BACKOFF_JITTER_PERCENT, now.0.wrapping_add(attempt));
        let retry_at = UnixMillis(now.0.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)));
        Rejection { reason, attempt, since: before.map_or(now, |before| before.since), tries, retry_at }
    }

    /// Whether it still says something of the job: until a start succeeds, also between two attempts.
    pub(crate) fn concerns(&self, state: &JobState) -> bool {
        matches!(state.attempt_phase, AttemptPhase::Running { all_created: false, .. })
    }

    /// Whether it still says something of the job's spares: as long as its attempt runs.
    pub(crate) fn concerns_spares(&self, state: &JobState) -> bool {
        matches!(state.attempt_phase, AttemptPhase::Running { .. }) && self.attempt == state.attempt.number
    }

    /// The refusal of the current attempt.
    pub(crate) fn refusal(&self, attempt: Attempt) -> Option<CreationRefusal> {
        let BlockingReason { reason, message } = &self.reason;
        (self.attempt == attempt.number)
            .then(|| CreationRefusal { since: self.since, message: format!("{reason}: {message}") })
    }

    /// How long the next try of the current attempt has to wait; None if it may start now.
    pub(crate) fn retry_delay(&self, attempt: Attempt, now: UnixMillis) -> Option<Duration> {
        let delay = self.retry_at.0.saturating_sub(now.0);
        (self.attempt == attempt.number && delay > 0).then(|| Duration::from_millis(delay))
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::Mesh;

    use super::*;

    #[test]
    fn tries_back_off_and_a_new_attempt_starts_anew() {
        let reason = || BlockingReason { reason: "QuotaExceeded".into(), message: "exceeded quota: one".into() };
        let attempt = |number| Attempt { number, mesh: Mesh::pipeline(2), revision: 7 };
        let mut now = UnixMillis::from_seconds(1000);
        let mut rejection = Rejection::new(None, 3, reason(), now);
        let mut delays = Vec::new();
        for _ in 0..9 {
            let delay = rejection.retry_delay(attempt(3), now).unwrap();
            now = UnixMillis(now.0 + delay.as_millis() as u64);
            assert_eq!(rejection.retry_delay(attempt(3), now), None);
            delays.push(delay.as_secs_f64());
            rejection = Rejection::new(Some(&rejection), 3, reason(), now);
        }
        for (delay, expected) in delays.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]) {
            assert!((expected..=expected * 1.25).contains(delay), "{delays:?}");
        }
        let refusal = rejection.refusal(attempt(3)).unwrap();
        assert_eq!(
            (refusal.since, refusal.message.as_str()),
            (UnixMillis::from_seconds(1000), "QuotaExceeded: exceeded quota: one")
        );
        // another attempt may be of another spec
        assert_eq!((rejection.refusal(attempt(4)), rejection.retry_delay(attempt(4), now)), (None, None));
        let next = Rejection::new(Some(&rejection), 4, reason(), now);
        assert_eq!((next.since, next.tries), (now, 1));
    }
}
