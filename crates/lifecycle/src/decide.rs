//! The state machine. An attempt's number is raised with every arrow into Running, and never goes back.
//!
//! ```text
//!                 start                        failure, restart left
//!   ┌──────┐   (attempt + 1)   ┌─────────┐  (attempt + 1, after a back-off)
//!   │ Idle ├──────────────────►│ Running ├──────────┐
//!   └──────┘                   │         │◄─────────┘
//!       ▲                      └┬──┬───▲─┘
//!       │  all gone,    suspend,│  │   │ all gone, to run with other stages
//!       │  suspended    scale,  │  │   │ or another spec (attempt + 1)
//!       │               change  ▼  │   │
//!       │                 ┌────────┴─┐ │
//!       └─────────────────┤ Draining ├─┘
//!                         └────┬─────┘
//!             all done         │   │  all done; failure that is final; budget or deadline passed
//!                              ▼   ▼
//!                         ┌──────────┐
//!                         │ Finished │  Complete or Failed, for ever
//!                         └──────────┘
//! ```
//!
//! `decide` takes at most one arrow; what is to be done then follows from the new state alone (`actions`), so that a
//! caller that dies between recording and acting does the same after it comes back.

use stagecoach_api::contract::ExitCode;
use stagecoach_api::job::Phase;

use crate::actions::{self, Action};
use crate::observed::{MemberState, Observed};
use crate::policy::Verdict;
use crate::state::{Attempt, Doing, FailReason, Outcome, State};
use crate::time::{Clock, Time};
use crate::{Failure, backoff, cause};

/// How far a member's attempt may be ahead of the recorded one, whose record may be lost or an old one. A number beyond that
/// was not counted up to by anybody, and counting on from it could overflow: such a member is ignored.
const MAX_ATTEMPTS_AHEAD: u64 = 1_000_000;

/// What to record, and then to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// To be recorded before anything is done; equal to the observed state if nothing changed.
    pub state: State,
    /// What to do. Doing it twice does no harm.
    pub actions: Vec<Action>,
    /// When to decide again even if nothing happens.
    pub wake: Option<Time>,
    /// One word for the user.
    pub phase: Phase,
}

/// Decides what should be recorded and done, given what is seen.
pub fn decide(observed: &Observed, now: Time) -> Decision {
    let mut clock = Clock::at(now);
    let mut seen = observed.clone();
    let highest = seen.state.attempt.number.saturating_add(MAX_ATTEMPTS_AHEAD);
    seen.members.retain(|member| member.attempt <= highest);
    note_progress(&mut seen);
    seen.state = next(&seen, &mut clock);
    let actions = actions::of(&seen, &mut clock);
    let phase = phase(&seen);
    Decision { state: seen.state, actions, wake: clock.wake, phase }
}

/// A new checkpoint refills the budget; getting further than ever ends the back-off.
fn note_progress(observed: &mut Observed) {
    let reports = || observed.members.iter().filter_map(|member| member.exit()?.report.as_ref());
    let checkpoint = reports().filter_map(|report| report.checkpoint).max().max(observed.seen.checkpoint);
    let step = reports().filter_map(|report| report.progress).max().max(observed.seen.step).max(checkpoint);
    if observed.state.outcome().is_some() {
        return;
    }
    if checkpoint > observed.state.checkpoint {
        observed.state.checkpoint = checkpoint;
        observed.state.budget.refill();
    }
    if step > observed.state.best_step {
        observed.state.best_step = step;
        observed.state.failures = 0;
    }
}

/// The state after at most one arrow.
fn next(observed: &Observed, clock: &mut Clock) -> State {
    let state = &observed.state;
    match state.doing {
        Doing::Finished(_) => state.clone(),
        Doing::Idle if observed.desired.suspend => state.clone(),
        Doing::Idle => raised(observed, clock.now, clock.now),
        Doing::Running { .. } | Doing::Draining if all_done(observed) => finished(state, Outcome::Complete),
        Doing::Draining => drained(observed, clock),
        Doing::Running { not_before, created } => running(observed, not_before, created, clock),
    }
}

