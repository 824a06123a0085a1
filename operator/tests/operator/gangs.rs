//! Tests of the PodGroups of Volcano and of coscheduling, with the CRDs of these schedulers.

use serde_json::{Value, json};
use stagecoach_cluster::{tool, until};

use crate::support::{TestCluster, condition_of, exclusive, has_condition};

/// Installs the CRD `name` from `file`, which is in the same folder as the tool `controller-gen`. Waits until the API
/// server serves the CRD.
fn install(cluster: &TestCluster, file: &str, name: &str) {
    let crd = tool("controller-gen").canonicalize().unwrap().with_file_name(file);
    cluster.plane.apply(&std::fs::read_to_string(crd).unwrap());
    cluster.plane.wait_for_crd(name);
}

fn pod_group(cluster: &TestCluster, api: &str, name: &str) -> Option<Value> {
    cluster.plane.get(&format!("/apis/{api}/namespaces/default/podgroups/{name}"))
}

/// Restarts a job. Checks that the new attempt has a new PodGroup, and that the old PodGroup disappears.
fn restart(cluster: &TestCluster, api: &str, job: &str) {
    cluster.kubelet.pod(&format!("{job}-1-1")).exit(1, "");
    cluster.wait_running(job, 2);
    assert_eq!(pod_group(cluster, api, &format!("{job}-2")).unwrap()["spec"]["minMember"], 2);
    until("the old PodGroup to go", || pod_group(cluster, api, &format!("{job}-1")).is_none().then_some(()));
}

#[test]
fn pod_groups_of_volcano_and_coscheduling_fit_their_crds() {
    const VOLCANO: &str = "scheduling.volcano.sh/v1beta1";
    const COSCHEDULING: &str = "scheduling.x-k8s.io/v1alpha1";
    let cluster = exclusive();
    let gang = |gang: &str| json!({"scheduling": {"gang": gang}});

    // the API server does not serve the CRDs yet
    for (job, name) in [("unserved-v", "Volcano"), ("unserved-c", "Coscheduling")] {
        cluster.create(job, gang(name));
        let job_object = cluster.wait(job, "refused", |job| has_condition(job, "Scheduled", "False", "GangNotServed"));
        let message = condition_of(&job_object, "Scheduled").unwrap()["message"].to_string();
        assert!(message.contains(&format!("spec.scheduling.gang is {name}")), "{message}");
        assert!(cluster.pods(job).is_empty());
        assert_eq!(job_object["status"]["restarts"]["total"], 0);
        cluster.plane.client().delete(&crate::support::path(job));
    }

    install(&cluster, "scheduling.volcano.sh_podgroups.yaml", "podgroups.scheduling.volcano.sh");
    install(&cluster, "scheduling.x-k8s.io_podgroups.yaml", "podgroups.scheduling.x-k8s.io");
    // the operator looks up the served APIs once a minute, and a new operator does so at once
    cluster.kill_operator();
    cluster.run_operator(&[]);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "volcanic"}, "value": 1000});
    cluster.plane.client().create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).unwrap();

    // Volcano's scheduler does not run in this cluster, so the template names another scheduler
    let template = json!({
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "research"}},
        "spec": {"schedulerName": "default-scheduler", "priorityClassName": "volcanic"},
    });
    cluster.create("volcanic", json!({"scheduling": {"gang": "Volcano"}, "template": template}));
    cluster.wait_running("volcanic", 1);
    let group = pod_group(&cluster, VOLCANO, "volcanic-1").unwrap();
    assert_eq!(group["spec"], json!({"minMember": 2, "queue": "research", "priorityClassName": "volcanic"}));
    assert_eq!(group["metadata"]["ownerReferences"][0]["name"], "volcanic");
    for pod in cluster.pods("volcanic") {
        assert_eq!(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"], "volcanic-1");
        assert_eq!((&pod["spec"]["priorityClassName"], &pod["spec"]["priority"]), (&json!("volcanic"), &json!(1000)));
    }
    restart(&cluster, VOLCANO, "volcanic");

    // a job without these settings gets Volcano's scheduler and the defaults of the CRD
    cluster.create("plain", gang("Volcano"));
    until("its pods", || (cluster.pods("plain").len() == 2).then_some(()));
    assert!(cluster.pods("plain").iter().all(|pod| pod["spec"]["schedulerName"] == "volcano"));
    assert_eq!(pod_group(&cluster, VOLCANO, "plain-1").unwrap()["spec"], json!({"minMember": 2, "queue": "default"}));

    cluster.create("plugged", gang("Coscheduling"));
    cluster.wait_running("plugged", 1);
    assert_eq!(pod_group(&cluster, COSCHEDULING, "plugged-1").unwrap()["spec"], json!({"minMember": 2}));
    let label = "scheduling.x-k8s.io/pod-group";
    assert!(cluster.pods("plugged").iter().all(|pod| pod["metadata"]["labels"][label] == "plugged-1"));
    restart(&cluster, COSCHEDULING, "plugged");
    for job in ["volcanic", "plain", "plugged"] {
        cluster.plane.client().delete(&crate::support::path(job));
    }
}
