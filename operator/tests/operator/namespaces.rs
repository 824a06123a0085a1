//! An operator of some namespaces: each of them, and no other.

use crate::support::TestCluster;
use serde_json::{Value, json};
use stagecoach_cluster::Settings;

#[test]
fn two_of_three_namespaces_are_watched() {
    let cluster = TestCluster::without_operator(Settings::default());
    for namespace in ["a", "b", "c"] {
        cluster.plane.create_namespace(namespace);
        crate::support::volume(&cluster.plane, namespace);
        cluster.create(&format!("{namespace}/job"), json!({}));
    }
    cluster.run_operator(&[("STAGECOACH_NAMESPACES", "a,b")]);
    cluster.wait_running("a/job", 1);
    cluster.wait_running("b/job", 1);
    // events in one do not affect the other
    cluster.kubelet.pod("b/job-1-1").exit(1, "");
    cluster.wait_running("b/job", 2);
    assert_eq!(cluster.job("a/job").unwrap()["status"]["attempt"]["number"], 1);
    assert_eq!(cluster.job("c/job").unwrap()["status"], Value::Null);
    assert!(cluster.pods("c/job").is_empty());
}