fn running(observed: &Observed, not_before: Time, created: bool, clock: &mut Clock) -> State {
    let Observed { desired, policy, state, .. } = observed;
    if observed.members.iter().any(|member| member.attempt > state.attempt.number) {
        // The record is older than what it is a record of: a number that was used is never used again.
        return raised(observed, not_before, clock.now);
    }
    let deadline = policy.active_deadline.zip(state.started).map(|(seconds, started)| started.plus_seconds(seconds));
    if deadline.is_some_and(|deadline| clock.due(deadline)) {
        return finished(state, Outcome::Failed(FailReason::DeadlineExceeded));
    }
    if desired.suspend || desired.stages != state.attempt.stages || desired.revision != state.attempt.revision {
        let mut state = state.clone();
        if observed.current().any(|member| member.is_alive()) {
            state.doing = Doing::Draining;
            return state;
        }
        return if desired.suspend { idle(state) } else { raised(observed, not_before, clock.now) };
    }
    if let Some(failure) = cause::of_failure(observed, created, clock) {
        return failed(observed, failure, clock.now);
    }
    let mut state = state.clone();
    let created = created || (observed.current().next().is_some() && observed.missing().next().is_none());
    state.doing = Doing::Running { not_before, created };
    state
}

/// Waits until everyone is gone, or can't be waited for any longer.
fn drained(observed: &Observed, clock: &mut Clock) -> State {
    if actions::someone_is_left(observed, clock) {
        return observed.state.clone();
    }
    if observed.desired.suspend { idle(observed.state.clone()) } else { raised(observed, clock.now, clock.now) }
}

/// A failure is the end, or the next attempt after a back-off.
fn failed(observed: &Observed, failure: Failure, now: Time) -> State {
    let mut after = observed.clone();
    let state = &mut after.state;
    let verdict = observed.policy.verdict(&failure, state);
    state.deterministic = failure.deterministic().or(state.deterministic.take());
    state.last_failure = Some(failure);
    let counted = match verdict {
        Verdict::Fail(reason) => return finished(state, Outcome::Failed(reason)),
        Verdict::Restart { counted } => counted,
    };
    if !state.budget.take(counted, observed.policy.restart.max_restarts) {
        return finished(state, Outcome::Failed(FailReason::BudgetExhausted));
    }
    state.failures = state.failures.saturating_add(1);
    let wait = backoff::seconds(&observed.policy.restart.backoff, state.failures);
    raised(&after, now.plus_seconds(wait), now)
}

/// The next attempt, of what is wanted now.
fn raised(observed: &Observed, not_before: Time, now: Time) -> State {
    let mut state = observed.state.clone();
    let used = observed.members.iter().map(|member| member.attempt).max().unwrap_or(0);
    state.attempt = Attempt {
        number: used.max(state.attempt.number).saturating_add(1),
        stages: observed.desired.stages,
        revision: observed.desired.revision,
    };
    state.doing = Doing::Running { not_before, created: false };
    state.started.get_or_insert(now);
    state
}

/// Suspended: the deadline's clock starts anew with the next attempt, as a Kubernetes Job's does.
fn idle(mut state: State) -> State {
    state.doing = Doing::Idle;
    state.started = None;
    state
}

fn finished(state: &State, outcome: Outcome) -> State {
    State { doing: Doing::Finished(outcome), ..state.clone() }
}

fn all_done(observed: &Observed) -> bool {
    let done = |stage| {
        observed.current().any(|member| {
            member.stage == stage && member.exit().is_some_and(|exit| exit.meaning() == Some(ExitCode::Done))
        })
    };
    let stages = observed.state.attempt.stages;
    stages > 0 && (0..stages).all(done)
}

/// One word for the user.
fn phase(observed: &Observed) -> Phase {
    let state = &observed.state;
    let ready = observed.current().filter(|member| member.state == MemberState::Ready).count();
    match state.doing {
        Doing::Idle if observed.desired.suspend => Phase::Suspended,
        Doing::Idle => Phase::Pending,
        Doing::Draining => Phase::Draining,
        Doing::Finished(Outcome::Complete) => Phase::Complete,
        Doing::Finished(Outcome::Failed(_)) => Phase::Failed,
        Doing::Running { .. } if ready == state.attempt.stages as usize => Phase::Running,
        Doing::Running { .. } if observed.current().any(|member| member.is_alive()) => Phase::Starting,
        Doing::Running { .. } if state.failures > 0 => Phase::Restarting,
        Doing::Running { .. } => Phase::Starting,
    }
}
