//! Tests of `restart.podFailurePolicy`: the rule that matches, and its consequence.

use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ExitAction, ExitCodeRule, PodFailurePolicySpec};
use stagecoach_lifecycle::*;

use super::{NOW, exited, exited_by_external_cause, exited_with_report, ready, running};

/// Returns the consequence of one stage's failure, `FailJob`, `Ignore` or `Count`. `rules` are the rules in JSON.
fn after(failed: StageInstance, rules: &str) -> &'static str {
    let mut observed = running(vec![failed, exited(1, 75, 996), exited(2, 75, 996)]);
    let rules = serde_json::from_str(rules).unwrap();
    observed.policy.restart.pod_failure_policy = Some(PodFailurePolicySpec { rules });
    followed(&observed)
}

fn followed(observed: &Observed) -> &'static str {
    let state = decide(observed, NOW).state;
    match (state.outcome(), state.budget.counted) {
        (Some(JobOutcome::Failed(JobFailureReason::PodFailurePolicy)), _) => "FailJob",
        (None, 0) => "Ignore",
        (None, 1) => "Count",
        other => panic!("{other:?}"),
    }
}

fn with_condition(instance: StageInstance, kind: &str, status: &str) -> StageInstance {
    StageInstance { pod_conditions: vec![("Ready".into(), "False".into()), (kind.into(), status.into())], ..instance }
}

#[test]
fn exit_codes_are_compared_by_the_operator() {
    let listed = r#"[{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3, 4]}}]"#;
    assert_eq!([3, 4, 5].map(|code| after(exited(0, code, 995), listed)), ["FailJob", "FailJob", "Count"]);
    let others = r#"[{"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [3, 78]}}]"#;
    assert_eq!([3, 5].map(|code| after(exited(0, code, 995), others)), ["Count", "Ignore"]);
    // a rule also applies to an exit code that otherwise fails the job
    let listed = r#"[{"action": "Count", "onExitCodes": {"operator": "In", "values": [78]}}]"#;
    assert_eq!(after(exited(0, 78, 995), listed), "Count");
}

#[test]
fn exit_codes_of_external_causes_match_no_rule() {
    let evicted = || exited_by_external_cause(0, ExternalCause::Evicted);
    for rule in [
        r#"[{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}]"#,
        r#"[{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}]"#,
    ] {
        assert_eq!(after(evicted(), rule), "Ignore", "{rule}");
    }
    let by_reason = |action| format!(r#"[{{"action": "{action}", "onReasons": ["Evicted"]}}]"#);
    assert_eq!(
        ["FailJob", "Ignore", "Count"].map(|action| after(evicted(), &by_reason(action))),
        ["FailJob", "Ignore", "Count"]
    );
}

#[test]
fn conditions_of_the_pod_are_compared_by_type_and_status() {
    let disrupted = r#"[{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget"}]}]"#;
    let evicted = || exited_by_external_cause(0, ExternalCause::Evicted);
    assert_eq!(after(with_condition(evicted(), "DisruptionTarget", "True"), disrupted), "Count");
    assert_eq!(after(with_condition(evicted(), "DisruptionTarget", "False"), disrupted), "Ignore");
    assert_eq!(after(evicted(), disrupted), "Ignore");
    let own = r#"[{"action": "FailJob", "onPodConditions": [{"type": "example.com/Broken", "status": "False"},
        {"type": "example.com/GpuHealthy", "status": "False"}]}]"#;
    assert_eq!(after(with_condition(exited(0, 1, 995), "example.com/GpuHealthy", "False"), own), "FailJob");
    // a rule looks only at the pod conditions of the stage that failed first
    let mut observed = running(vec![exited(0, 1, 995), with_condition(ready(1), "example.com/GpuHealthy", "False")]);
    observed.policy.restart.pod_failure_policy =
        Some(PodFailurePolicySpec { rules: serde_json::from_str(own).unwrap() });
    assert_eq!(followed(&observed), "Count");
}

#[test]
fn reasons_are_those_of_the_status() {
    let no_memory = || exited_with_report(0, FailureKind::OutOfMemory, Some(7));
    assert_eq!(after(no_memory(), r#"[{"action": "FailJob", "onReasons": ["Storage", "OutOfMemory"]}]"#), "FailJob");
    assert_eq!(after(no_memory(), r#"[{"action": "FailJob", "onReasons": ["Error"]}]"#), "Count");
}

#[test]
fn the_first_rule_that_matches_decides_and_exit_codes_are_the_last() {
    let rules = r#"[{"action": "Ignore", "onReasons": ["Storage"]},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [74, 3]}}]"#;
    assert_eq!([74, 3, 1].map(|code| after(exited(0, code, 995), rules)), ["Ignore", "FailJob", "Count"]);
    let mut observed = running(vec![exited(0, 3, 995), exited(1, 75, 996), exited(2, 75, 996)]);
    observed.policy.restart.exit_codes = vec![ExitCodeRule { codes: vec![3, 4], action: ExitAction::RestartUncounted }];
    observed.policy.restart.pod_failure_policy =
        Some(PodFailurePolicySpec { rules: serde_json::from_str(rules).unwrap() });
    assert_eq!(followed(&observed), "FailJob");
    observed.instances[0] = exited(0, 4, 995);
    assert_eq!(followed(&observed), "Ignore");
}
