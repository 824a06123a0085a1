//! The API server restarts, and jobs change while the operator is down.

use crate::support::exclusive;
use serde_json::json;

#[test]
fn changes_during_an_outage_are_reconciled() {
    let cluster = exclusive();
    cluster.create("kept", json!({}));
    cluster.create("failing", json!({}));
    cluster.wait_running("kept", 1);
    cluster.wait_running("failing", 1);
    cluster.plane.restart_api_server();
    cluster.create("later", json!({}));
    cluster.wait_running("later", 1);
    cluster.kill_operator();
    cluster.kubelet.pod("failing-1-1").exit(1, "");
    cluster.edit("later", json!({"stages": 1}));
    cluster.run_operator(&[]);
    let failing = cluster.wait_running("failing", 2);
    assert_eq!(
        (&failing["status"]["lastFailure"]["stage"], &failing["status"]["restarts"]["total"]),
        (&json!(1), &json!(1))
    );
    cluster.wait_running("later", 2);
    // the running attempt is kept
    let kept = cluster.wait_running("kept", 1);
    assert_eq!(kept["status"]["restarts"]["total"], 0);
    assert!(cluster.operators_are_running());
}
