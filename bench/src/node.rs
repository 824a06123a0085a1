//! Measures the product on a real node: how long a job is down after one of its pods is killed, and how long each phase
//! of the recovery takes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use stagecoach_e2e::{E2eJob, NAMESPACE, Product};
use stagecoach_node::images;

use crate::machine::memory;
use crate::stats::{line, median, worst};

const REPETITIONS: u64 = 20;
const STAGES: usize = 3;
/// The interval between polls of an awaited condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time limit of each wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// The phases of `status.lastRecovery`, in their order.
const PHASES: [&str; 7] = ["noticed", "decided", "created", "started", "joined", "loaded", "firstStep"];

pub(crate) fn measure() -> Value {
    let product = Product::take();
    println!("on one node: a job of {STAGES} stages applied {REPETITIONS} times");
    let applied: Vec<f64> = (0..REPETITIONS).map(|n| apply(&product, n)).collect();
    line("apply -> first step", seconds(median(&applied)), &format!("worst {}", seconds(worst(&applied))));

    let replaced = lose_pods(&product, "killed", End::Killed, 0);
    let deleted = lose_pods(&product, "deleted", End::Deleted, 0);
    let taken = lose_pods(&product, "killed-with-spare", End::Killed, 1);

    let sizes: BTreeMap<&str, u64> = ["operator", "trainer"].map(|image| (image, size(image))).into();
    for (image, bytes) in &sizes {
        line(&format!("image of the {image}"), format!("{:.1} MB", *bytes as f64 / 1e6), "compressed");
    }
    let memory: Vec<u64> = product.operators().iter().map(|one| memory(one.process_id(), "VmRSS:").unwrap()).collect();
    let most = memory.iter().max().copied().unwrap_or_default();
    line("operator's memory", format!("{:.0} MiB", most as f64 / 1024.0), "the larger of two replicas");
    json!({
        "applyToFirstStepSeconds": applied,
        "killed": replaced,
        "deletedByForce": deleted,
        "killedWithSpare": taken,
        "imageBytes": sizes,
        "operatorKiB": memory,
    })
}

/// Measures the pause of a job of two replicas after one replica is killed, while the other replica continues.
pub(crate) fn measure_replicas() -> Value {
    let product = Product::take();
    println!("one of two replicas killed {REPETITIONS} times, the leader too");
    let job = E2eJob::apply(
        &product,
        "two-replicas",
        json!({
            "stages": 1,
            "dataParallel": 2,
            "training": {"steps": 1_000_000},
            "checkpoint": {"memory": {"everySteps": 1}},
        }),
    );
    let mut pauses = Vec::new();
    for loss in 1..=REPETITIONS {
        job.wait("both replicas", |job| job["status"]["trainingReplicas"] == 2 && job["status"]["readyStages"] == 2);
        job.wait_step(job.step() + 20 + loss * 7 % 20);
        let uid = job.pods()[(loss % 2) as usize]["metadata"]["uid"].as_str().unwrap().to_owned();
        let trainer = product.node.container(&uid, "trainer");
        let ended = SystemTime::now();
        trainer.kill();
        pauses.push(since(ended, first_step_after(&product, &job, ended).1));
    }
    line(
        "replica killed -> next finished step",
        seconds(median(&pauses)),
        &format!("worst {}", seconds(worst(&pauses))),
    );
    assert_eq!(job.attempt(), 1, "the attempt continued");
    json!({ "toFirstStepSeconds": pauses })
}

/// Returns the `start` line of the first group that begins after `ended`, and the time at which the group finished its
/// first step. A group is the set of stages that train together until one of them is lost. Both values come from the
/// log of the pod that leads the group. Each line of the log begins with its time.
fn first_step_after(product: &Product, job: &E2eJob, ended: SystemTime) -> (String, SystemTime) {
    let (start, stepped) = wait("the first step", || {
        let logs = job.all_pods().iter().map(|pod| log(product, pod)).collect::<Vec<_>>();
        let texts = logs.into_iter().filter_map(|log| std::fs::read_to_string(log).ok());
        texts.into_iter().find_map(|text| {
            let mut since_end = text.lines().filter(|line| time(line) > ended);
            let start = since_end.find(|line| line.contains(" F start "))?.to_owned();
            Some((start, since_end.find(|line| line.contains(" F step "))?.to_owned()))
        })
    });
    (start, time(&stepped))
}

fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// Returns the seconds from `kubectl apply` to the first step.
fn apply(product: &Product, n: u64) -> f64 {
    let started = SystemTime::now();
    let job = E2eJob::apply(product, &format!("applied-{n}"), json!({}));
    wait("the job's first step", || (job.step() > 0).then_some(()));
    since(started, SystemTime::now())
}

/// The way in which a pod ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// SIGKILL ends the trainer.
    Killed,
    /// `kubectl delete pod --force` ends the pod.
    Deleted,
}

