//! Tests of decisions after a spare was promoted to a stage.

use std::collections::{BTreeMap, BTreeSet};

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ExitAction, ExitCodeRule, PodFailurePolicySpec};
use stagecoach_lifecycle::*;

use super::{actions, promoted, remove_spares, spare, start_spares, taken, waits};
use crate::rules::{NOW, exited, exited_by_external_cause, exited_with_report, ready};

#[test]
fn a_spare_in_a_stages_place_is_recorded_as_a_replacement() {
    for code in [137, 75] {
        let observed = taken(Some(exited(1, code, 995)));
        let decision = decide(&observed, NOW);
        let after = decision.state;
        assert_eq!((after.attempt.number, &after.incarnations), (1, &BTreeMap::from([(1, 1)])));
        assert_eq!((after.budget.total, after.budget.counted, after.budget.replaced), (1, 1, 1));
        assert_eq!(after.replaced_without_progress, BTreeSet::from([1]));
        assert_eq!((after.failures_without_progress, &after.ranks_to_create), (1, &BTreeSet::new()));
        assert!(matches!(after.attempt_phase, AttemptPhase::Running { all_created: true, .. }), "{after:?}");
        let failure = after.last_failure.unwrap();
        assert_eq!((failure.rank, failure.incarnation), (Some(1), 0));
        assert_eq!((failure.exit_code, failure.failed_at), (Some(code), UnixMillis::from_seconds(995)));
        let remove = AttemptAction::RemoveReplaced { attempt: 1, incarnations: BTreeMap::from([(1, 1)]) };
        assert_eq!(decision.actions, [remove, start_spares(&[1])]);
    }
    let decision = decide(&taken(Some(exited_by_external_cause(1, ExternalCause::Evicted))), NOW);
    assert_eq!((decision.state.incarnation(1), decision.state.budget.counted), (1, 0));
    let decision = decide(&taken(None), NOW);
    assert_eq!((decision.state.incarnation(1), decision.state.budget.counted), (1, 0));
    assert_eq!(decision.state.last_failure.unwrap().reason, FailureReason::Unknown);
}

#[test]
fn how_the_lost_stage_exited_is_reported_later() {
    let mut observed = taken(Some(ready(1)));
    let decision = decide(&observed, NOW);
    let failure = decision.state.last_failure.clone().unwrap();
    assert_eq!((failure.reason, failure.exit_code, failure.incarnation), (FailureReason::Killed, None, 0));
    assert_eq!((decision.state.incarnation(1), decision.state.budget.counted), (1, 1));
    assert_eq!((decision.actions, decision.wake_at), (vec![start_spares(&[1])], Some(NOW.plus_seconds(10))));
    observed.state = decision.state;
    let remove = AttemptAction::RemoveReplaced { attempt: 1, incarnations: BTreeMap::from([(1, 1)]) };
    assert_eq!(decide(&observed, NOW.plus_seconds(10)).actions, [remove, start_spares(&[1])]);
    observed.instances[3] = exited_by_external_cause(1, ExternalCause::Evicted);
    let reported = decide(&observed, NOW.plus_seconds(1)).state;
    assert_eq!((reported.last_failure.unwrap().reason, reported.budget.counted), (FailureReason::Evicted, 0));
    // a stage that may still run on a lost node fails at once, as `NodeLost`
    let mut observed = taken(Some(ready(1)));
    observed.progress.lost = Some(LostInstance { rank: 1, incarnation: 0, since: NOW, has_ended: false });
    let after = decide(&observed, NOW).state;
    assert_eq!((after.last_failure.unwrap().reason, after.budget.counted), (FailureReason::NodeLost, 0));
}

