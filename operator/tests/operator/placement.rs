//! Tests of stages with their own resource requests, and of devices that pods request with ResourceClaims. The real
//! scheduler places the examples of docs/GPUS.md.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::shared;

/// Returns the spec of the example under this heading of docs/GPUS.md.
fn example(heading: &str) -> Value {
    let page = include_str!("../../../docs/GPUS.md");
    let (_, section) = page.split_once(heading).unwrap();
    let (_, block) = section.split_once("```yaml\n").unwrap();
    let (text, _) = block.split_once("```").unwrap();
    let object: Value = serde_saphyr::from_str(text).unwrap();
    object["spec"].clone()
}

#[test]
fn a_stage_runs_where_its_own_template_says() {
    let cluster = shared();
    let pools = [("node-0", "h200"), ("node-1", "h100")];
    for (node, pool) in pools {
        let path = format!("/api/v1/nodes/{node}");
        cluster.plane.client().patch(&path, &json!({"metadata": {"labels": {"pool": pool}}})).unwrap();
    }
    // the nodes of these tests have less memory than the example requests
    let text = example("### Unequal machines").to_string().replace("64Gi", "64Mi").replace("128Gi", "128Mi");
    cluster.create("unequal", serde_json::from_str(&text).unwrap());
    cluster.wait_running("unequal", 1);
    let placed = |attempt: &str| -> Vec<(Value, Value)> {
        let mut pods = cluster.pods("unequal");
        pods.retain(|pod| pod["metadata"]["labels"]["stagecoach.dev/attempt"] == attempt);
        pods.sort_by_key(|pod| pod["metadata"]["name"].to_string());
        let memory = |pod: &Value| pod["spec"]["containers"][0]["resources"]["limits"]["memory"].clone();
        pods.iter().map(|pod| (pod["spec"]["nodeName"].clone(), memory(pod))).collect()
    };
    let own = (json!("node-0"), json!("128Mi"));
    let common = (json!("node-1"), json!("64Mi"));
    assert_eq!(placed("1"), [own.clone(), common.clone(), common.clone()]);
    // the placement is the same after a failure
    cluster.kubelet.pod("unequal-1-1").exit(1, "");
    cluster.wait_running("unequal", 2);
    assert_eq!(placed("2"), [own, common.clone(), common]);
    // a new template for one stage starts a new attempt, and the condition reports the template's invalid field
    cluster.edit("unequal", json!({"template": {"stages": [{"stage": 2, "spec": {"containers": "none"}}]}}));
    let refused = |job: &Value| {
        let scheduled = crate::support::condition_of(job, "Scheduled");
        scheduled.is_some_and(|condition| ["BadRequest", "Invalid"].iter().any(|reason| condition["reason"] == *reason))
    };
    cluster.wait("unequal", "refused", refused);
}

#[test]
fn claims_are_passed_through_and_each_stage_gets_a_device() {
    let cluster = shared();
    let api = "/apis/resource.k8s.io/v1";
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}});
    cluster.plane.client().create(&format!("{api}/deviceclasses"), &class).unwrap();
    for node in ["node-0", "node-1"] {
        let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node},
            "spec": {"driver": "gpu.example.com", "nodeName": node, "devices": [{"name": "gpu-0"}],
                     "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}});
        cluster.plane.client().create(&format!("{api}/resourceslices"), &slice).unwrap();
    }
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}});
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "one-gpu"},
        "spec": {"spec": {"devices": {"requests": [request]}}}});
    cluster.plane.client().create(&format!("{api}/namespaces/default/resourceclaimtemplates"), &template).unwrap();
    cluster.create("claiming", example("### Claims (DRA)"));
    cluster.wait_running("claiming", 1);
    let devices = || -> Vec<String> {
        let claims = cluster.plane.client().list(&format!("{api}/namespaces/default/resourceclaims"));
        let of_job = claims.iter().filter(|claim| claim["metadata"]["name"].to_string().contains("claiming-"));
        let mut devices: Vec<_> =
            of_job.map(|claim| claim["status"]["allocation"]["devices"]["results"][0]["pool"].to_string()).collect();
        devices.sort();
        devices
    };
    assert_eq!(devices(), ["\"node-0\"", "\"node-1\""], "one device a node, so that each pod has one of its own");
    // claims are deleted with their pods, so that the next attempt finds the devices free
    cluster.kubelet.pod("claiming-1-1").exit(1, "");
    cluster.wait_running("claiming", 2);
    until("the claims of the first attempt to go", || (devices().len() == 2).then_some(()));
}
