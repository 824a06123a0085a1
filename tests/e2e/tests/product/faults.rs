//! Stages that die in every way a cluster has, each at a random moment; and the operator with them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

/// Bytes that are left to a trainer before it has none.
const SPARE: u64 = 1 << 20;

/// How a stage is lost.
const FAULTS: [&str; 4] = ["delete", "delete --force", "kill -9", "out of memory"];

#[test]
#[ignore = "needs a node: make e2e"]
fn a_job_that_loses_stages_comes_to_the_same_end() {
    let product = Product::take();
    lose_stages(&product, "faulted", false);
}

#[test]
#[ignore = "needs a node: make e2e"]
fn also_when_the_operator_dies_with_them() {
    let product = Product::take();
    lose_stages(&product, "faulted-blind", true);
}

fn lose_stages(product: &Product, name: &str, with_operator: bool) {
    let mut draws = RandomFaults::new();
    let job = E2eJob::apply(product, name, json!({}));
    for (n, fault) in FAULTS.into_iter().enumerate() {
        let attempt = n as u64 + 1;
        job.wait_running(attempt);
        job.wait_step(job.step() + 1 + draws.below(40));
        let stage = draws.below(3) as u32;
        println!("{name}: {fault} of stage {stage} at step {}", job.step());
        lose(product, &job, fault, stage);
        if with_operator {
            product.kill_operators();
        }
        let after = job.wait("at the next attempt", |job| job["status"]["attempt"]["number"] == attempt + 1);
        let failure = &after["status"]["lastFailure"];
        println!("{name}: {} {}", failure["reason"], failure["message"]);
        match fault {
            // all left together, with a checkpoint: none of them is to blame
            // unless nobody was there to see how they left
            "delete" => assert!(failure["reason"] == "Drained" || with_operator, "{failure:#}"),
            "out of memory" => {
                assert_eq!((&failure["reason"], &failure["stage"]), (&json!("OutOfMemory"), &json!(stage)))
            }
            _ => assert_eq!(failure["stage"], stage, "{failure:#}"),
        }
    }
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
    assert_eq!(job.attempt(), FAULTS.len() as u64 + 1);
}

fn lose(product: &Product, job: &E2eJob, fault: &str, stage: u32) {
    let pod = job.pod(stage);
    match fault {
        "delete" => drop(product.kubectl(&["delete", "pod", &pod, "--wait=false"])),
        "delete --force" => drop(product.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"])),
        "kill -9" => job.trainer(stage).kill(),
        _ => {
            let trainer = job.trainer(stage);
            let attempt = job.attempt();
            let starved = trainer.starve(SPARE);
            job.wait("restarted for want of memory", |job| job["status"]["attempt"]["number"] != attempt);
            drop(starved);
        }
    }
}

/// Draws from a seed that is printed: STAGECOACH_SEED repeats them.
struct RandomFaults(u64);

impl RandomFaults {
    fn new() -> RandomFaults {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("STAGECOACH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        println!("STAGECOACH_SEED={seed}");
        RandomFaults(seed)
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        // Knuth's multiplier; the upper bits are the random ones
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
