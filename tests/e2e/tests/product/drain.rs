//! `kubectl drain`: all stages save after the same step and exit, and the job continues when the node is uncordoned.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_cluster::until;
use stagecoach_e2e::{Cordoned, E2eJob, Product, on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_drained_node_loses_no_step() {
    let product = Product::take();
    let job = E2eJob::apply(&product, "drained", json!({}));
    job.wait_running(1);
    job.wait_step(job.step() + 10);
    let cordoned = Cordoned::new(&product.node);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let node = product.node.name();
            product.kubectl(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])
        });
        // the kubelet writes a container's exit before it deletes the pod
        let mut ends: BTreeMap<String, Value> = BTreeMap::new();
        until("all stages to end", || {
            for pod in job.all_pods() {
                let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
                if !ended.is_null() {
                    ends.insert(pod["metadata"]["name"].as_str().unwrap().to_owned(), ended.clone());
                }
            }
            (ends.len() == 3).then_some(())
        });
        drain.join().unwrap();
        let reported: Vec<Value> = ends
            .iter()
            .map(|(pod, end)| {
                assert_eq!(end["exitCode"], 143, "{pod}: {end:#}");
                serde_json::from_str(end["message"].as_str().unwrap()).unwrap()
            })
            .collect();
        // stage 0 commits the checkpoint
        let saved = reported[0]["checkpoint"]["step"].as_u64().unwrap();
        assert!(reported.iter().all(|reported| reported["step"] == saved), "{reported:#?}");
        assert!(job.folder.join(format!("checkpoints/step-{saved:08}/manifest.json")).exists());
    });
    drop(cordoned);
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    // `restarts.counted` depends on whether an operator saw the drain, since the drain also evicts the operator
    assert_eq!(job.get()["status"]["restarts"]["total"], 1);
}
