//! Tests of the condition `Scheduled`, which shows why objects can't be created or pods can't be scheduled.

use serde_json::{Value, json};

use crate::support::{condition_of, has_condition, shared};

#[test]
fn an_image_pull_error_is_reported_at_once() {
    let cluster = shared();
    let error = json!({"metadata": {"annotations": {"stagecoach.test/behaviour": "image-pull-error"}}});
    cluster.create("unpulled", json!({"template": error}));
    let pull = |job: &Value| {
        let scheduled = condition_of(job, "Scheduled");
        scheduled.is_some_and(|condition| {
            ["ErrImagePull", "ImagePullBackOff"].iter().any(|reason| condition["reason"] == *reason)
        })
    };
    let job = cluster.wait("unpulled", "without its image", pull);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn a_missing_secret_is_named_until_it_exists() {
    let cluster = shared();
    cluster.create("tokenless", json!({"data": {"credentials": {"secretName": "hub"}}}));
    let job = cluster.wait("tokenless", "without its Secret", |job| {
        has_condition(job, "Scheduled", "False", "CreateContainerConfigError")
    });
    assert_eq!(condition_of(&job, "Scheduled").unwrap()["message"], "pod tokenless-0-1: secret \"hub\" not found");
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"}, "stringData": {"HF_TOKEN": "t"}});
    cluster.plane.client().create("/api/v1/namespaces/default/secrets", &secret).unwrap();
    cluster.wait_running("tokenless", 1);
    let token = |stage: u32| cluster.kubelet.pod(&format!("tokenless-{stage}-1")).view().env.get("HF_TOKEN").cloned();
    assert_eq!([token(0), token(1)], [Some("t".to_owned()), None]);
    // a change of the credentials starts a new attempt, whose pods have the new variables
    cluster.edit("tokenless", json!({"data": {"credentials": null}}));
    cluster.wait_running("tokenless", 2);
    assert_eq!(cluster.kubelet.pod("tokenless-0-2").view().env.get("HF_TOKEN"), None);
}

#[test]
fn an_unschedulable_pod_is_reported_at_once() {
    let cluster = shared();
    cluster.create(
        "placeless",
        json!({"scheduling": {"gang": "None"}, "template": {"spec": {"nodeSelector": {"nowhere": "true"}}}}),
    );
    let job =
        cluster.wait("placeless", "unschedulable", |job| has_condition(job, "Scheduled", "False", "Unschedulable"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("nodes are available"));
    cluster.edit("placeless", json!({"template": {"spec": {"nodeSelector": null}}}));
    cluster.wait_running("placeless", 2);
}

#[test]
fn pods_that_a_queue_holds_back_wait_for_it_and_keep_their_place() {
    let cluster = shared();
    let wants = |spec: Value| json!({"scheduling": {"gang": "None", "timeoutSeconds": 1}, "template": {"spec": spec}});
    cluster.create("held-back", wants(json!({"schedulingGates": [{"name": "example.com/queue"}]})));
    cluster.wait("held-back", "held back", |job| has_condition(job, "Scheduled", "False", "SchedulingGated"));
    let uids =
        || -> Vec<Value> { cluster.pods("held-back").iter().map(|pod| pod["metadata"]["uid"].clone()).collect() };
    let held = uids();
    // `roomless` has the same timeout, is created later and has no scheduling gate; when `roomless` has timed out,
    // `held-back` has also waited for longer than the timeout
    cluster.create("roomless", wants(json!({"nodeSelector": {"nowhere": "true"}})));
    let timed_out = |job: &Value| job["status"]["lastFailure"]["reason"] == "Unschedulable";
    cluster.wait("roomless", "timed out", |job| timed_out(job) && job["status"]["attempt"]["number"] == 2);
    assert_eq!((uids(), cluster.job("held-back").unwrap()["status"]["restarts"]["total"].clone()), (held, json!(0)));
    // a long timeout gives a busy machine time to place the pods
    cluster.edit_and_wait("held-back", json!({"scheduling": {"timeoutSeconds": 600}}));
    for pod in cluster.pods("held-back") {
        let path = format!("/api/v1/namespaces/default/pods/{}", pod["metadata"]["name"].as_str().unwrap());
        cluster.plane.client().patch(&path, &json!({"spec": {"schedulingGates": []}})).unwrap();
    }
    assert_eq!(cluster.wait_running("held-back", 1)["status"]["restarts"]["total"], 0);
}

#[test]
fn pods_are_restricted_and_rejections_by_admission_are_reported() {
    let cluster = shared();
    cluster.create_namespace("strict");
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    cluster.plane.client().patch("/api/v1/namespaces/strict", &label).unwrap();
    cluster.create("strict/good", json!({}));
    cluster.wait_running("strict/good", 1);
    let root = json!({"template": {"spec": {"securityContext": {"runAsNonRoot": false, "runAsUser": 0}}}});
    cluster.create("strict/bad", root);
    let job = cluster.wait("strict/bad", "refused", |job| has_condition(job, "Scheduled", "False", "Forbidden"));
    assert!(condition_of(&job, "Scheduled").unwrap()["message"].to_string().contains("violates PodSecurity"));
    assert!(cluster.pods("strict/bad").is_empty());
}

#[test]
fn an_exceeded_quota_is_reported_and_retried() {
    let cluster = shared();
    cluster.create_namespace("small");
    cluster.limit_pods("small", "none", 0);
    cluster.create("small/big", json!({}));
    let job = cluster.wait("small/big", "refused", |job| has_condition(job, "Scheduled", "False", "QuotaExceeded"));
    let message = condition_of(&job, "Scheduled").unwrap()["message"].to_string();
    assert!(message.contains("exceeded quota: none"), "{message}");
    // no pod exists that could hold resources, so the operator keeps the attempt until the quota controller observes
    // the change
    let more = json!({"spec": {"hard": {"pods": "10"}}});
    cluster.plane.client().patch("/api/v1/namespaces/small/resourcequotas/none", &more).unwrap();
    let job = cluster.wait_running("small/big", 1);
    assert_eq!(job["status"]["restarts"]["total"], 0);
}

#[test]
fn an_object_that_the_job_does_not_own_is_never_modified() {
    let cluster = shared();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "taken"},
        "spec": {"ports": [{"port": 1}], "selector": {"app": "other"}}});
    let services = "/api/v1/namespaces/default/services";
    cluster.plane.client().create(services, &service).unwrap();
    cluster.create("taken", json!({}));
    let job = cluster.wait("taken", "refused", |job| has_condition(job, "Scheduled", "False", "NameTaken"));
    let message = condition_of(&job, "Scheduled").unwrap()["message"].clone();
    assert!(
        message.as_str().unwrap().contains("the Service taken exists and does not belong to this job"),
        "{message}"
    );
    assert!(cluster.pods("taken").is_empty());
    let there = cluster.plane.get(&format!("{services}/taken")).unwrap();
    assert_eq!(there["spec"]["selector"], json!({"app": "other"}));
    cluster.plane.client().delete(&format!("{services}/taken"));
    cluster.wait_running("taken", 1);
}
