//! Trains one job in several ways: with different numbers of stages, transports and schedules, and with a resume on
//! fewer stages. Each way must end with the same hashes as the run on one stage.

use serde_json::{Value, json};
use stagecoach_pipeline::{ONE_F_ONE_B, SCHEDULES};
use stagecoach_tests::{Hashes, TestJob};

use super::gpu_run::{GpuRun, attempt};
use crate::stats::line;

const STEPS: u64 = 20;

/// A way to train the job: its attempts in order, each with its number of stages, transport and last step.
struct Way {
    name: &'static str,
    attempts: &'static [(usize, &'static str, u64)],
    schedule: &'static str,
    virtual_stages: usize,
}

const fn of_layout(name: &'static str, attempts: &'static [(usize, &'static str, u64)]) -> Way {
    Way { name, attempts, schedule: "1F1B", virtual_stages: 1 }
}

const fn of_schedule(
    schedule: &'static str,
    virtual_stages: usize,
    attempts: &'static [(usize, &'static str, u64)],
) -> Way {
    Way { name: schedule, attempts, schedule, virtual_stages }
}

const ONE: Way = of_layout("1-Tcp", &[(1, "Tcp", STEPS)]);

const TCP: [Way; 3] = [
    of_layout("2-Tcp", &[(2, "Tcp", STEPS)]),
    of_layout("3-Tcp-resumed-by-2", &[(3, "Tcp", STEPS / 2), (2, "Tcp", STEPS)]),
    of_schedule("ZBVZeroBubble", 2, &[(2, "Tcp", STEPS)]),
];

/// Returns the ways over NCCL: 1F1B with several layouts, and all other schedules.
fn nccl() -> Vec<Way> {
    let layouts = [
        of_layout("2-Nccl", &[(2, "Nccl", STEPS)]),
        of_layout("3-Nccl-resumed-by-2", &[(3, "Nccl", STEPS / 2), (2, "Nccl", STEPS)]),
    ];
    let others = SCHEDULES.iter().filter(|schedule| **schedule != ONE_F_ONE_B);
    let others = others.map(|s| of_schedule(s.name, s.chunks.fixed().unwrap_or(2), &[(2, "Nccl", STEPS)]));
    layouts.into_iter().chain(others).collect()
}

/// The time limit of one attempt, which spends most of its time on start-up.
const ATTEMPT_SECONDS: u64 = 30;

pub(super) fn measure_tcp(run: &GpuRun) -> Value {
    measure(run, "tcp", &TCP)
}

pub(super) fn measure_nccl(run: &GpuRun) -> Value {
    measure(run, "nccl", &nccl())
}

/// Measures both precisions at the same time, because these jobs spend most of their time on start-up.
fn measure(run: &GpuRun, part: &'static str, ways: &[Way]) -> Value {
    std::thread::scope(|scope| {
        let precisions =
            ["Float32", "BFloat16"].map(|precision| scope.spawn(move || compare(run, part, precision, ways)));
        precisions.into_iter().map(|compared| compared.join().unwrap()).collect()
    })
}

fn compare(run: &GpuRun, part: &str, precision: &'static str, ways: &[Way]) -> Value {
    let one = attempt(|| train(run, part, precision, &ONE));
    let mut compared = Vec::new();
    let mut is_hanging = false;
    for way in ways {
        let what = format!("{precision} {}", way.name);
        if is_hanging {
            run.not_measured(&format!("bits: {what}"), "the way before it did not end");
        }
        if is_hanging || !run.has_time_for(&format!("bits: {what}"), 8) {
            continue;
        }
        let hashes = attempt(|| train(run, part, precision, way));
        is_hanging = hashes.as_ref().is_err_and(|failure| failure.starts_with("waited "));
        let is_same = one.as_ref().ok().zip(hashes.as_ref().ok()).map(|(one, hashes)| one == hashes);
        let failure = hashes.err();
        let reported = is_same.map_or("not trained", |same| if same { "same bits" } else { "OTHER BITS" });
        line(&what, reported.into(), failure.as_deref().unwrap_or_default().lines().next().unwrap_or_default());
        if is_same == Some(false) {
            run.wrong(format!("{what} has different bits from the run on one stage"));
        }
        compared.push(json!({ "way": way.name, "attempts": way.attempts, "schedule": way.schedule,
                              "sameBits": is_same, "failure": failure }));
    }
    let weights = one.as_ref().ok().map(|hashes| &hashes.weights);
    json!({ "precision": precision, "weights": weights, "failure": one.as_ref().err(), "ways": compared })
}

fn train(run: &GpuRun, part: &str, precision: &'static str, way: &Way) -> Hashes {
    let own = run.workspace(&format!("{part}-{precision}-{}", way.name));
    for (attempt, &(stages, transport, steps)) in way.attempts.iter().enumerate() {
        let job = TestJob {
            name: "bits".into(),
            stages,
            transport,
            device: run.device(),
            precision,
            schedule: way.schedule,
            virtual_stages: way.virtual_stages,
            steps,
            decay_steps: Some(STEPS),
            ..TestJob::default()
        };
        let mut group = run.start_group(&own, &job, attempt as u64 + 1);
        let what = format!("{part}, {precision}, {}", way.name);
        run.or_keep_output(&what, &group.logs(), || {
            for stage in group.finish_before(run.deadline(ATTEMPT_SECONDS)) {
                let last = stage.log.lines().last().unwrap_or_default();
                assert!(stage.code == Some(0), "a stage left with {:?}: {last}", stage.code);
            }
        });
    }
    Hashes::read(&own.join("bits"))
}
