//! The launcher's sentences: what failed, why, and what happens next. Pure.

use std::path::Path;

use stagecoach_lifecycle::{Doing, FailReason, Failure, Outcome, Policy, State, Time};

use super::LaunchError;
use crate::observe::duration;

/// Lines of a log that are shown.
const TAIL: usize = 8;

/// The root cause in one sentence, and the end of the stage's log below it.
pub(super) fn failure(failure: &Failure, log: &str) -> String {
    let who = failure.stage.map_or_else(|| "the group failed".into(), |stage| format!("stage {stage} failed"));
    let why = failure.kind.map_or_else(|| format!("{:?}", failure.reason), |kind| kind.to_string());
    let code = failure.code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let step = failure.step.map_or_else(String::new, |step| format!(", step {step}"));
    let action = failure.action.as_ref().map_or_else(String::new, |action| format!(", {action}"));
    let mut text = format!("{who} ({why}{code}{step}{action}): {}", failure.message);
    for line in tail(log, &failure.message) {
        text += &format!("\n  | {line}");
    }
    text
}

/// The last lines of a log, without those that only repeat the message.
fn tail<'a>(log: &'a str, message: &str) -> Vec<&'a str> {
    let new = |line: &&str| !line.trim().is_empty() && !message.lines().any(|said| line.contains(said));
    let mut lines: Vec<&str> = log.lines().rev().filter(new).take(TAIL).collect();
    lines.reverse();
    lines
}

/// What follows a failure, given the state it led to.
pub(super) fn next(state: &State, policy: &Policy, now: Time) -> String {
    match &state.doing {
        Doing::Finished(Outcome::Failed(reason)) => format!("giving up: {}", given_up(*reason, policy)),
        Doing::Running { not_before, .. } => format!(
            "restarting in {}: attempt {}, {} of {} restarts left; {}",
            duration(not_before.0.saturating_sub(now.0) as f64 / 1000.0),
            state.attempt.number,
            state.budget.left(policy.restart.max_restarts),
            policy.restart.max_restarts,
            from(state),
        ),
        _ => String::new(),
    }
}

/// The record can't be written.
pub(super) fn record_fails(error: &LaunchError) -> String {
    format!("{error}; the job goes on, and its record is kept in memory until it can be written")
}

/// It is on the volume after all.
pub(super) fn record_written(path: &Path) -> String {
    format!("{} is written again", path.display())
}

/// Where training goes on.
pub(super) fn from(state: &State) -> String {
    match state.checkpoint {
        Some(step) => format!("training goes on after step {step}, from its checkpoint"),
        None => "without checkpoints training starts again at step 0".into(),
    }
}

fn given_up(reason: FailReason, policy: &Policy) -> String {
    match reason {
        FailReason::InvalidConfig => {
            "the job or its plan can't work as it is, and starting it again would not help".into()
        }
        FailReason::ExitCodeRule => "a rule in spec.restart.exitCodes says so".into(),
        FailReason::Deterministic => "it failed the same way at the same step before, and would again".into(),
        FailReason::BudgetExhausted => {
            format!("no restart is left of spec.restart.maxRestarts, which is {}", policy.restart.max_restarts)
        }
        FailReason::DeadlineExceeded => match policy.active_deadline {
            Some(seconds) => format!("spec.activeDeadlineSeconds, which is {seconds}, have passed"),
            None => "its deadline has passed".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::FailureKind;
    use stagecoach_api::job::PipelineJobSpec;
    use stagecoach_lifecycle::{Attempt, Budget, Reason};

    use super::super::supervise::tests::job;
    use super::*;

    fn killed() -> Failure {
        Failure {
            attempt: 1,
            stage: Some(1),
            reason: Reason::Killed,
            code: Some(137),
            kind: None,
            step: None,
            action: None,
            message: "ended with exit code 137".into(),
            at: Time(0),
        }
    }

    #[test]
    fn a_failure_is_one_sentence_and_what_its_log_adds() {
        assert_eq!(
            failure(&killed(), "\none\ntwo\n"),
            "stage 1 failed (Killed, exit code 137): ended with exit code 137\n  | one\n  | two"
        );
        let told = Failure {
            kind: Some(FailureKind::Data),
            code: Some(1),
            step: Some(7),
            action: Some("1F3".into()),
            message: "the corpus is empty".into(),
            ..killed()
        };
        assert_eq!(
            failure(&told, "stage 0: the corpus is empty\n"),
            "stage 1 failed (Data, exit code 1, step 7, 1F3): the corpus is empty"
        );
        let log: String = (0..100).map(|line| format!("line {line}\n")).collect();
        assert_eq!(failure(&killed(), &log).lines().count(), 1 + TAIL);
    }

    #[test]
    fn what_follows_says_where_training_starts() {
        let spec: PipelineJobSpec = job(&[]).spec;
        let policy = Policy::for_processes(&spec);
        let mut state = State {
            doing: Doing::Running { not_before: Time(2500), created: false },
            attempt: Attempt { number: 2, stages: 2, revision: 0 },
            budget: Budget { total: 1, counted: 1, spent: 1 },
            ..State::default()
        };
        let sentence =
            "restarting in 2.0s: attempt 2, 9 of 10 restarts left; without checkpoints training starts again at step 0";
        assert_eq!(next(&state, &policy, Time(500)), sentence);
        state.doing = Doing::Finished(Outcome::Failed(FailReason::BudgetExhausted));
        assert_eq!(
            next(&state, &policy, Time(0)),
            "giving up: no restart is left of spec.restart.maxRestarts, which is 10"
        );
    }
}
