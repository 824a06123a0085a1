//! An operator of some namespaces: each of them, and no other.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use serde_json::{Value, json};
use stagecoach_cluster::Settings;
use support::Scene;

#[test]
fn two_of_three_namespaces_are_looked_after() {
    let scene = Scene::without_operator(Settings::default());
    for namespace in ["a", "b", "c"] {
        scene.plane.create_namespace(namespace);
        support::volume(&scene.plane, namespace);
        scene.create(&format!("{namespace}/job"), json!({}));
    }
    scene.run_operator(&[("STAGECOACH_NAMESPACES", "a,b")]);
    scene.wait_running("a/job", 1);
    scene.wait_running("b/job", 1);
    // what happens in the one is none of the other's
    scene.kubelet.pod("b/job-1-1").exit(1, "");
    scene.wait_running("b/job", 2);
    assert_eq!(scene.job("a/job").unwrap()["status"]["attempt"]["number"], 1);
    assert_eq!(scene.job("c/job").unwrap()["status"], Value::Null);
    assert!(scene.pods("c/job").is_empty());
}
