//! The launcher's messages: the failure, its cause, and the next action. The functions are pure.

use std::path::Path;

use stagecoach_api::job::RestartSpec;
use stagecoach_api::visible;
use stagecoach_display::{duration, log_tail, meanwhile};
use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, Decision, FailurePolicy, JobOutcome, JobState, UnixMillis};

use super::LaunchError;

/// Describes the root cause in one sentence, followed by the end of the stage's log.
pub(super) fn attempt_failed(failure: &AttemptFailure, log: &str) -> String {
    let subject = failure.stage().unwrap_or_else(|| "the group".into());
    let code = failure.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let step = failure.step.map_or_else(String::new, |step| format!(", step {step}"));
    let action = failure.action.as_ref().map_or_else(String::new, |action| format!(", {action}"));
    let mut text = format!("{subject} failed ({}{code}{step}{action}): {}", failure.label(), visible(&failure.message));
    for line in log_tail(log, &failure.message) {
        text += &format!("\n  | {line}");
    }
    text
}

/// Describes the launcher's action after a failure. If `is_in_memory` is set, the stages keep checkpoints in memory.
pub(super) fn restarting_or_giving_up(
    decision: &Decision,
    policy: &FailurePolicy,
    is_in_memory: bool,
    now: UnixMillis,
) -> String {
    let state = &decision.state;
    match &state.attempt_phase {
        AttemptPhase::Finished(JobOutcome::Failed(reason)) => format!("giving up: {}", reason.explanation()),
        AttemptPhase::Running { not_before, .. } if !state.incarnations.is_empty() => format!(
            "{}; {} of {} restarts left; {}",
            replacement(decision, not_before.0.saturating_sub(now.0)),
            state.budget.remaining(policy.restart.max_restarts),
            policy.restart.max_restarts,
            match is_in_memory {
                true =>
                    "training continues from the newest checkpoint in memory that is available to all stages".into(),
                false => starting_point(state),
            },
        ),
        AttemptPhase::Running { not_before, .. } => format!(
            "restarting in {}: attempt {}, {} of {} restarts left; {}",
            duration(not_before.0.saturating_sub(now.0) as f64 / 1000.0),
            state.attempt.number,
            state.budget.remaining(policy.restart.max_restarts),
            policy.restart.max_restarts,
            starting_point(state),
        ),
        _ => String::new(),
    }
}

/// Describes the replacement of the lost stages, which begins after `wait` milliseconds.
fn replacement(decision: &Decision, wait: u64) -> String {
    let state = &decision.state;
    let failed = state.last_failure.as_ref();
    let name = failed.and_then(AttemptFailure::stage).unwrap_or_else(|| "the lost stage".into());
    match failed.and_then(|failure| failure.rank).is_some_and(|rank| !state.ranks_to_create.contains(&rank)) {
        true => format!("a spare takes the place of {name}"),
        false => {
            let meanwhile = meanwhile(decision.training_replicas);
            format!("starting {name} again in {}; {meanwhile}", duration(wait as f64 / 1000.0))
        }
    }
}

/// Returns a warning about the rules of `restart.podFailurePolicy` that only failures of pods can match; `None` if
/// there are no such rules.
pub fn rules_for_pods(restart: &RestartSpec) -> Option<String> {
    let rules = restart.pod_failure_policy.iter().flat_map(|policy| &policy.rules).enumerate();
    let for_pods = rules.filter(|(_, rule)| !rule.on_pod_conditions.is_empty());
    let named: Vec<String> = for_pods.map(|(index, _)| format!("rules[{index}]")).collect();
    let verb = if named.len() == 1 { "has" } else { "have" };
    (!named.is_empty()).then(|| {
        format!(
            "spec.restart.podFailurePolicy: {} {verb} no effect in a local run, because processes have no pod \
             conditions",
            named.join(", ")
        )
    })
}

/// Returns the message that the launcher's state could not be saved.
pub(super) fn state_not_saved(error: &LaunchError) -> String {
    format!("{error}; the job continues, and the launcher's state is kept in memory until it can be written")
}

/// Returns the message that the launcher's state was saved after earlier saves had failed.
pub(super) fn state_saved(path: &Path) -> String {
    format!("{} can be written again", path.display())
}

