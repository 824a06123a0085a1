//! The API server restarts, and the operator is away while things happen.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use serde_json::json;
use support::Scene;

#[test]
fn what_happened_meanwhile_is_caught_up_with() {
    let scene = Scene::start();
    scene.create("kept", json!({}));
    scene.create("failing", json!({}));
    scene.wait_running("kept", 1);
    scene.wait_running("failing", 1);
    scene.plane.restart_api_server();
    scene.create("later", json!({}));
    scene.wait_running("later", 1);
    scene.kill_operator();
    scene.kubelet.pod("failing-1-1").exit(1, "");
    scene.edit("later", json!({"stages": 1}));
    scene.run_operator(&[]);
    let failing = scene.wait_running("failing", 2);
    assert_eq!(
        (&failing["status"]["lastFailure"]["stage"], &failing["status"]["restarts"]["total"]),
        (&json!(1), &json!(1))
    );
    scene.wait_running("later", 2);
    // adopted as it was
    let kept = scene.wait_running("kept", 1);
    assert_eq!(kept["status"]["restarts"]["total"], 0);
    assert!(scene.operators_live());
}