/// Ends pods of a job with `spares` spares, one after the other, and measures the recoveries.
fn lose_pods(product: &Product, name: &str, end: End, spares: u32) -> Value {
    println!("one of its pods {} {REPETITIONS} times, {spares} spares", format!("{end:?}").to_lowercase());
    let job = E2eJob::apply(product, name, json!({"spares": spares, "training": {"steps": 1_000_000}}));
    let mut waiting = Vec::new();
    let mut losses = Vec::new();
    // if a stage is lost twice before the job passes its furthest step, all stages exit
    let mut furthest = 0;
    for loss in 1..=REPETITIONS {
        // before each loss, the group saves a checkpoint, and trains some steps that the next group must repeat
        let running = job.wait_phase("Running");
        if spares > 0 {
            waiting.push(job.wait_spare(&waiting));
        }
        furthest = running["status"]["progress"]["step"].as_u64().unwrap_or_default().max(furthest);
        job.wait_step(furthest + 25 + loss * 7 % 20);
        furthest = job.step();
        let mut stages = job.pods();
        stages.retain(|pod| waiting.last().is_none_or(|spare| pod["metadata"]["uid"] != **spare));
        losses.push(lose(product, &job, &stages[(loss % STAGES as u64) as usize], end));
    }
    let attempts = job.attempt();
    // a deleted pod gets SIGTERM, so all stages save and exit, and the next attempt starts all stages
    if let End::Killed = end {
        assert_eq!(attempts, 1, "the whole group ended: a stage was lost twice without a new step in between");
    }
    let column = |of: &dyn Fn(&Loss) -> f64| losses.iter().map(of).collect::<Vec<f64>>();
    let whole = column(&|loss| loss.seconds);
    line("pod lost -> first new step", seconds(median(&whole)), &format!("worst {}", seconds(worst(&whole))));
    let phase_of = |index: usize| column(&|loss| loss.phases[index]);
    for (index, phase) in PHASES.iter().enumerate() {
        let part = phase_of(index);
        line(&format!("  {phase}"), seconds(median(&part)), &format!("worst {}", seconds(worst(&part))));
    }
    let steps = column(&|loss| loss.steps as f64);
    line("steps lost", format!("{}", median(&steps)), &format!("worst {}; saved every 20 steps", worst(&steps)));
    json!({
        "toFirstStepSeconds": whole,
        "phases": PHASES.iter().enumerate()
            .map(|(index, phase)| ((*phase).to_owned(), json!(phase_of(index))))
            .collect::<serde_json::Map<String, Value>>(),
        "checkpointEverySteps": 20,
        "attempts": attempts,
        "stepsLost": losses.iter().map(|loss| loss.steps).collect::<Vec<u64>>(),
    })
}

/// The loss of a pod: the seconds from the pod's end to the first new step, the seconds of the recovery's [`PHASES`] in
/// the operator's record, and the number of finished steps that were repeated.
struct Loss {
    seconds: f64,
    phases: [f64; PHASES.len()],
    steps: u64,
}

/// Ends this pod, and measures the recovery.
fn lose(product: &Product, job: &E2eJob, pod: &Value, end: End) -> Loss {
    let [name, uid] = ["name", "uid"].map(|field| pod["metadata"][field].as_str().unwrap());
    let recovery = || job.get()["status"]["lastRecovery"].clone();
    let (trainer, before) = (product.node.container(uid, "trainer"), recovery());
    let ended = SystemTime::now();
    match end {
        End::Killed => trainer.kill(),
        End::Deleted => drop(product.kubectl(&["delete", "pod", name, "--force", "--grace-period=0"])),
    }
    let done = job.step();
    let (start, stepped) = first_step_after(product, job, ended);
    let recovered = wait("the operator's record of the recovery", || {
        let now = recovery();
        (now != before && now["phases"]["firstStep"].is_string()).then_some(now)
    });
    let seconds_of = |phase: &str| recovered["phases"][phase].as_str().and_then(|text| text.parse().ok());
    let from: u64 = start.split_whitespace().skip_while(|word| *word != "steps").nth(1).unwrap().parse().unwrap();
    Loss {
        seconds: since(ended, stepped),
        phases: PHASES.map(|phase| seconds_of(phase).unwrap_or_default()),
        steps: done.saturating_sub(from - 1),
    }
}

/// Returns the file to which containerd writes a trainer's log. The file exists as soon as the container starts.
fn log(product: &Product, pod: &Value) -> PathBuf {
    let [name, uid] = ["name", "uid"].map(|field| pod["metadata"][field].as_str().unwrap());
    product.node.folder().join(format!("logs/pods/{NAMESPACE}_{name}_{uid}/trainer/0.log"))
}

/// Returns the time at which containerd wrote a line of a trainer's log.
fn time(line: &str) -> SystemTime {
    let stamp: jiff::Timestamp = line.split(' ').next().unwrap().parse().unwrap();
    stamp.into()
}

fn since(before: SystemTime, after: SystemTime) -> f64 {
    // the two times come from clocks of limited resolution, so `after` can be slightly earlier than `before`
    after.duration_since(before).map_or_else(|early| -early.duration().as_secs_f64(), |time| time.as_secs_f64())
}

#[track_caller]
fn wait<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = SystemTime::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(SystemTime::now() < deadline, "waited {} s for {what}", WAIT_TIMEOUT.as_secs());
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the size of an image's archive in bytes. The archive's layers are compressed.
fn size(image: &str) -> u64 {
    std::fs::metadata(images().join(format!("{image}.tar"))).unwrap().len()
}
