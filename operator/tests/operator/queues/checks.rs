//! Tests of admission checks. A job waits for its checks, and its pods get the changes that the checks request.

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, API, cluster_queue, collection, local_queue, resource_flavor};
use stagecoach_cluster::until;

use super::{QueuedCluster, message, queued, without_slices};
use crate::support::has_condition;

const HOST: &str = "kubernetes.io/hostname";

/// Creates a queue with a quota of four pods and with an admission check of the same name. The test acts as the
/// controller of the check.
fn checked_queue(queues: &QueuedCluster, name: &str, flavor: Value) {
    let client = queues.cluster.plane.client();
    let check = json!({"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": name}, "spec": {"controllerName": "test.example.com/check"}});
    let checks = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": name}]}});
    kueue::create(
        client,
        &[
            check,
            resource_flavor(name, flavor),
            cluster_queue(name, &[(name, json!({"pods": 4}))], checks),
            local_queue(name, name),
        ],
    );
    let active = json!({
        "type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let path = format!("{}/{name}/status", collection("AdmissionCheck", ""));
    client.patch(&path, &json!({"status": {"conditions": [active]}})).unwrap();
}

/// Waits until Kueue asks for the check of a job, and then answers as the check's controller. `updates` are the changes
/// that the check makes to the pods.
fn answer(queues: &QueuedCluster, job: &str, check: &str, updates: Value) {
    let workload = until("the check to be asked", || {
        let workload = queues.workload(job)?;
        (workload["status"]["admissionChecks"][0]["state"] == "Pending").then_some(workload)
    });
    let answer = json!({
        "name": check, "state": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "podSetUpdates": updates,
    });
    let path =
        format!("{}/{}/status", collection("Workload", "default"), workload["metadata"]["name"].as_str().unwrap());
    queues.cluster.plane.client().patch(&path, &json!({"status": {"admissionChecks": [answer]}})).unwrap();
}

#[test]
fn pods_get_the_changes_of_an_admission_check() {
    let (queues, cluster) = (queued(), &queued().cluster);
    checked_queue(queues, "checked", json!({}));
    queues.create("checked", "checked", json!({"spec": {"spares": 1, "restart": {"reformTimeoutSeconds": 60}}}));
    let waits = |job: &Value| message(job, "Admitted").contains("it waits for its admission checks");
    cluster.wait("checked", "waiting for the check", waits);
    assert!(cluster.pods("checked").is_empty());
    let toleration = json!({"key": "reserved", "operator": "Exists", "effect": "NoSchedule"});
    let of_stages = json!({
        "name": "stages",
        "labels": {"example.com/label": "of-stages"},
        "annotations": {"example.com/annotation": "of-stages"},
        "nodeSelector": {HOST: "node-1"},
        "tolerations": [toleration],
    });
    let of_spares = json!({"name": "spares", "labels": {"example.com/label": "of-spares"}});
    answer(queues, "checked", "checked", json!([of_stages, of_spares]));
    cluster.wait_running("checked", 1);
    let pods = until("the spare", || Some(cluster.pods("checked")).filter(|pods| pods.len() == 3));
    for pod in pods {
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        let is_spare = metadata["name"].as_str().unwrap().contains("spare");
        let of = if is_spare { "of-spares" } else { "of-stages" };
        assert_eq!(metadata["labels"]["example.com/label"], of);
        let has_toleration = spec["tolerations"].as_array().unwrap().contains(&toleration);
        let selector = &spec["nodeSelector"][HOST];
        let annotation = &metadata["annotations"]["example.com/annotation"];
        assert_eq!(
            (selector == "node-1", annotation == "of-stages", has_toleration),
            (!is_spare, !is_spare, !is_spare),
            "{pod:#}"
        );
    }
}

#[test]
fn a_contradiction_of_an_admission_check_starts_no_pod() {
    let (queues, cluster) = (queued(), &queued().cluster);
    checked_queue(queues, "contradicted", json!({"nodeLabels": {HOST: "node-2"}}));
    let refused = |job: &str, changes: Value, updates: Value, expected: &str| {
        queues.create(job, "contradicted", changes);
        answer(queues, job, "contradicted", updates);
        let contradictory = |object: &Value| has_condition(object, "Scheduled", "False", "ContradictoryAdmission");
        let object = cluster.wait(job, "refused", contradictory);
        assert!(message(&object, "Scheduled").contains(expected), "{}", message(&object, "Scheduled"));
        assert!(cluster.pods(job).is_empty());
        cluster.plane.client().delete(&crate::support::path(job));
    };
    let on_other_node = json!([{"name": "stages", "nodeSelector": {HOST: "node-1"}}]);
    let expected = "sets kubernetes.io/hostname of its pods to both node-2 and node-1";
    refused("against-the-flavor", json!({}), on_other_node, expected);

    let labelled = json!({"spec": {"template": {"metadata": {"labels": {"team": "a"}}}}});
    let other_label = json!([{"name": "stages", "labels": {"team": "b"}}]);
    let expected =
        "the admission check contradicted sets team of the pods of stages to b, and spec.template sets team to a";
    refused("against-the-template", labelled, other_label, expected);
}

/// The part of the cluster autoscaler's API that Kueue needs.
const PROVISIONING_REQUESTS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: provisioningrequests.autoscaling.x-k8s.io
  annotations: {api-approved.kubernetes.io: https://github.com/kubernetes/autoscaler/pull/5848}
spec:
  group: autoscaling.x-k8s.io
  names: {kind: ProvisioningRequest, listKind: ProvisioningRequestList, plural: provisioningrequests, singular: provisioningrequest}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// Kueue creates the ProvisioningRequest, the test answers as the autoscaler, and Kueue then requests annotations for
/// the pods.
#[test]
fn pods_consume_the_nodes_that_an_autoscaler_provisions() {
    let (queues, cluster) = (without_slices(), &without_slices().cluster);
    let client = cluster.plane.client();
    cluster.plane.apply(PROVISIONING_REQUESTS);
    cluster.plane.wait_for_crd("provisioningrequests.autoscaling.x-k8s.io");
    // Kueue looks for this API only at its start
    queues.kueue.kill();
    queues.kueue.run();
    let class = "check-capacity.autoscaling.x-k8s.io";
    let parameters = json!({"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "nodes"});
    let controller = json!({"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters});
    let checks = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": "nodes"}]}});
    kueue::create(
        client,
        &[
            json!({"apiVersion": API, "kind": "ProvisioningRequestConfig", "metadata": {"name": "nodes"}, "spec": {"provisioningClassName": class}}),
            json!({"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "nodes"}, "spec": controller}),
            cluster_queue("nodes", &[("default", json!({"cpu": 4}))], checks),
            local_queue("nodes", "nodes"),
        ],
    );
    let container = json!({"name": "trainer", "resources": {"requests": {"cpu": "1"}}});
    queues.create("provisioned", "nodes", json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
    let requests = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests";
    let request = until("the request for nodes", || client.list(requests).into_iter().next());
    assert_eq!(request["spec"]["podSets"][0]["count"], 2, "{request:#}");
    assert!(cluster.pods("provisioned").is_empty());
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let name = request["metadata"]["name"].as_str().unwrap();
    let answer = json!({"status": {"conditions": [condition("Accepted"), condition("Provisioned")]}});
    client.patch(&format!("{requests}/{name}/status"), &answer).unwrap();
    cluster.wait_running("provisioned", 1);
    for pod in cluster.pods("provisioned") {
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations["autoscaling.x-k8s.io/consume-provisioning-request"], name, "{annotations}");
        assert_eq!(annotations["autoscaling.x-k8s.io/provisioning-class-name"], class, "{annotations}");
    }
}
