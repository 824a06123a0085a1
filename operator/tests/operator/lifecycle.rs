//! Tests of the lifecycle of a job: creation, completion, scaling, suspension, deletion.

use serde_json::{Value, json};
use stagecoach_cluster::until;

use crate::support::{has_condition, path, shared};

#[test]
fn a_job_runs_and_completes() {
    let cluster = shared();
    cluster.create("plain", json!({}));
    let job = cluster.wait_running("plain", 1);
    assert_eq!(job["status"]["stages"], 2);
    assert_eq!(job["status"]["attempt"]["image"], "example.com/trainer:1");
    assert!(has_condition(&job, "Running", "True", "AllReady"), "{:#}", job["status"]);
    cluster.finish("plain", 1, 2);
    let job = cluster.wait_phase("plain", "Complete");
    assert!(has_condition(&job, "Complete", "True", "Complete"));
    assert!(job["status"]["completionTime"].is_string());
    until("its events", || (cluster.events("plain") == ["AttemptStarted", "Running", "Complete"]).then_some(()));
    // the job's pods are kept for their logs, and are deleted with the job
    assert_eq!(cluster.pods("plain").len(), 2);
    cluster.plane.client().delete(&path("plain"));
    until("the pods to go with their job", || cluster.pods("plain").is_empty().then_some(()));
}

#[test]
fn the_job_owns_its_objects_and_pods() {
    let cluster = shared();
    let job =
        cluster.create("owned", json!({"template": {"metadata": {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}}}));
    cluster.wait_running("owned", 1);
    let objects = [
        "/api/v1/namespaces/default/services/owned",
        "/api/v1/namespaces/default/configmaps/owned-1",
        "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/owned",
        "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/owned-1",
        "/api/v1/namespaces/default/pods/owned-0-1",
        "/api/v1/namespaces/default/pods/owned-1-1",
    ];
    for object in objects {
        let there = cluster.plane.get(object).unwrap_or_else(|| panic!("{object} does not exist"));
        let owner = &there["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&job["metadata"]["uid"], &json!(true)), "{object}");
    }
    let pods = cluster.pods("owned");
    assert!(pods.iter().all(|pod| pod["spec"]["schedulingGroup"]["podGroupName"] == "owned-1"));
    assert!(pods.iter().all(|pod| pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] == "g"));
    let service = cluster.plane.get(objects[0]).unwrap();
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/stage"], "0");
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/attempt"], "1");
}

#[test]
fn scaling_drains_the_job_and_starts_an_attempt_with_the_new_stages() {
    let cluster = shared();
    cluster.create("scaled", json!({}));
    cluster.wait_running("scaled", 1);
    let scale = json!({"spec": {"replicas": 3}});
    let scaled = format!("{}/scale", path("scaled"));
    cluster.plane.client().patch(&scaled, &scale).unwrap_or_else(|e| panic!("{e}"));
    let job = cluster.wait_running("scaled", 2);
    assert_eq!(job["status"]["attempt"]["stages"], 3);
    assert_eq!(job["status"]["restarts"]["total"], 0, "a change of the number of stages must not count as a restart");
    assert_eq!(cluster.pod_names("scaled"), ["scaled-0-2", "scaled-1-2", "scaled-2-2"]);
    // only the ConfigMap of the newest attempt is kept
    until("the old ConfigMap to go", || {
        cluster.plane.get("/api/v1/namespaces/default/configmaps/scaled-1").is_none().then_some(())
    });
    assert!(cluster.plane.get("/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups/scaled-1").is_none());
    let service = cluster.plane.get("/api/v1/namespaces/default/services/scaled").unwrap();
    assert_eq!(service["spec"]["selector"]["stagecoach.dev/attempt"], "2");
}

#[test]
fn a_stage_that_was_still_starting_holds_up_no_restart() {
    let cluster = shared();
    let slow = json!({
        "metadata": {"annotations": {"stagecoach.test/behaviour": "run 3600000"}},
        "spec": {"terminationGracePeriodSeconds": 99},
    });
    cluster.create("starting", json!({"template": slow, "stages": 3}));
    cluster.wait_running("starting", 1);
    cluster.kubelet.pod("starting-1-1").set_ready(false);
    cluster.wait("starting", "with a stage that is not ready", |job| job["status"]["readyStages"] == 2);
    cluster.kubelet.pod("starting-0-1").exit(1, "");
    // after the failure, a pod that is not ready gets one second, and a ready pod gets 10 seconds of its grace period
    for (name, grace_seconds) in [("starting-1-1", 1), ("starting-2-1", 10)] {
        let pod = cluster.kubelet.pod(name);
        assert_eq!(until("its end to be asked for", || pod.grace_seconds()), grace_seconds, "{name}");
        pod.exit(143, "");
    }
    cluster.wait_running("starting", 2);
}

