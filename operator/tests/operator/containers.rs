//! Tests of custom trainers, and of containers beside the trainer.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::shared;

#[test]
fn a_custom_trainer_gets_the_environment_and_no_config() {
    let cluster = shared();
    let own = json!({"containers": [{"name": "trainer", "image": "torch", "command": ["python", "train.py"]}, {"name": "logs", "image": "tail"}]});
    let spec = json!({"trainer": {"type": "Custom"}, "model": null, "data": null, "training": null, "template": {"spec": own}});
    cluster.create("own", spec);
    cluster.wait_running("own", 1);
    let view = cluster.kubelet.pod("own-1-1").view();
    assert_eq!(view.env["RANK"], "1");
    assert_eq!(view.env["WORLD_SIZE"], "2");
    assert_eq!((view.env["MASTER_ADDR"].as_str(), view.env["MASTER_PORT"].as_str()), ("own", "29500"));
    let pod = &cluster.pods("own")[0];
    assert!(!pod["spec"]["volumes"].to_string().contains("stagecoach-config"));
    cluster.finish("own", 1, 2);
    cluster.wait_phase("own", "Complete");
}

#[test]
fn a_sidecar_keeps_no_pod_of_a_finished_job() {
    let cluster = shared();
    let sidecar = json!({"containers": [{"name": "trainer"}, {"name": "mesh", "image": "mesh:1"}]});
    cluster.create("meshed", json!({"template": {"spec": sidecar}}));
    cluster.wait_running("meshed", 1);
    cluster.finish("meshed", 1, 2);
    cluster.wait_phase("meshed", "Complete");
    until("the pods to go", || cluster.pods("meshed").is_empty().then_some(()));
    assert_eq!(cluster.job("meshed").unwrap()["status"]["phase"], "Complete");
    // the pods are also deleted after a final failure
    cluster.create("broken", json!({"template": {"spec": sidecar}, "restart": {"maxRestarts": 0}}));
    cluster.wait_running("broken", 1);
    cluster.kubelet.pod("broken-0-1").log("the last words");
    cluster.kubelet.pod("broken-0-1").exit(1, "");
    cluster.wait_phase("broken", "Failed");
    let read = |job: &Value| job["status"]["lastFailure"]["logTail"] == "the last words\n";
    cluster.wait("broken", "read", read);
    until("the pods to go", || cluster.pods("broken").is_empty().then_some(()));
}

#[test]
fn a_native_sidecar_ends_by_itself_and_its_pod_stays() {
    let cluster = shared();
    let sidecar = json!([{"name": "logs", "image": "logs:1", "restartPolicy": "Always", "command": ["run", "2000"]}]);
    cluster.create("shipped", json!({"template": {"spec": {"initContainers": sidecar}}}));
    cluster.wait_running("shipped", 1);
    cluster.finish("shipped", 1, 2);
    cluster.wait_phase("shipped", "Complete");
    until("the sidecars to end", || {
        let pods = cluster.pods("shipped");
        assert_eq!(pods.len(), 2, "a pod was deleted while its sidecar ended");
        let is_over =
            |pod: &Value| pod["status"]["phase"] == "Succeeded" && pod["metadata"]["deletionTimestamp"].is_null();
        pods.iter().all(is_over).then_some(())
    });
}

/// A service mesh injects its container when the API server admits a pod. In this test, an admission policy injects a
/// container into the pods with the label `mesh: on`.
#[test]
fn a_job_stays_out_of_a_mesh_or_ends_in_spite_of_it() {
    let cluster = shared();
    let api = "/apis/admissionregistration.k8s.io/v1";
    let inject = r#"[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "mesh", image: "mesh:1"}}]"#;
    let label = |name: &str, value: &str| {
        format!(
            "has(object.metadata.labels) && '{name}' in object.metadata.labels && object.metadata.labels['{name}'] == '{value}'"
        )
    };
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "mesh"},
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "matchConditions": [
                {"name": "in-the-mesh", "expression": label("mesh", "on")},
                {"name": "not-out", "expression": format!("!({})", label("sidecar.istio.io/inject", "false"))},
            ],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": inject}}],
        },
    });
    cluster.plane.client().create(&format!("{api}/mutatingadmissionpolicies"), &policy).unwrap();
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "mesh"}, "spec": {"policyName": "mesh"}});
    cluster.plane.client().create(&format!("{api}/mutatingadmissionpolicybindings"), &binding).unwrap();
    let containers = |job: &str| -> Vec<usize> {
        cluster.pods(job).iter().map(|pod| pod["spec"]["containers"].as_array().unwrap().len()).collect()
    };
    let probe = json!({"metadata": {"name": "probe", "labels": {"mesh": "on"}}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "nowhere"}});
    until("the policy to hold", || {
        let pods = "/api/v1/namespaces/default/pods?dryRun=All";
        let pod = cluster.plane.client().create(pods, &probe).unwrap();
        (pod["spec"]["containers"].as_array().unwrap().len() == 2).then_some(())
    });

    let labels = |labels: Value| json!({"template": {"metadata": {"labels": labels}}});
    cluster.create("outside", labels(json!({"mesh": "on", "sidecar.istio.io/inject": "false"})));
    cluster.wait_running("outside", 1);
    assert_eq!(containers("outside"), [1, 1]);
    cluster.create("inside", labels(json!({"mesh": "on"})));
    cluster.wait_running("inside", 1);
    assert_eq!(containers("inside"), [2, 2]);
    // a restart does not wait for the sidecars, and the sidecars keep no pod at the end of the job
    cluster.kubelet.pod("inside-1-1").exit(1, "");
    cluster.wait_running("inside", 2);
    cluster.finish("inside", 2, 2);
    cluster.wait_phase("inside", "Complete");
    until("the pods to go", || cluster.pods("inside").is_empty().then_some(()));
}
