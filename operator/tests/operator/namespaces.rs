//! Tests of an operator that watches some namespaces and acts only in these namespaces.

use crate::support::shared;
use serde_json::{Value, json};

#[test]
fn two_of_three_namespaces_are_watched() {
    let cluster = shared();
    for namespace in ["a", "b", "c"] {
        cluster.create_namespace(namespace);
        cluster.create(&format!("{namespace}/job"), json!({}));
    }
    let _operator = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "a,b")]);
    cluster.wait_running("a/job", 1);
    cluster.wait_running("b/job", 1);
    // a failure in one namespace does not affect the job in the other
    cluster.kubelet.pod("b/job-1-1").exit(1, "");
    cluster.wait_running("b/job", 2);
    assert_eq!(cluster.job("a/job").unwrap()["status"]["attempt"]["number"], 1);
    assert_eq!(cluster.job("c/job").unwrap()["status"], Value::Null);
    assert!(cluster.pods("c/job").is_empty());
}
