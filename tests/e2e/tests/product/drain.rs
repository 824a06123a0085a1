//! `kubectl drain`: all stages save at one step and leave; uncordoned, the node gets them back.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use stagecoach_cluster::until;
use stagecoach_e2e::{Job, Product, on_this_machine};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_drained_node_loses_no_step() {
    let product = Product::take();
    let job = Job::apply(&product, "drained", json!({}));
    job.wait_running(1);
    job.wait_step(job.step() + 10);
    let cordoned = Cordoned(&product);
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| {
            let node = product.node.name();
            product.kubectl(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"])
        });
        // the kubelet writes how a container ended before its pod goes
        let mut ends: BTreeMap<String, Value> = BTreeMap::new();
        until("all stages to end", 120, || {
            for pod in
                product.node.client().list("/api/v1/namespaces/training/pods?labelSelector=stagecoach.dev/job=drained")
            {
                let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
                if !ended.is_null() {
                    ends.insert(pod["metadata"]["name"].as_str().unwrap().to_owned(), ended.clone());
                }
            }
            (ends.len() == 3).then_some(())
        });
        drain.join().unwrap();
        let mut steps = Vec::new();
        for (pod, end) in &ends {
            assert_eq!(end["exitCode"], 143, "{pod}: {end:#}");
            let told: Value = serde_json::from_str(end["message"].as_str().unwrap()).unwrap();
            steps.push(
                told["checkpoint"]["step"].as_u64().unwrap_or_else(|| panic!("{pod} names no checkpoint: {told}")),
            );
        }
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
        assert!(job.folder.join(format!("checkpoints/step-{:08}/manifest.json", steps[0])).exists());
    });
    drop(cordoned);
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.get()["status"]["restarts"]["counted"], 0);
}

/// Until it is dropped, the node takes no pods: those of the next test either, if this one fails.
struct Cordoned<'p>(&'p Product);

impl Drop for Cordoned<'_> {
    fn drop(&mut self) {
        let _ = self.0.node.kubectl(&["uncordon", self.0.node.name()], "");
    }
}