#[test]
fn a_rule_decides_whether_a_restart_counts_when_the_exit_is_reported_later() {
    // each case has the rule, the exit after the decision, and the counted restarts before and after the report
    let ignore_killed = r#"[{"action": "Ignore", "onReasons": ["Killed"]}]"#;
    let count_evicted = r#"[{"action": "Count", "onReasons": ["Evicted"]}]"#;
    let ignore_disrupted = r#"[{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]"#;
    let evicted = || exited_by_external_cause(1, ExternalCause::Evicted);
    // the kubelet writes the condition together with the exit
    let pod_conditions = vec![("DisruptionTarget".to_owned(), "True".to_owned())];
    for (rules, exit, counted) in [
        (ignore_disrupted, StageInstance { pod_conditions, ..exited(1, 137, 1009) }, [1, 0]),
        (ignore_killed, exited(1, 143, 1009), [0, 0]),
        (ignore_killed, exited(1, 1, 1009), [0, 1]),
        (count_evicted, evicted(), [1, 1]),
        ("[]", evicted(), [1, 0]),
        ("[]", exited(1, 75, 1009), [1, 1]),
    ] {
        let mut observed = taken(Some(ready(1)));
        let rules = serde_json::from_str(rules).unwrap();
        observed.policy.restart.pod_failure_policy = Some(PodFailurePolicySpec { rules });
        let decided = UnixMillis::from_seconds(1009);
        observed.state = decide(&observed, decided).state;
        assert_eq!((observed.state.incarnation(1), observed.state.budget.counted), (1, counted[0]));
        observed.instances[3] = exit;
        let reported = decide(&observed, decided).state;
        assert!(
            reported
                .last_failure
                .as_ref()
                .is_some_and(|failure| failure.exit_code.is_some() || failure.reason != FailureReason::Killed)
        );
        assert_eq!((reported.outcome(), reported.budget.counted, reported.budget.total), (None, counted[1], 1));
    }
}

#[test]
fn an_exit_that_decides_what_follows_a_promotion_is_waited_for() {
    let mut observed = taken(Some(ready(1)));
    observed.policy.restart.max_restarts = 0;
    let decision = decide(&observed, NOW);
    assert_eq!((&decision.state, decision.wake_at), (&observed.state, Some(UnixMillis::from_seconds(1009))));
    let exhausted = JobOutcome::Failed(JobFailureReason::BudgetExhausted);
    assert_eq!(decide(&observed, UnixMillis::from_seconds(1009)).state.outcome(), Some(&exhausted));
    observed.instances[3] = exited_by_external_cause(1, ExternalCause::Evicted);
    assert_eq!(decide(&observed, NOW).state.incarnation(1), 1);
    observed.instances[3] = exited(1, 137, 995);
    assert_eq!(decide(&observed, NOW).state.outcome(), Some(&exhausted));
    observed.policy.restart.max_restarts = 9;
    observed.policy.restart.exit_codes = vec![ExitCodeRule { codes: vec![137], action: ExitAction::Fail }];
    let by_rule = JobOutcome::Failed(JobFailureReason::PodFailurePolicy);
    assert_eq!(decide(&observed, NOW).state.outcome(), Some(&by_rule));
}

#[test]
fn after_some_losses_the_group_restarts_although_a_spare_was_promoted() {
    let assert_restarts = |what: &str, observed: &Observed| {
        let after = decide(observed, NOW).state;
        assert_eq!((after.attempt.number, after.budget.replaced), (2, 0), "{what}");
        assert_eq!(after.last_failure.unwrap().incarnation, 0, "{what}");
        assert!(after.incarnations.is_empty(), "{what}");
    };
    assert_restarts("it would fail again", &taken(Some(exited_with_report(1, FailureKind::NonFinite, Some(3)))));
    assert_restarts("it was drained", &taken(Some(exited(1, 143, 995))));
    assert_restarts("it was done", &taken(Some(exited(1, 0, 995))));
    let mut observed = taken(Some(exited(1, 137, 995)));
    observed.state.replaced_without_progress = BTreeSet::from([1]);
    assert_restarts("it was lost before, without progress since", &observed);
    let mut observed = taken(Some(exited(1, 137, 995)));
    observed.policy.replaces_stages = false;
    assert_restarts("stages are not replaced", &observed);
}

#[test]
fn several_promotions_are_recorded_one_by_one() {
    let mut observed = taken(Some(exited(1, 137, 995)));
    observed.instances[1] = exited(2, 137, 995);
    observed.instances.push(StageInstance { spare: Some(1), ..promoted(2, 1) });
    observed.state = decide(&observed, NOW).state;
    assert_eq!(observed.state.incarnations, BTreeMap::from([(1, 1)]));
    observed.state = decide(&observed, NOW).state;
    assert_eq!(observed.state.incarnations, BTreeMap::from([(1, 1), (2, 1)]));
    assert_eq!((observed.state.budget.total, observed.state.budget.replaced), (2, 2));
    // two promotions of the same stage: each follows a failure, and training makes no progress between the failures
    let mut observed = taken(Some(exited(1, 137, 990)));
    observed.instances[2] = StageInstance { spare: Some(0), incarnation: 1, ..exited(1, 137, 995) };
    observed.instances.push(StageInstance { spare: Some(1), ..promoted(1, 2) });
    observed.state = decide(&observed, NOW).state;
    assert_eq!((observed.state.attempt.number, observed.state.incarnation(1)), (1, 1));
    observed.state = decide(&observed, NOW).state;
    assert_eq!((observed.state.attempt.number, observed.state.budget.counted), (2, 2));
}

