//! Tests of jobs whose annotations ask Kueue to run their stages on nodes that are close to each other in a topology.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use stagecoach_cluster::kueue::{self, cluster_queue, local_queue, resource_flavor, topology};
use stagecoach_cluster::until;

use super::queued;

const HOST: &str = "kubernetes.io/hostname";

fn in_topology(annotations: Value, changes: Value) -> Value {
    with_cpus("100m", annotations, changes)
}

/// Returns a job whose stages each request `cpus` CPUs. A node has 256 CPUs.
fn with_cpus(cpus: &str, annotations: Value, changes: Value) -> Value {
    let mut spec = changes;
    spec["template"] = json!({"metadata": {"annotations": annotations}, "spec": {
        "containers": [{"name": "trainer", "resources": {"requests": {"cpu": cpus}}}]}});
    json!({ "spec": spec })
}

/// Waits until the job has `count` pods, not counting deleted pods, and each of them has a node. Returns the names of
/// these nodes, ordered by the pods' ranks.
fn nodes(job: &str, count: usize) -> Vec<String> {
    until(&format!("the pods of {job} to be placed"), || {
        let mut pods = queued().cluster.pods(job);
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let rank =
            |pod: &Value| pod["metadata"]["labels"]["stagecoach.dev/rank"].as_str().unwrap().parse::<u32>().unwrap();
        pods.sort_by_key(rank);
        let node = |pod: &Value| Some(pod["spec"]["nodeName"].as_str()?.to_owned());
        pods.iter().map(node).collect::<Option<Vec<_>>>().filter(|nodes| nodes.len() == count)
    })
}

#[test]
fn stages_are_placed_where_their_annotations_ask() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let flavor = json!({"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": "hosts"});
    kueue::create(
        cluster.plane.client(),
        &[
            topology("hosts", &[HOST]),
            resource_flavor("hosts", flavor),
            cluster_queue("hosts", &[("hosts", json!({"cpu": 8}))], json!({})),
            local_queue("hosts", "hosts"),
        ],
    );
    // all stages are in one domain of the topology, which is a node here
    let required = json!({"kueue.x-k8s.io/podset-required-topology": HOST});
    queues.create("together", "hosts", in_topology(required, json!({"stages": 3})));
    cluster.wait_running("together", 1);
    let together: BTreeSet<String> = nodes("together", 3).into_iter().collect();
    assert_eq!(together.len(), 1);
    let request = &queues.workload("together").unwrap()["spec"]["podSets"][0]["topologyRequest"];
    assert_eq!(request, &json!({"required": HOST, "podIndexLabel": "stagecoach.dev/rank"}));

    // a replaced stage runs in the same domain
    cluster.kubelet.pod("together-1-1").exit(1, "");
    cluster.wait_running("together", 2);
    assert_eq!(nodes("together", 3).into_iter().collect::<BTreeSet<_>>(), together);

    // each replica is in one domain
    let slices = json!({"kueue.x-k8s.io/podset-slice-required-topology": HOST, "kueue.x-k8s.io/podset-unconstrained-topology": "true"});
    let replicas = json!({"dataParallel": 2, "training": {"gradientBlocks": 2}});
    queues.create("replicas", "hosts", in_topology(slices, replicas));
    cluster.wait_running("replicas", 1);
    let placed = nodes("replicas", 4);
    assert!(placed[0] == placed[1] && placed[2] == placed[3], "{placed:?}");
    let request = &queues.workload("replicas").unwrap()["spec"]["podSets"][0]["topologyRequest"];
    assert_eq!((&request["podSetSliceSize"], &request["podSetSliceRequiredTopology"]), (&json!(2), &json!(HOST)));
}

#[test]
fn a_preferred_domain_is_taken_if_the_stages_fit() {
    let (queues, cluster) = (queued(), &queued().cluster);
    let flavor = json!({"nodeLabels": {"kubernetes.io/os": "linux"}, "topologyName": "preferred"});
    kueue::create(
        cluster.plane.client(),
        &[
            topology("preferred", &[HOST]),
            resource_flavor("preferred", flavor),
            cluster_queue("preferred", &[("preferred", json!({"cpu": 600}))], json!({})),
            local_queue("preferred", "preferred"),
        ],
    );
    let preferred = json!({"kueue.x-k8s.io/podset-preferred-topology": HOST});
    queues.create("near", "preferred", in_topology(preferred.clone(), json!({"stages": 3})));
    cluster.wait_running("near", 1);
    assert_eq!(nodes("near", 3).into_iter().collect::<BTreeSet<_>>().len(), 1);
    let request = &queues.workload("near").unwrap()["spec"]["podSets"][0]["topologyRequest"];
    assert_eq!(request, &json!({"preferred": HOST, "podIndexLabel": "stagecoach.dev/rank"}));

    // two of these stages do not fit on one node
    queues.create("far", "preferred", with_cpus("150", preferred, json!({"stages": 2})));
    cluster.wait_running("far", 1);
    assert_eq!(nodes("far", 2).into_iter().collect::<BTreeSet<_>>().len(), 2);
    cluster.plane.client().delete(&crate::support::path("far"));
    let required = json!({"kueue.x-k8s.io/podset-required-topology": HOST});
    queues.create("nowhere-near", "preferred", with_cpus("150", required, json!({"stages": 2})));
    cluster.wait("nowhere-near", "waiting for one node", |job| {
        super::message(job, "Admitted").contains("topology \"preferred\" allows to fit only")
    });
}
