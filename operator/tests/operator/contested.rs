//! Tests of other clients and other operators that write the objects of a job.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stagecoach_cluster::{condition_of, until};

use crate::support::{OperatorProcess, TestCluster, has_condition, network_policy, path, shared};

/// Starts an operator that watches only `namespace`, with the Lease `lease`. `readers` are the peers that may read the
/// pods' status.
fn operator_of(cluster: &TestCluster, namespace: &str, lease: &str, readers: &str) -> OperatorProcess {
    cluster.operator(
        cluster.kubeconfig(),
        &[("STAGECOACH_NAMESPACES", namespace), ("STAGECOACH_LEASE", lease), ("STAGECOACH_READERS", readers)],
    )
}

fn names_both(job: &Value) -> bool {
    const BOTH: &str = "2 operators reconcile this job: stagecoach-system/first, stagecoach-system/second;";
    let message = condition_of(job, "ObjectsInSync").map(|condition| condition["message"].to_string());
    has_condition(job, "ObjectsInSync", "False", "OtherOperator")
        && message.is_some_and(|message| message.contains(BOTH))
}

#[test]
fn operators_with_other_settings_find_each_other_and_back_off() {
    let cluster = shared();
    cluster.create_namespace("disputed");
    let readers = |app: &str| json!([{"podSelector": {"matchLabels": {"app": app}}}]).to_string();
    let _first = operator_of(cluster, "disputed", "first", &readers("first"));
    let _second = operator_of(cluster, "disputed", "second", &readers("second"));
    cluster.create("disputed/demo", json!({}));
    cluster.wait_running("disputed/demo", 1);
    cluster.wait("disputed/demo", "said to have two operators", names_both);
    // after twelve writes, each operator pauses for at least a second between two of its repairs
    let began = Instant::now();
    let generation = || cluster.plane.get(&network_policy("disputed/demo"))?["metadata"]["generation"].as_u64();
    let before = generation().unwrap();
    until("four more repairs", || generation().filter(|now| *now >= before.max(12) + 4));
    assert!(began.elapsed() > Duration::from_secs(1), "{before}: repairs do not back off");
    cluster.plane.client().delete(&path("disputed/demo"));
}

#[test]
fn operators_with_the_same_settings_find_each_other_too() {
    let cluster = shared();
    cluster.create_namespace("shared-by-two");
    let _first = operator_of(cluster, "shared-by-two", "first", "[]");
    let _second = operator_of(cluster, "shared-by-two", "second", "[]");
    let job = "shared-by-two/demo";
    cluster.create(job, json!({}));
    cluster.wait_running(job, 1);
    // in each round, the faster operator writes the status, so it takes several rounds until both operators have
    // written a status
    for round in 1..=20 {
        if cluster.job(job).is_some_and(|job| names_both(&job)) {
            break;
        }
        cluster.edit_and_wait(job, json!({"ttlSecondsAfterFinished": 3600 + round}));
    }
    let found = cluster.wait(job, "said to have two operators", names_both);
    assert_eq!((&found["status"]["phase"], &found["status"]["attempt"]["number"]), (&json!("Running"), &json!(1)));
    cluster.plane.client().delete(&path(job));
}

