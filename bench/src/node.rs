//! The product on a real node: how long a job is away after one of its pods was killed, and where the time goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use stagecoach_e2e::{E2eJob, NAMESPACE, Product};
use stagecoach_node::images;

use crate::machine::memory;
use crate::stats::{line, median, worst};

const TIMES: u64 = 20;
const STAGES: usize = 3;
/// Between two looks at what is waited for.
const EVERY: Duration = Duration::from_millis(5);
/// For any one moment.
const PATIENCE: Duration = Duration::from_secs(120);

/// The moments of a replacement in their order; each takes the time since the one before.
const MOMENTS: [&str; 6] =
    ["detection", "decision", "pod created", "container started", "joined and loaded", "first step"];

pub(crate) fn measure() -> Value {
    let product = Product::take();
    println!("on one node: a job of {STAGES} stages applied {TIMES} times");
    let applied: Vec<f64> = (0..TIMES).map(|n| apply(&product, n)).collect();
    line("apply -> first step", seconds(median(&applied)), &format!("worst {}", seconds(worst(&applied))));

    println!("one of its pods killed {TIMES} times");
    let job = E2eJob::apply(&product, "killed", json!({"training": {"steps": 1_000_000}}));
    let mut restarts = Vec::new();
    for kill in 1..=TIMES {
        // one checkpoint of its own, and some steps that the next group must do again
        let running = job.wait_phase("Running");
        let from = running["status"]["progress"]["step"].as_u64().unwrap_or_default();
        job.wait_step(from + 25 + kill * 7 % 20);
        restarts.push(restart(&product, &job, (kill % STAGES as u64) as u32));
    }
    assert_eq!(job.attempt(), 1, "a stage was lost twice without a new step between");
    drop(job);
    let column = |of: &dyn Fn(&Restart) -> f64| restarts.iter().map(of).collect::<Vec<f64>>();
    let whole = column(&|restart| restart.seconds.iter().sum());
    line("pod killed -> first new step", seconds(median(&whole)), &format!("worst {}", seconds(worst(&whole))));
    for (index, moment) in MOMENTS.iter().enumerate() {
        let part = column(&|restart| restart.seconds[index]);
        line(&format!("  {moment}"), seconds(median(&part)), &format!("worst {}", seconds(worst(&part))));
    }
    let lost = column(&|restart| restart.lost as f64);
    line("steps lost", format!("{}", median(&lost)), &format!("worst {}; saved every 20 steps", worst(&lost)));

    let sizes: BTreeMap<&str, u64> = ["operator", "trainer"].map(|image| (image, size(image))).into();
    for (image, bytes) in &sizes {
        line(&format!("image of the {image}"), format!("{:.1} MB", *bytes as f64 / 1e6), "compressed");
    }
    let memory: Vec<u64> = product.operators().iter().map(|one| memory(one.process_id(), "VmRSS:")).collect();
    let most = memory.iter().max().copied().unwrap_or_default();
    line("operator's memory", format!("{:.0} MiB", most as f64 / 1024.0), "the larger of two replicas");
    json!({
        "applyToFirstStepSeconds": applied,
        "killedToFirstStepSeconds": whole,
        "parts": MOMENTS.iter().enumerate()
            .map(|(index, moment)| (moment.to_string(), json!(column(&|restart| restart.seconds[index]))))
            .collect::<serde_json::Map<String, Value>>(),
        "checkpointEverySteps": 20,
        "stepsLost": restarts.iter().map(|restart| restart.lost).collect::<Vec<u64>>(),
        "imageBytes": sizes,
        "operatorKiB": memory,
    })
}

fn seconds(value: f64) -> String {
    format!("{value:.2} s")
}

/// Seconds from `kubectl apply` to the first step.
fn apply(product: &Product, n: u64) -> f64 {
    let started = SystemTime::now();
    let job = E2eJob::apply(product, &format!("applied-{n}"), json!({}));
    wait("its first step", || (job.step() > 0).then_some(()));
    since(started, SystemTime::now())
}

/// One restart: seconds up to each of [`MOMENTS`] from the one before, and how many finished steps were done again.
struct Restart {
    seconds: [f64; MOMENTS.len()],
    lost: u64,
}

/// Kills a stage and watches what follows.
fn restart(product: &Product, job: &E2eJob, stage: u32) -> Restart {
    let (trainer, killed_name, restarts) = (job.trainer(stage), job.pod(stage), job.restarts());
    let killed_pod = format!("/api/v1/namespaces/{NAMESPACE}/pods/{killed_name}");
    let killed = SystemTime::now();
    trainer.kill();
    let done = job.step();
    let now = SystemTime::now;
    let detected = wait("the pod's end", || {
        let pod = product.node.get(&killed_pod);
        pod.is_none_or(|pod| !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null()).then(now)
    });
    let decided = wait("the decision", || (job.restarts() > restarts).then_some(now()));
    wait("the new pod", || (job.pod(stage) != killed_name).then_some(()));
    let created = now();
    let log_of = |name: String| {
        let pod = product.node.get(&format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")).unwrap();
        log(product, &pod)
    };
    let (new_log, log_of_stage_0) = (log_of(job.pod(stage)), log_of(job.pod(0)));
    // the rest is read off the log of stage 0, which may have stayed and has the time of each line
    let (start, stepped) = wait("the first step", || {
        let text = std::fs::read_to_string(&log_of_stage_0).ok()?;
        let mut since_kill = text.lines().filter(|line| time(line) > killed);
        let start = since_kill.find(|line| line.contains(" F start "))?.to_owned();
        Some((start, since_kill.find(|line| line.contains(" F step "))?.to_owned()))
    });
    let started = new_log.metadata().unwrap().created().unwrap();
    let moments = [detected, decided, created, started, time(&start), time(&stepped)];
    let mut before = killed;
    let seconds = moments.map(|moment| since(std::mem::replace(&mut before, moment), moment));
    let from: u64 = start.split_whitespace().skip_while(|word| *word != "steps").nth(1).unwrap().parse().unwrap();
    Restart { seconds, lost: done.saturating_sub(from - 1) }
}

/// The file that containerd writes a trainer's log to, from the moment it starts the container.
fn log(product: &Product, pod: &Value) -> PathBuf {
    let [name, uid] = ["name", "uid"].map(|field| pod["metadata"][field].as_str().unwrap());
    product.node.folder().join(format!("logs/pods/{NAMESPACE}_{name}_{uid}/trainer/0.log"))
}

/// When a line of such a file was written.
fn time(line: &str) -> SystemTime {
    let stamp: jiff::Timestamp = line.split(' ').next().unwrap().parse().unwrap();
    stamp.into()
}

fn since(before: SystemTime, after: SystemTime) -> f64 {
    // two clocks' resolution: a moment may seem to come before its cause
    after.duration_since(before).map_or_else(|early| -early.duration().as_secs_f64(), |time| time.as_secs_f64())
}

#[track_caller]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = SystemTime::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(SystemTime::now() < deadline, "waited {} s for {what}", PATIENCE.as_secs());
        std::thread::sleep(EVERY);
    }
}

/// Bytes of an image's archive, whose layers are compressed.
fn size(image: &str) -> u64 {
    std::fs::metadata(images().join(format!("{image}.tar"))).unwrap().len()
}