#[test]
fn a_drain_has_the_grace_period_that_its_attempt_was_started_with() {
    let cluster = shared();
    let slow = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "run 3600000"}}});
    cluster.create("graceful", json!({"template": slow, "stages": 1}));
    cluster.edit("graceful", json!({"template": {"spec": {"terminationGracePeriodSeconds": 777}}}));
    let grace = |pod: &Value| pod["spec"]["terminationGracePeriodSeconds"] == 777;
    cluster.wait("graceful", "running with its grace", |job| {
        job["status"]["phase"] == "Running" && cluster.pods("graceful").iter().all(grace)
    });
    cluster.edit("graceful", json!({"template": {"spec": {"terminationGracePeriodSeconds": 1}}}));
    cluster.wait_phase("graceful", "Draining");
    let pod = until("its pod to terminate", || {
        cluster.pods("graceful").into_iter().find(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    });
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 777);
    cluster.kubelet.pod(pod["metadata"]["name"].as_str().unwrap()).exit(143, "");
    let pods = |job: &Value| job["status"]["phase"] == "Running" && !cluster.pods("graceful").iter().any(grace);
    cluster.wait("graceful", "running with the new grace", pods);
}

#[test]
fn a_job_created_suspended_waits_and_its_template_may_be_edited() {
    let cluster = shared();
    cluster.create("queued", json!({"suspend": true}));
    let job = cluster.wait_phase("queued", "Suspended");
    assert!(has_condition(&job, "Suspended", "True", "Suspended"));
    assert!(cluster.pods("queued").is_empty());
    cluster.edit("queued", json!({"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}}));
    cluster.edit("queued", json!({"suspend": false}));
    cluster.wait_running("queued", 1);
    assert!(cluster.pods("queued").iter().all(|pod| pod["spec"]["nodeName"] == "node-1"));
    // when suspended again, the job saves and terminates
    cluster.edit("queued", json!({"suspend": true}));
    cluster.wait_phase("queued", "Suspended");
    until("the pods to go", || cluster.pods("queued").is_empty().then_some(()));
    cluster.edit("queued", json!({"suspend": false}));
    let job = cluster.wait_running("queued", 2);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn a_finished_job_is_deleted_after_its_ttl() {
    let cluster = shared();
    cluster.create("brief", json!({"ttlSecondsAfterFinished": 3600}));
    cluster.wait_running("brief", 1);
    cluster.finish("brief", 1, 2);
    cluster.wait_phase("brief", "Complete");
    // the first TTL keeps the job until the test has observed its end; the new TTL is already over
    cluster.edit("brief", json!({"ttlSecondsAfterFinished": 0}));
    until("the job to go", || cluster.job("brief").is_none().then_some(()));
    until("its pods to go", || cluster.pods("brief").is_empty().then_some(()));
}

#[test]
fn a_deadline_ends_a_job() {
    let cluster = shared();
    cluster.create("late", json!({"activeDeadlineSeconds": 3}));
    let job = cluster.wait_phase("late", "Failed");
    assert!(has_condition(&job, "Failed", "True", "DeadlineExceeded"));
    until("the pods to be deleted", || cluster.pods("late").is_empty().then_some(()));
}

#[test]
fn a_job_managed_by_another_controller_is_left_alone() {
    let cluster = shared();
    let others = [("of-multikueue", "kueue.x-k8s.io/multikueue"), ("of-another", "example.com/another-controller")];
    for (name, manager) in others {
        cluster.create(name, json!({ "managedBy": manager }));
    }
    cluster.create("ours-after-it", json!({}));
    cluster.wait_running("ours-after-it", 1);
    for (name, _) in others {
        assert_eq!(cluster.job(name).unwrap()["status"], Value::Null, "{name}");
        assert!(cluster.pods(name).is_empty(), "{name}");
    }
}
