//! What to do in a state: computed anew every time from what is seen, so that nothing is lost when a caller dies.

use crate::observed::{Member, Observed};
use crate::state::{Doing, Outcome};
use crate::time::Clock;

/// Seconds that members of a failed attempt have to leave: nothing is left to save, and the group ends itself by then.
const FAILED_GRACE: u64 = 10;

/// Something to do. Each may be asked for again until its effect is seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Create the attempt's members that don't exist yet.
    StartAttempt {
        /// Which attempt.
        number: u64,
        /// Its stages.
        stages: u32,
    },
    /// Ask an attempt's members to leave (SIGTERM, a pod's deletion), and remove those that have ended. They are seen
    /// as Terminating or not at all afterwards.
    DeleteMembers {
        /// Which attempt.
        attempt: u64,
        /// Seconds they have for it.
        grace: u64,
    },
    /// Kill an attempt's members that were asked to leave and did not (SIGKILL; for pods the kubelet does it).
    KillMembers {
        /// Which attempt.
        attempt: u64,
    },
}

/// What to do in the observed state.
pub(crate) fn of(observed: &Observed, clock: &mut Clock) -> Vec<Action> {
    let mut actions = Vec::new();
    let state = &observed.state;
    let number = state.attempt.number;
    let mut attempts: Vec<_> = observed.members.iter().map(|member| member.attempt).collect();
    attempts.sort_unstable();
    attempts.dedup();
    for attempt in attempts {
        if unwanted(observed, attempt) {
            let grace = grace(observed, attempt);
            let sweep = matches!(state.doing, Doing::Idle | Doing::Running { .. });
            let members = || observed.members.iter().filter(|member| member.attempt == attempt);
            // What has ended stays until the rest of a drain is seen, and after the job's end for its logs.
            if members().any(|member| !member.is_leaving() && (member.is_alive() || sweep)) {
                actions.push(Action::DeleteMembers { attempt, grace });
            }
            let leaving = || members().filter(|member| member.is_leaving());
            if leaving().any(|member| clock.now >= member.at.plus_seconds(grace)) {
                actions.push(Action::KillMembers { attempt });
            }
            for member in leaving() {
                clock.due(member.at.plus_seconds(grace));
            }
        }
    }
    if let Doing::Running { not_before, created: false } = state.doing
        && !someone_older_is_left(observed, clock)
        && clock.due(not_before)
    {
        actions.push(Action::StartAttempt { number, stages: state.attempt.stages });
    }
    actions
}

/// Whether an attempt's members are to go.
fn unwanted(observed: &Observed, attempt: u64) -> bool {
    match observed.state.doing {
        Doing::Running { .. } => attempt != observed.state.attempt.number,
        // A job completes when all have ended; none of its members needs to go.
        Doing::Finished(Outcome::Complete) => attempt != observed.state.attempt.number,
        Doing::Idle | Doing::Draining | Doing::Finished(Outcome::Failed(_)) => true,
    }
}

/// Seconds that an attempt's members have to leave.
fn grace(observed: &Observed, attempt: u64) -> u64 {
    let failed = attempt != observed.state.attempt.number;
    if failed { FAILED_GRACE.min(observed.policy.grace) } else { observed.policy.grace }
}

/// Whether a member of any attempt is left, while draining.
pub(crate) fn someone_is_left(observed: &Observed, clock: &mut Clock) -> bool {
    is_left(observed, &|_| true, observed.policy.grace, clock)
}

/// Whether a member of an older attempt is left that a new one must wait for.
fn someone_older_is_left(observed: &Observed, clock: &mut Clock) -> bool {
    let number = observed.state.attempt.number;
    is_left(observed, &|member| member.attempt != number, 0, clock)
}

/// A member that was asked to leave is waited for `terminationTimeoutSeconds` beyond its grace. After that its machine is
/// taken for dead; should it live on, the volume's fence keeps it from committing anything.
fn is_left(observed: &Observed, which: &dyn Fn(&Member) -> bool, grace: u64, clock: &mut Clock) -> bool {
    let timeout = grace.saturating_add(observed.policy.restart.termination_timeout_seconds.into());
    let mut left = false;
    for member in observed.members.iter().filter(|member| member.is_alive() && which(member)) {
        left |= !member.is_leaving() || !clock.due(member.at.plus_seconds(timeout));
    }
    left
}
