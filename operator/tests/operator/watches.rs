//! Tests of how the operator lists and watches pods: a starting operator lists them once, whatever the number of jobs,
//! and a failed watch is restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use stagecoach_cluster::{Fate, Proxy, until};

use crate::serving::{address, ask};
use crate::support::shared;

const JOBS: usize = 4;

/// Returns the value of an operator's metric.
fn metric(address: &str, name: &str) -> u64 {
    let text = ask(address, "GET /metrics", "");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or(0)
}

#[test]
fn an_operator_that_starts_lists_the_pods_of_all_jobs_once() {
    let cluster = shared();
    cluster.create_namespace("lists");
    let first = cluster.operator(cluster.kubeconfig(), &[("STAGECOACH_NAMESPACES", "lists")]);
    let name = |n: usize| format!("lists/job-{n}");
    for n in 0..JOBS {
        cluster.create(&name(n), json!({}));
    }
    for n in 0..JOBS {
        cluster.wait_running(&name(n), 1);
    }
    drop(first);
    let (proxy, lists) = (Proxy::start(cluster.kubeconfig(), cluster.plane.folder()), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&lists);
    proxy.rule(move |seen| {
        let is_list = seen.method == "GET" && !seen.watch && seen.path.ends_with("/pods");
        counted.fetch_add(usize::from(is_list), Ordering::Relaxed);
        Fate::Pass
    });
    let env = [("STAGECOACH_NAMESPACES", "lists"), ("STAGECOACH_LOG_FORMAT", "json")];
    let second = cluster.operator(proxy.kubeconfig(), &env);
    let address = address(&second);
    // each job is reconciled once for its objects and once for the report of its stage 0
    until("all jobs to be reconciled twice", || {
        (metric(&address, "stagecoach_reconcile_seconds_count") >= 2 * JOBS as u64).then_some(())
    });
    assert_eq!(lists.load(Ordering::Relaxed), 1);
    // before the operator writes anything for a job, it lists the pods of this job
    cluster.kubelet.pod("lists/job-2-1-1").exit(1, "");
    cluster.wait_running(&name(2), 2);
    assert!(lists.load(Ordering::Relaxed) > 1);
}

#[test]
fn a_watch_that_fails_is_counted_reported_and_begun_again() {
    let cluster = shared();
    cluster.create_namespace("watches");
    let proxy = Proxy::start(cluster.kubeconfig(), cluster.plane.folder());
    proxy.rule(|seen| match seen.watch && seen.path.ends_with("/pods") {
        true => Fate::Refuse(500),
        false => Fate::Pass,
    });
    let env = [("STAGECOACH_NAMESPACES", "watches"), ("STAGECOACH_LOG_FORMAT", "json")];
    let operator = cluster.operator(proxy.kubeconfig(), &env);
    let address = address(&operator);
    cluster.create("watches/job", json!({}));
    until("the failure to be counted", || {
        (metric(&address, "stagecoach_watch_errors_total{kind=\"Pod\"}") > 0).then_some(())
    });
    assert!(operator.log().contains("the watch of kind Pod failed and restarts"), "{}", operator.log());
    proxy.rule(|_| Fate::Pass);
    cluster.wait_running("watches/job", 1);
    cluster.kubelet.pod("watches/job-1-1").exit(1, "");
    cluster.wait_running("watches/job", 2);
}
