//! A custom trainer: a program that reads torchrun's variables and does not use Stagecoach.

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product};

#[test]
#[ignore = "needs a node: make e2e"]
fn a_custom_trainer_fails_once_and_completes() {
    let product = Product::take();
    let env = json!([{"name": "FAIL_ONCE", "value": "1"}]);
    let container = json!([{"name": "trainer", "image": "localhost/stagecoach-probe:e2e", "env": env}]);
    let job = E2eJob::apply(
        &product,
        "custom",
        json!({
            "trainer": {"type": "Custom"}, "model": null, "data": null, "training": null, "checkpoint": null,
            "template": {"spec": {"containers": container}},
        }),
    );
    let done = job.wait_phase("Complete");
    assert_eq!(done["status"]["attempt"]["number"], 2);
    assert_eq!(done["status"]["restarts"]["counted"], 1);
    assert_eq!(done["status"]["lastFailure"]["stage"], 1, "{:#}", done["status"]);
    let log = product.kubectl(&["logs", &job.pod(0)]);
    // in round N, rank 0 sends N, rank 1 sends 2N and rank 2 sends 3N, so the numbers of round 3 sum to 18
    assert!(log.contains("round 3 sums to 18"), "{log}");
}
