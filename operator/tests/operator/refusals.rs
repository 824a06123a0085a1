//! Tests of pods that the API server rejects. A rejection does not count against the restart budget, and the pods that
//! the job already has do not hold resources forever.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{has_condition, shared};

#[test]
fn a_quota_that_is_full_half_way_is_no_failure_and_holds_nothing_for_ever() {
    let (cluster, job) = (shared(), "half/job");
    cluster.create_namespace("half");
    let quota = "/api/v1/namespaces/half/resourcequotas";
    // the quota allows no pod of stage 1, because it counts only pods with the priority class of this stage; a quota of
    // one pod for both stages is unsuitable, because the quota controller counts pods late and may admit both
    let of_stage_1 = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}, "spec": {
        "hard": {"pods": "0"},
        "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]},
        ]},
    }});
    cluster.plane.client().create(quota, &of_stage_1).unwrap();
    until("the quota to be counted", || {
        cluster.plane.get(&format!("{quota}/one"))?["status"]["used"]["pods"].is_string().then_some(())
    });
    let _operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "half")]);
    let template = json!({"stages": [{"stage": 1, "spec": {"priorityClassName": "system-node-critical"}}]});
    cluster.create(job, json!({"scheduling": {"gang": "None"}, "template": template}));
    // the pod of stage 0 waits in vain for stage 1: the operator reports the rejection at once, and deletes the waiting
    // pod after a while
    cluster.wait(job, "refused", |job| has_condition(job, "Scheduled", "False", "QuotaExceeded"));
    let waited = cluster.wait(job, "at attempt 2", |job| job["status"]["attempt"]["number"] == 2);
    assert_eq!(waited["status"]["lastFailure"]["reason"], "Unschedulable", "{:#}", waited["status"]);
    let message = waited["status"]["lastFailure"]["message"].to_string();
    assert!(message.contains("exceeded quota: one"), "{message}");
    // the result is the same if the pod of stage 0 finds no peer and exits before the operator deletes it
    let attempt_of =
        |pod: &Value| -> Option<u64> { pod["metadata"]["labels"]["stagecoach.dev/attempt"].as_str()?.parse().ok() };
    // the operator tries again within a minute
    let pod = until("a pod of attempt 2", || cluster.pods(job).into_iter().find(|pod| attempt_of(pod) >= Some(2)));
    cluster.kubelet.pod(&format!("half/{}", pod["metadata"]["name"].as_str().unwrap())).exit(75, "");
    let is_later = |job: &Value| job["status"]["attempt"]["number"].as_u64() > attempt_of(&pod);
    let left = cluster.wait(job, "at attempt 3", is_later);
    assert_eq!(left["status"]["lastFailure"]["reason"], "Unschedulable", "{:#}", left["status"]);
    let more = json!({"spec": {"hard": {"pods": "10"}}});
    cluster.plane.client().patch(&format!("{quota}/one"), &more).unwrap();
    let running = cluster.wait_phase(job, "Running");
    assert_eq!(
        (&running["status"]["restarts"]["counted"], &running["status"]["restarts"]["budgetLeft"]),
        (&json!(0), &json!(3))
    );
    let events = cluster.event_objects(job);
    let described: Vec<&Value> = events.iter().filter(|event| event["reason"] == "NotScheduled").collect();
    assert!(
        matches!(described[..], [once] if once["series"].is_null()),
        "a repeated refusal must have one event without a series: {described:#?}"
    );
}
