//! Pods that the API server rejects: the reason, the time of the first rejection, and the time of the next try.

use std::time::Duration;

use stagecoach_lifecycle::{
    Attempt, AttemptAction, AttemptPhase, BACKOFF_JITTER_PERCENT, CreationRefusal, Decision, JobState, UnixMillis,
    backoff_delay, jittered,
};

use crate::clock::remaining;
use crate::observe::BlockingReason;

/// The first and the longest delay between two tries.
const INITIAL_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);

/// The API server's rejections of the last tries to create pods of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rejections {
    /// The rejection of the pods of stages: of a new attempt, or of stages that replace lost stages.
    pub start: Option<Rejection>,
    /// The rejection of the start of a spare, without which the job continues.
    pub spare: Option<Rejection>,
}

/// The results of the creation of pods in one reconcile. A field is `None` if no creation was tried, or if an error
/// ended the try before the API server had created or rejected the pods.
#[derive(Debug, Default)]
pub(crate) struct CreationResults {
    /// The result for the pods of stages: of a new attempt, or of stages that replace lost stages.
    pub start: Option<Result<(), BlockingReason>>,
    /// The result of the start of spares.
    pub spares: Option<Result<(), BlockingReason>>,
}

impl CreationResults {
    /// Whether the start was rejected.
    pub(crate) fn is_start_rejected(&self) -> bool {
        matches!(self.start, Some(Err(_)))
    }
}

impl Rejections {
    /// Removes from `decision` the actions whose retry delay is not over.
    pub(crate) fn remove_backed_off_actions(&self, decision: &mut Decision, now: UnixMillis) {
        let attempt = decision.state.attempt;
        let waits = |it: &Option<Rejection>| it.as_ref().is_some_and(|it| it.retry_delay(attempt, now).is_some());
        let (start_waits, spare_waits) = (waits(&self.start), waits(&self.spare));
        decision
            .actions
            .retain(|action| !(start_waits && action.starts_stages() || spare_waits && is_start_of_spares(action)));
    }

    /// Returns these rejections, updated with the results `created`. Keeps the rejection of a creation that was not
    /// tried again, if this rejection still concerns the job in this `state`.
    pub(crate) fn after(
        &self,
        created: &CreationResults,
        state: &JobState,
        wants_spares: bool,
        now: UnixMillis,
    ) -> Rejections {
        let after = |before: &Option<Rejection>, tried: &Option<Result<(), BlockingReason>>| match tried {
            Some(Err(reason)) => Some(Rejection::new(before.as_ref(), state.attempt.number, reason.clone(), now)),
            Some(Ok(())) => None,
            None => before.clone(),
        };
        Rejections {
            start: after(&self.start, &created.start).filter(|rejection| rejection.concerns(state)),
            spare: after(&self.spare, &created.spares)
                .filter(|rejection| wants_spares && rejection.concerns_spares(state)),
        }
    }

    /// Whether the API server rejected a creation for a new reason.
    pub(crate) fn has_new_reason(&self, created: &CreationResults) -> bool {
        let is_new = |before: &Option<Rejection>, tried: &Option<Result<(), BlockingReason>>| match tried {
            Some(Err(reason)) => before.as_ref().is_none_or(|before| before.reason != *reason),
            _ => false,
        };
        is_new(&self.start, &created.start) || is_new(&self.spare, &created.spares)
    }

    /// Returns the time until pods of the current attempt are created again; `None` if no creation must wait.
    pub(crate) fn retry_delay(&self, attempt: Attempt, now: UnixMillis) -> Option<Duration> {
        [&self.start, &self.spare]
            .into_iter()
            .flatten()
            .filter_map(|rejection| rejection.retry_delay(attempt, now))
            .min()
    }
}

fn is_start_of_spares(action: &AttemptAction) -> bool {
    matches!(action, AttemptAction::StartSpares { .. })
}

/// The API server's rejection of the last try to create pods of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// The reason of the rejection, for the condition `Scheduled`.
    pub reason: BlockingReason,
    attempt: u64,
    since: UnixMillis,
    tries: u32,
    /// The time of the last try.
    tried_at: UnixMillis,
    /// The delay from the last try to the next.
    delay: Duration,
}

impl Rejection {
    /// Creates the rejection of a try in `attempt`. `before` is the rejection of the previous try.
    pub(crate) fn new(before: Option<&Rejection>, attempt: u64, reason: BlockingReason, now: UnixMillis) -> Rejection {
        let before = before.filter(|before| before.attempt == attempt);
        let tries = before.map_or(1, |before| before.tries.saturating_add(1));
        let delay = backoff_delay(INITIAL_RETRY_DELAY, MAX_RETRY_DELAY, tries);
        let delay = jittered(delay, BACKOFF_JITTER_PERCENT, now.0.wrapping_add(attempt));
        let since = before.map_or(now, |before| before.since);
        Rejection { reason, attempt, since, tries, tried_at: now, delay }
    }