/// Describes the starting point of the next attempt.
pub(super) fn starting_point(state: &JobState) -> String {
    match state.checkpoint_step {
        Some(step) => format!("training resumes from the checkpoint of step {step}"),
        None => "training starts at step 0, since there is no checkpoint".into(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use stagecoach_api::contract::{FailureKind, Mesh};
    use stagecoach_api::job::{JobPhase, PipelineJobSpec};
    use stagecoach_lifecycle::{Attempt, FailureReason, JobFailureReason, RestartBudget};

    use super::super::supervisor::tests::job;
    use super::*;

    /// Returns the failure of stage 1, which a signal killed.
    pub(crate) fn killed() -> AttemptFailure {
        AttemptFailure {
            attempt: 1,
            rank: Some(1),
            mesh: None,
            incarnation: 0,
            reason: FailureReason::Killed,
            exit_code: Some(137),
            kind: None,
            step: None,
            action: None,
            message: "exited with code 137".into(),
            failed_at: UnixMillis(0),
            uncounted: false,
        }
    }

    #[test]
    fn a_failure_is_one_sentence_and_the_new_lines_of_the_log() {
        assert_eq!(
            attempt_failed(&killed(), "\none\ntwo\n"),
            "stage 1 failed (Killed, exit code 137): exited with code 137\n  | one\n  | two"
        );
        let reported = AttemptFailure {
            reason: FailureReason::Error,
            kind: Some(FailureKind::Data),
            exit_code: Some(1),
            step: Some(7),
            action: Some("1F3".into()),
            message: "the corpus is empty".into(),
            ..killed()
        };
        assert_eq!(
            attempt_failed(&reported, "stage 0: the corpus is empty\n"),
            "stage 1 failed (Data, exit code 1, step 7, 1F3): the corpus is empty"
        );
    }

    #[test]
    fn a_restart_names_its_starting_point_and_a_failed_job_its_reason() {
        let spec: PipelineJobSpec = job(&[]).spec;
        let policy = FailurePolicy::for_processes(&spec);
        let mut state = JobState {
            attempt_phase: AttemptPhase::Running { not_before: UnixMillis(2500), all_created: false },
            attempt: Attempt { number: 2, mesh: Mesh::pipeline(2), revision: 0, admission: 0, admitted_replicas: None },
            budget: RestartBudget { total: 1, counted: 1, replaced: 0, counted_since_checkpoint: 1 },
            ..JobState::default()
        };
        let restart = "restarting in 2.0s: attempt 2, 9 of 10 restarts left; ";
        let sentence = restart_sentence(&state, &policy);
        assert_eq!(sentence, format!("{restart}training starts at step 0, since there is no checkpoint"));
        let replaced = JobState {
            incarnations: BTreeMap::from([(1, 1)]),
            ranks_to_create: [1].into(),
            last_failure: Some(killed()),
            attempt: Attempt { number: 1, ..state.attempt },
            ..state.clone()
        };
        assert_eq!(
            restart_sentence(&replaced, &policy),
            "starting stage 1 again in 2.0s; the others wait for it; 9 of 10 restarts left; training starts at step \
             0, since there is no checkpoint"
        );
        assert!(
            restarting_or_giving_up(&decision(&replaced), &policy, true, UnixMillis(500))
                .ends_with("training continues from the newest checkpoint in memory that is available to all stages")
        );
        let trains = Decision { training_replicas: 1, ..decision(&replaced) };
        let sentence = restarting_or_giving_up(&trains, &policy, false, UnixMillis(500));
        assert!(
            sentence.starts_with("starting stage 1 again in 2.0s; the other replicas continue without this replica"),
            "{sentence}"
        );
        let taken = JobState { ranks_to_create: [].into(), ..replaced };
        assert_eq!(
            restart_sentence(&taken, &policy),
            "a spare takes the place of stage 1; 9 of 10 restarts left; training starts at step 0, since there is no \
             checkpoint"
        );
        state.checkpoint_step = Some(7);
        let sentence = restart_sentence(&state, &policy);
        assert_eq!(sentence, format!("{restart}training resumes from the checkpoint of step 7"));
        state.attempt_phase = AttemptPhase::Finished(JobOutcome::Failed(JobFailureReason::BudgetExhausted));
        assert_eq!(restart_sentence(&state, &policy), "giving up: restart.maxRestarts is used up");
    }

    #[test]
    fn rules_for_pods_are_named() {
        let rules = r#"{"rules": [{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}]}"#;
        let mut restart = RestartSpec::default();
        assert_eq!(rules_for_pods(&restart), None);
        restart.pod_failure_policy = serde_json::from_str(rules).ok();
        assert_eq!(
            rules_for_pods(&restart).as_deref(),
            Some(
                "spec.restart.podFailurePolicy: rules[0] has no effect in a local run, because processes have no pod \
                 conditions"
            )
        );
    }

    fn restart_sentence(state: &JobState, policy: &FailurePolicy) -> String {
        restarting_or_giving_up(&decision(state), policy, false, UnixMillis(500))
    }

    /// Returns a decision with this new state, in which no replica trains.
    fn decision(state: &JobState) -> Decision {
        Decision {
            state: state.clone(),
            actions: Vec::new(),
            wake_at: None,
            job_phase: JobPhase::Starting,
            training_replicas: 0,
            instances_remain: false,
        }
    }
}
