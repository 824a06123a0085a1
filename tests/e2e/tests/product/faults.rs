//! Tests of jobs that lose stages in several ways, each at a random step, while the operator runs or right after its
//! death.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use stagecoach_e2e::{E2eJob, Product, on_this_machine};

/// The number of bytes that a trainer can still allocate after the test has lowered the trainer's memory limit.
const SPARE: u64 = 1 << 20;

/// The ways in which a job loses a stage.
const FAULTS: [&str; 4] = ["delete", "delete --force", "kill -9", "out of memory"];

#[test]
#[ignore = "needs a node: make e2e"]
fn a_job_that_loses_stages_comes_to_the_same_end() {
    let product = Product::take();
    lose_stages(&product, "faulted", json!({}), false);
}

#[test]
#[ignore = "needs a node: make e2e"]
fn also_when_the_operator_dies_with_them() {
    let product = Product::take();
    lose_stages(&product, "faulted-blind", json!({}), true);
}

#[test]
#[ignore = "needs a node: make e2e"]
fn also_with_checkpoints_in_memory() {
    let product = Product::take();
    lose_stages(&product, "faulted-remembered", json!({"checkpoint": {"memory": {"everySteps": 1}}}), false);
}

fn lose_stages(product: &Product, name: &str, changes: Value, with_operator: bool) {
    let mut draws = RandomFaults::new();
    let has_copies = changes["checkpoint"]["memory"].is_object();
    let job = E2eJob::apply(product, name, changes);
    let first = draws.below(3) as u32;
    for (n, fault) in (0..).zip(FAULTS) {
        job.wait_phase("Running");
        job.wait_step(job.step() + 1 + draws.below(40));
        // if a stage is lost twice without a new step in between, all stages restart, so each fault hits another stage
        // than the fault before it
        let stage = (first + n) % 3;
        let (attempt, restarts, pods) = (job.attempt(), job.restarts(), job.pod_uids());
        println!("{name}: {fault} of stage {stage} at step {}", job.step());
        if with_operator {
            // the test kills the operator first: otherwise the operator might replace the stage and then die, and the
            // job might complete before another operator leads
            product.kill_operators();
        }
        lose(&job, fault, stage);
        let after = job.wait("whole again", |job| {
            job["status"]["restarts"]["total"].as_u64() > Some(restarts) && job["status"]["phase"] == "Running"
        });
        let after = match fault {
            // the operator replaces the stage before the kubelet reports the exit of the stage's container
            "kill -9" | "out of memory" => {
                job.wait("known to have ended", |job| job["status"]["lastFailure"]["exitCode"].is_number())
            }
            _ => after,
        };
        let failure = &after["status"]["lastFailure"];
        println!("{name}: {} {}", failure["reason"], failure["message"]);
        match fault {
            // all stages save a checkpoint and exit together, so the reason names no stage as the cause, unless no
            // operator observed the exits
            "delete" => assert!(failure["reason"] == "Drained" || with_operator, "{failure:#}"),
            "out of memory" => {
                assert_eq!((&failure["reason"], &failure["stage"]), (&json!("OutOfMemory"), &json!(stage)))
            }
            // the kubelet sends SIGTERM in this case too, so the other stages may save and exit together with this one
            "delete --force" => assert!(failure["stage"] == stage || failure["reason"] == "Drained", "{failure:#}"),
            _ => assert_eq!(failure["stage"], stage, "{failure:#}"),
        }
        if has_copies && ["kill -9", "out of memory"].contains(&fault) {
            let log = product.kubectl(&["logs", &job.pod(0)]);
            let (_, since) = log.rsplit_once("resuming after step").unwrap_or_else(|| panic!("{log}"));
            assert!(since.contains("which was in memory"), "{log}");
        }
        // the operator deletes the lost pod after the kubelet has reported its exit
        let mut now = Vec::new();
        job.wait("of as many pods as before", |_| {
            now = job.pod_uids();
            now.len() == pods.len()
        });
        let stayed = pods.iter().filter(|pod| now.contains(pod)).count();
        let found = (after["status"]["attempt"]["number"].as_u64().unwrap(), stayed);
        let (is_next_attempt, is_replaced) = (found == (attempt + 1, 0), found == (attempt, 2));
        let is_expected = match fault {
            "delete" => is_next_attempt,
            "delete --force" => is_next_attempt || is_replaced,
            _ => is_replaced,
        };
        assert!(is_expected, "{fault}: {found:?}, {pods:?} became {now:?}\n{:#}", after["status"]);
    }
    assert_eq!(job.complete(), *on_this_machine(product.node.folder()));
}

/// Applies `fault` to a stage of the job, so that the job loses the stage.
fn lose(job: &E2eJob, fault: &str, stage: u32) {
    let pod = job.pod(stage);
    let mut starved = None;
    match fault {
        "delete" => drop(job.product.kubectl(&["delete", "pod", &pod, "--wait=false"])),
        "delete --force" => drop(job.product.kubectl(&["delete", "pod", &pod, "--force", "--grace-period=0"])),
        "kill -9" => job.trainer(stage).kill(),
        _ => starved = Some((job.restarts(), job.trainer(stage).starve(SPARE))),
    }
    if let Some((restarts, starved)) = starved {
        job.wait("restarted for want of memory", |job| job["status"]["restarts"]["total"] != restarts);
        drop(starved);
    }
}

/// Random numbers. STAGECOACH_SEED sets the seed, which the test prints.
struct RandomFaults(u64);

impl RandomFaults {
    fn new() -> RandomFaults {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("STAGECOACH_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        println!("STAGECOACH_SEED={seed}");
        RandomFaults(seed)
    }

    /// Returns the next number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        // Knuth's linear congruential generator, of which only the upper bits are random enough
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
