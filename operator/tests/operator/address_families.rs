//! Tests of control planes whose Services and pods have IPv6 addresses.

use serde_json::{Value, json};
use stagecoach_cluster::{Component, ControlPlaneSettings};

use crate::support::{TestCluster, has_condition};

/// Starts a cluster whose API server has these flags, and an operator that listens on all addresses, as in the chart.
fn cluster(flags: &[&str]) -> TestCluster {
    let flags = flags.iter().map(|flag| (Component::ApiServer, (*flag).to_owned())).collect();
    let cluster = TestCluster::with_settings(ControlPlaneSettings { flags });
    cluster.run_operator(&[("STAGECOACH_LISTEN", "[::]:0")]);
    cluster
}

fn service(cluster: &TestCluster, job: &str) -> Value {
    cluster.plane.get(&format!("/api/v1/namespaces/default/services/{job}")).unwrap()["spec"].clone()
}

/// Runs a job of one stage at ::1, the only IPv6 address that every machine has. Checks that the operator reads the
/// status of the stage.
fn stage_at_an_ipv6_address(cluster: &TestCluster) {
    let at = json!({"metadata": {"annotations": {"stagecoach.test/address": "::1"}}});
    cluster.create("six", json!({"stages": 1, "template": at}));
    cluster.wait_running("six", 1);
    assert_eq!(cluster.pods("six")[0]["status"]["podIP"], "::1");
    let job = cluster.train_to("six", 1, 3);
    assert!(has_condition(&job, "Progressing", "True", "Training"), "{:#}", job["status"]);
    cluster.kubelet.pod("six-0-1").exit(0, "");
    cluster.wait_phase("six", "Complete");
}

#[test]
fn jobs_run_where_services_have_ipv6_alone() {
    let cluster = cluster(&["--service-cluster-ip-range=fd00:10:96::/112", "--advertise-address=fd00::1"]);
    cluster.create("many", json!({"stages": 2}));
    cluster.wait_running("many", 1);
    let service = service(&cluster, "many");
    assert_eq!(service["ipFamilies"], json!(["IPv6"]));
    assert!(service["clusterIP"].as_str().unwrap().starts_with("fd00:10:96::"), "{service}");
    stage_at_an_ipv6_address(&cluster);
}

#[test]
fn jobs_run_where_services_have_both_families() {
    let cluster = cluster(&["--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"]);
    cluster.create("many", json!({"stages": 2}));
    cluster.wait_running("many", 1);
    assert_eq!(service(&cluster, "many")["ipFamilies"], json!(["IPv4"]));
    stage_at_an_ipv6_address(&cluster);
}
