//! The launcher's sentences: what failed, why, and what happens next. Pure.

use std::path::Path;

use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, JobFailureReason, JobOutcome, JobState, Policy, UnixMillis};

use super::LaunchError;
use crate::observe::duration;

/// Lines of a log that are shown.
const TAIL: usize = 8;

/// The root cause in one sentence, and the end of the stage's log below it.
pub(super) fn failure(failure: &AttemptFailure, log: &str) -> String {
    let who = failure.stage.map_or_else(|| "the group failed".into(), |stage| format!("stage {stage} failed"));
    let why = failure.kind.map_or_else(|| format!("{:?}", failure.reason), |kind| kind.to_string());
    let code = failure.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
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
pub(super) fn next(state: &JobState, policy: &Policy, now: UnixMillis) -> String {
    match &state.attempt_phase {
        AttemptPhase::Finished(JobOutcome::Failed(reason)) => format!("giving up: {}", given_up(*reason, policy)),
        AttemptPhase::Running { not_before, .. } => format!(
            "restarting in {}: attempt {}, {} of {} restarts left; {}",
            duration(not_before.0.saturating_sub(now.0) as f64 / 1000.0),
            state.attempt.number,
            state.budget.remaining(policy.restart.max_restarts),
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
pub(super) fn from(state: &JobState) -> String {
    match state.checkpoint_step {
        Some(step) => format!("training goes on after step {step}, from its checkpoint"),
        None => "without checkpoints training starts again at step 0".into(),
    }
}

fn given_up(reason: JobFailureReason, policy: &Policy) -> String {
    match reason {
        JobFailureReason::InvalidConfig => {
            "the job or its plan can't work as it is, and starting it again would not help".into()
        }
        JobFailureReason::ExitCodeRule => "a rule in spec.restart.exitCodes says so".into(),
        JobFailureReason::Deterministic => "it failed the same way at the same step before, and would again".into(),
        JobFailureReason::BudgetExhausted => {
            format!("no restart is left of spec.restart.maxRestarts, which is {}", policy.restart.max_restarts)
        }
        JobFailureReason::DeadlineExceeded => match policy.active_deadline_seconds {
            Some(seconds) => format!("spec.activeDeadlineSeconds, which is {seconds}, have passed"),
            None => "its deadline has passed".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use stagecoach_api::contract::FailureKind;
    use stagecoach_api::job::PipelineJobSpec;
    use stagecoach_lifecycle::{Attempt, FailureReason, RestartBudget};

    use super::super::supervise::tests::job;
    use super::*;

    fn killed() -> AttemptFailure {
        AttemptFailure {
            attempt: 1,
            stage: Some(1),
            reason: FailureReason::Killed,
            exit_code: Some(137),
            kind: None,
            step: None,
            action: None,
            message: "exited with code 137".into(),
            failed_at: UnixMillis(0),
        }
    }

    #[test]
    fn a_failure_is_one_sentence_and_what_its_log_adds() {
        assert_eq!(
            failure(&killed(), "\none\ntwo\n"),
            "stage 1 failed (Killed, exit code 137): exited with code 137\n  | one\n  | two"
        );
        let told = AttemptFailure {
            kind: Some(FailureKind::Data),
            exit_code: Some(1),
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
        let mut state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(2500), all_created: false },
            attempt: Attempt { number: 2, stages: 2, revision: 0 },
            budget: RestartBudget { total: 1, counted: 1, counted_since_checkpoint: 1 },
            ..JobState::default()
        };
        let sentence =
            "restarting in 2.0s: attempt 2, 9 of 10 restarts left; without checkpoints training starts again at step 0";
        assert_eq!(next(&state, &policy, UnixMillis(500)), sentence);
        state.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted));
        assert_eq!(
            next(&state, &policy, UnixMillis(0)),
            "giving up: no restart is left of spec.restart.maxRestarts, which is 10"
        );
    }
}