#[test]
fn a_client_that_undoes_repairs_is_named() {
    let cluster = shared();
    cluster.create("undone", json!({}));
    cluster.wait_running("undone", 1);
    let change = json!({"spec": {"egress": [{}]}});
    let contested = until("the condition to name the client", || {
        // the API server may reject this change if the operator writes the object at the same time
        drop(cluster.plane.client().patch(&network_policy("undone"), &change));
        let job = cluster.job("undone")?;
        has_condition(&job, "ObjectsInSync", "False", "ChangedByOthers").then_some(job)
    });
    let message = condition_of(&contested, "ObjectsInSync").unwrap()["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.starts_with("the client ") && message.contains(" changes the NetworkPolicy undone each time"));
    assert_eq!(contested["status"]["phase"], "Running", "training is not disturbed");
}

#[test]
fn a_repair_that_is_refused_is_no_dispute() {
    let cluster = shared();
    cluster.create("occupied", json!({"networkPolicy": {"mode": "None"}}));
    cluster.wait_running("occupied", 1);
    let foreign = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "occupied"}, "spec": {"podSelector": {}}});
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    cluster.plane.client().create(policies, &foreign).unwrap();
    cluster.edit_and_wait("occupied", json!({"networkPolicy": {"mode": "Restricted"}}));
    // the operator reconciles each change and tries each repair, but no repair succeeds
    for seconds in 3600..3610 {
        let job = cluster.edit_and_wait("occupied", json!({"ttlSecondsAfterFinished": seconds}));
        assert!(has_condition(&job, "ObjectsInSync", "True", "InSync"), "{:#}", job["status"]["conditions"]);
    }
    cluster.plane.client().delete(&network_policy("occupied"));
    let is_own = |policy: Value| policy["metadata"]["ownerReferences"].is_array().then_some(());
    until("the job's own policy", || cluster.plane.get(&network_policy("occupied")).and_then(is_own));
}

/// An admission policy that sets the `policyTypes` of each NetworkPolicy in the namespace `mutated` to `Egress`.
const MUTATION: &str = r#"{"kind": "List", "apiVersion": "v1", "items": [
    {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "add-egress"},
     "spec": {"matchConstraints": {"resourceRules": [{"apiGroups": ["networking.k8s.io"], "apiVersions": ["v1"],
        "resources": ["networkpolicies"], "operations": ["CREATE", "UPDATE"]}]},
      "matchConditions": [{"name": "namespace", "expression": "object.metadata.namespace == 'mutated'"}],
      "reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
        "[JSONPatch{op: 'replace', path: '/spec/policyTypes', value: ['Egress']}]"}}]}},
    {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": "add-egress"},
     "spec": {"policyName": "add-egress"}}]}"#;

#[test]
fn what_admission_changes_is_not_repaired() {
    let cluster = shared();
    cluster.create_namespace("mutated");
    cluster.plane.apply(MUTATION);
    // the API server applies the policy only after a moment
    let probe = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "probe", "namespace": "mutated"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
    let policies = "/apis/networking.k8s.io/v1/namespaces/mutated/networkpolicies";
    until("admission to change policies", || {
        cluster.plane.client().delete(&network_policy("mutated/probe"));
        let created = cluster.plane.client().create(policies, &probe).ok()?;
        (created["spec"]["policyTypes"] == json!(["Egress"])).then_some(())
    });
    let operator = operator_of(cluster, "mutated", "stagecoach-operator", "[]");
    let job = "mutated/demo";
    cluster.create(job, json!({}));
    cluster.wait_running(job, 1);
    let stored = || cluster.plane.get(&network_policy("mutated/demo")).unwrap();
    assert_eq!(stored()["spec"]["policyTypes"], json!(["Egress"]));
    let repairs = || operator.log().matches("repairing an object of the job").count();
    let reconcile_again = |seconds: u64| drop(cluster.edit_and_wait(job, json!({"ttlSecondsAfterFinished": seconds})));
    (3600..3610).for_each(reconcile_again);
    assert_eq!(repairs(), 0, "{}", operator.log());
    // the operator still undoes another client's change
    let change = json!({"spec": {"podSelector": {"matchLabels": {"app": "nobody"}}}});
    cluster.plane.client().patch(&network_policy("mutated/demo"), &change).unwrap();
    until("the change to be undone", || stored()["spec"]["podSelector"]["matchLabels"]["app"].is_null().then_some(()));
    (3610..3615).for_each(reconcile_again);
    assert_eq!(repairs(), 1, "{}", operator.log());
    assert!(has_condition(&cluster.job(job).unwrap(), "ObjectsInSync", "True", "InSync"));
}