#[test]
fn a_spare_that_comes_too_late_is_one_that_was_replaced() {
    for incarnation in [1, 2] {
        let mut observed = taken(None);
        observed.instances.push(StageInstance { incarnation: 2, ..ready(1) });
        observed.instances[2] = promoted(1, incarnation);
        observed.state.incarnations = BTreeMap::from([(1, 2)]);
        let decision = decide(&observed, NOW);
        assert_eq!(decision.state, observed.state);
        let is_removed = decision.actions.iter().any(|action| matches!(action, AttemptAction::RemoveReplaced { .. }));
        assert_eq!(is_removed, incarnation == 1);
    }
    // an instance that is ahead but never was a spare still shows that the state is out of date
    let observed = taken(Some(StageInstance { spare: None, ..promoted(0, 1) }));
    assert_eq!(decide(&observed, NOW).state.attempt.number, 2);
}

#[test]
fn a_promotion_while_another_stage_is_replaced_leaves_only_that_to_create() {
    let mut observed = taken(Some(exited(1, 137, 995)));
    observed.instances.remove(1);
    observed.state.incarnations = BTreeMap::from([(2, 2)]);
    observed.state.ranks_to_create = BTreeSet::from([2]);
    let not_all = AttemptPhase::Running { not_before: UnixMillis(0), all_created: false };
    observed.state.attempt_phase = not_all.clone();
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.incarnations, BTreeMap::from([(1, 1), (2, 2)]));
    let incarnations = BTreeMap::from([(2, 2)]);
    assert!(decision.actions.contains(&AttemptAction::ReplaceStages { attempt: 1, incarnations }), "{decision:?}");
    // if all instances exist and only the record of this is missing, nothing is created
    let mut observed = taken(Some(exited(1, 137, 995)));
    observed.state.attempt_phase = not_all;
    let decision = decide(&observed, NOW);
    assert!(matches!(decision.state.attempt_phase, AttemptPhase::Running { all_created: true, .. }));
    assert!(!decision.actions.iter().any(|action| matches!(action, AttemptAction::StartAttempt { .. })));
}

#[test]
fn a_job_that_a_spare_completed_is_complete() {
    let mut observed = taken(Some(exited(1, 137, 980)));
    for done in &mut observed.instances[..3] {
        done.state = InstanceState::Exited(Exit::with_code(0));
    }
    observed.policy.restart.max_restarts = 0;
    observed.spares = vec![waits(3), spare(4, InstanceState::Exited(Exit::with_code(1)), 0)];
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.outcome(), Some(&JobOutcome::Complete));
    assert_eq!(decision.actions, [remove_spares(&[3])]);
    observed.state = decision.state;
    // a spare that does not terminate is killed after its grace period
    observed.spares[0] = spare(3, InstanceState::Terminating, 990);
    let decision = decide(&observed, NOW);
    assert_eq!((decision.actions, decision.wake_at), (vec![], Some(UnixMillis::from_seconds(1110))));
    let kill = AttemptAction::KillInstances { attempt: 1 };
    assert_eq!(decide(&observed, UnixMillis::from_seconds(1110)).actions, [kill]);
    // an instance of a stage that the group had lost is removed too
    assert_eq!(observed.state.incarnations, BTreeMap::from([(1, 1)]));
    observed.instances[3] = ready(1);
    let remove = AttemptAction::RemoveReplaced { attempt: 1, incarnations: BTreeMap::from([(1, 1)]) };
    assert_eq!(actions(&observed), [remove]);
}

#[test]
fn a_spare_in_the_place_of_a_stage_that_completed_the_job_is_removed() {
    let mut observed = taken(Some(ready(1)));
    for index in [0, 1, 3] {
        observed.instances[index].state = InstanceState::Exited(Exit::with_code(0));
    }
    let decision = decide(&observed, NOW);
    assert_eq!(decision.state.outcome(), Some(&JobOutcome::Complete));
    assert_eq!(decision.actions, [remove_spares(&[0])]);
    observed.instances[2].state = InstanceState::Terminating;
    assert_eq!(actions(&observed), []);
}