    /// Whether the rejection still concerns the job. A rejection concerns the job, and its later attempts, until all
    /// pods of an attempt exist.
    pub(crate) fn concerns(&self, state: &JobState) -> bool {
        matches!(state.attempt_phase, AttemptPhase::Running { all_created: false, .. })
    }

    /// Whether the rejection still concerns the job's spares. The rejection concerns the spares of its own attempt, as
    /// long as this attempt runs.
    pub(crate) fn concerns_spares(&self, state: &JobState) -> bool {
        matches!(state.attempt_phase, AttemptPhase::Running { .. }) && self.attempt == state.attempt.number
    }

    /// Returns the rejection as an input of `lifecycle::decide`; `None` if the rejection does not belong to the current
    /// attempt.
    pub(crate) fn refusal(&self, attempt: Attempt) -> Option<CreationRefusal> {
        let BlockingReason { reason, message } = &self.reason;
        (self.attempt == attempt.number)
            .then(|| CreationRefusal { since: self.since, message: format!("{reason}: {message}") })
    }

    /// Returns the time until pods of the current attempt are created again; `None` if the creation is due.
    pub(crate) fn retry_delay(&self, attempt: Attempt, now: UnixMillis) -> Option<Duration> {
        remaining(self.tried_at, self.delay, now).filter(|_| self.attempt == attempt.number)
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::Mesh;

    use super::*;

    /// If an error ends a reconcile before the operator has tried to create the spare, the spare's rejection stays.
    #[test]
    fn what_was_not_tried_stays_rejected_and_what_was_created_does_not() {
        let reason = BlockingReason { reason: "QuotaExceeded".into(), message: "exceeded quota: one".into() };
        let now = UnixMillis::from_seconds(1000);
        let state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(0), all_created: false },
            ..JobState::default()
        };
        let rejected = || Some(Err(reason.clone()));
        let created = CreationResults { start: rejected(), spares: rejected() };
        assert!(Rejections::default().has_new_reason(&created));
        let before = Rejections::default().after(&created, &state, true, now);
        assert!(before.start.is_some() && before.spare.is_some() && !before.has_new_reason(&created));
        assert_eq!(before.after(&CreationResults::default(), &state, true, now), before);
        let started = before.after(&CreationResults { start: Some(Ok(())), spares: None }, &state, true, now);
        assert_eq!(started, Rejections { start: None, spare: before.spare.clone() });
        assert_eq!(
            before.after(&CreationResults::default(), &state, false, now).spare,
            None,
            "no spares are wanted any more"
        );
    }

    #[test]
    fn tries_back_off_and_a_new_attempt_resets_the_back_off() {
        let reason = || BlockingReason { reason: "QuotaExceeded".into(), message: "exceeded quota: one".into() };
        let attempt =
            |number| Attempt { number, mesh: Mesh::pipeline(2), revision: 7, admission: 0, admitted_replicas: None };
        let mut now = UnixMillis::from_seconds(10_000);
        let mut rejection = Rejection::new(None, 3, reason(), now);
        let mut delays = Vec::new();
        for _ in 0..9 {
            let delay = rejection.retry_delay(attempt(3), now).unwrap();
            now = UnixMillis(now.0 + delay.as_millis() as u64);
            assert_eq!(rejection.retry_delay(attempt(3), now), None);
            let set_back = UnixMillis(now.0 - 3_600_000);
            assert_eq!(rejection.retry_delay(attempt(3), set_back), None, "the clock was set back by an hour");
            delays.push(delay.as_secs_f64());
            rejection = Rejection::new(Some(&rejection), 3, reason(), now);
        }
        for (delay, expected) in delays.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]) {
            assert!((expected..=expected * 1.25).contains(delay), "{delays:?}");
        }
        let refusal = rejection.refusal(attempt(3)).unwrap();
        assert_eq!(
            (refusal.since, refusal.message.as_str()),
            (UnixMillis::from_seconds(10_000), "QuotaExceeded: exceeded quota: one")
        );
        // another attempt may have another spec
        assert_eq!((rejection.refusal(attempt(4)), rejection.retry_delay(attempt(4), now)), (None, None));
        let next = Rejection::new(Some(&rejection), 4, reason(), now);
        assert_eq!((next.since, next.tries), (now, 1));
    }
}
