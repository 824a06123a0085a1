//! Checks how the webhooks and CRDs of each available minor version of Kueue answer the same Workloads.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};
use stagecoach_cluster::kueue::{Kueue, collection};
use stagecoach_cluster::{ControlPlane, merge};

use super::workload;

/// The minor versions, the oldest first, and the programs that `tools.sh` builds from them.
const MINORS: [(u32, &str); 3] = [(17, "kueue-0.17"), (18, "kueue-0.18"), (19, "kueue")];

/// The expected answer of the API server, which calls the webhooks.
enum Answer {
    Accepted,
    /// A refusal whose message contains this text.
    Refused(&'static str),
    /// A refusal by these minor versions, whose message contains this text. The other versions accept the Workload.
    RefusedBy(RangeInclusive<u32>, &'static str),
}

use Answer::{Accepted, Refused, RefusedBy};

/// The end of a range of minor versions that includes all later versions.
const NEWEST: u32 = u32::MAX;

/// Returns the Workloads that the operator creates for different jobs, from the golden file of the operator's tests.
/// Every version of Kueue must accept all of them.
fn of_the_operator() -> Vec<(String, Value, Answer)> {
    let golden = include_str!("../../../../../operator/src/kueue/tests/workloads.json");
    let all: Map<String, Value> = serde_json::from_str(golden).unwrap();
    let in_default = |mut workload: Value| {
        workload["metadata"]["namespace"] = "default".into();
        workload
    };
    all.into_iter().map(|(job, workload)| (format!("the operator's: {job}"), in_default(workload), Accepted)).collect()
}

/// Returns Workloads, each with a description and the expected answer.
fn cases() -> Vec<(&'static str, Value, Answer)> {
    let spec = |spec: Value| workload("w", spec);
    let annotated = |key: &str, value: &str, spec: Value| {
        let mut workload = workload("w", spec);
        workload["metadata"]["annotations"] = json!({format!("kueue.x-k8s.io/{key}"): value});
        workload
    };
    let pod_set = |at: &str, value: Value| {
        let mut workload = workload("w", json!({}));
        // indexing a JSON value can add a field, but a JSON pointer can't, so the field is set through its parent
        let (parent, field) = at.rsplit_once('/').unwrap();
        workload["spec"]["podSets"][0].pointer_mut(parent).unwrap()[field] = value;
        workload
    };
    let pod_sets = |count: usize, set: Value| {
        let one = workload("w", json!({}))["spec"]["podSets"][0].clone();
        let named = |index: usize| {
            let mut one = one.clone();
            merge(&mut one, set.clone());
            one["name"] = format!("stage-{index}").into();
            one
        };
        workload("w", json!({"podSets": (0..count).map(named).collect::<Vec<_>>()}))
    };
    let requests = |requests: Value| pod_set("/template/spec/containers/0/resources/requests", requests);
    let topology = |request: Value| pod_set("/topologyRequest", request);
    let class = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"});
    let (elastic, boost) = ("elastic-job", "priority-boost");
    let integer = "must be a valid signed integer";
    vec![
        ("two pods", spec(json!({})), Accepted),
        ("no queue", spec(json!({"queueName": null})), Accepted),
        ("inactive", spec(json!({"active": false})), Accepted),
        ("a time limit", spec(json!({"maximumExecutionTimeSeconds": 60})), Accepted),
        ("a priority", spec(json!({"priority": -7})), Accepted),
        ("a class and its priority", spec(json!({"priority": 7, "priorityClassRef": class})), Accepted),
        ("a class alone", spec(json!({"priorityClassRef": class})), Refused("priority should not be nil")),
        ("eight pod sets", pod_sets(8, json!({})), Accepted),
        ("nine pod sets", pod_sets(9, json!({})), RefusedBy(0..=17, "must have at most 8 items")),
        ("eleven pod sets", pod_sets(11, json!({})), RefusedBy(0..=18, "must have at most")),
        ("nineteen pod sets", pod_sets(19, json!({})), Refused("must have at most")),
        ("partial admission", pod_sets(1, json!({"minCount": 1})), Accepted),
        (
            "minCount above the number of pods",
            pod_sets(1, json!({"minCount": 3})),
            Refused("minCount should be positive and less"),
        ),
        (
            "minCount in two pod sets",
            pod_sets(2, json!({"minCount": 1})),
            Refused("at most one podSet can use minCount"),
        ),
        ("elastic", annotated(elastic, "true", json!({})), Accepted),
        (
            "elastic with partial admission",
            annotated(elastic, "true", pod_sets(1, json!({"minCount": 1}))["spec"].clone()),
            RefusedBy(18..=NEWEST, "partial admission and elastic job cannot be used together"),
        ),
        ("a replacement", annotated("workload-slice-replacement-for", "default/old", json!({})), Accepted),
        ("a boost", annotated(boost, "-7", json!({})), Accepted),
        ("an empty boost", annotated(boost, "", json!({})), Refused(integer)),
        ("a boost in words", annotated(boost, "much", json!({})), Refused(integer)),
        ("one rack", topology(json!({"required": "rack", "podIndexLabel": "stagecoach.dev/rank"})), Accepted),
        ("one rack if possible", topology(json!({"preferred": "rack"})), Accepted),
        ("any rack", topology(json!({"unconstrained": true})), Accepted),
        (
            "slices of two pods, each in one rack",
            topology(json!({"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2})),
            Accepted,
        ),
        (
            "slices without a size, each in one rack",
            topology(json!({"podSetSliceRequiredTopology": "rack"})),
            RefusedBy(19..=NEWEST, "must be set when podSetSliceRequiredTopology is specified"),
        ),
        ("requests of pods", requests(json!({"pods": 1})), Refused("reserved for internal kueue use")),
        (
            "negative requests",
            requests(json!({"cpu": -1})),
            RefusedBy(19..=NEWEST, "must be greater than or equal to 0"),
        ),
        (
            "an annotation without a name",
            pod_set("/template/metadata", json!({"annotations": {"/": ""}})),
            RefusedBy(19..=NEWEST, "template.metadata.annotations"),
        ),
    ]
}

#[test]
#[ignore = "needs older versions of Kueue: run `make kueue-minors`"]
fn minor_versions_answer_as_they_should() {
    let frameworks = json!({"externalFrameworks": ["PipelineJob.v1alpha1.stagecoach.dev"]});
    let gates = json!({"PriorityBoost": true, "ElasticJobsViaWorkloadSlices": true});
    let configuration = json!({"featureGates": gates, "integrations": frameworks});
    let path = format!("{}?dryRun=All", collection("Workload", "default"));
    let mut wrong = Vec::new();
    for (minor, tool) in MINORS {
        let plane = ControlPlane::start();
        let _kueue = Kueue::start_version(tool, &plane, configuration.clone());
        let cases = cases().into_iter().map(|(what, object, expected)| (what.to_owned(), object, expected));
        for (what, object, expected) in cases.chain(of_the_operator()) {
            let expected = match expected {
                Accepted => None,
                Refused(message) => Some(message),
                RefusedBy(minors, message) => minors.contains(&minor).then_some(message),
            };
            let message = plane.client().create(&path, &object).err().map(|refusal| refusal.to_string());
            let right = match (&message, expected) {
                (None, None) => true,
                (Some(message), Some(expected)) => message.contains(expected),
                _ => false,
            };
            if !right {
                wrong.push(format!("0.{minor}, {what}: {message:?} instead of {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
