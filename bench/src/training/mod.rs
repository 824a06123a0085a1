//! Compares Stagecoach's training with PyTorch's, for the same model, initial weights, batch and microbatches. Measures
//! the seconds and processor seconds of a step, the peak memory, and the time until the first step.
//!
//! In a round, all trainers run one after the other. Every second round has the opposite order (A B C, C B A, ...), so
//! that a drift of the machine's speed favours no trainer. A ratio compares runs of one round. Before anything is
//! timed, runs of Stagecoach and PyTorch in fp32 are compared: their losses must agree. If a timed run in fp32 later
//! has other losses, the measurement panics.

mod contender;
mod contenders;
mod replicas;
mod run;
mod workload;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::stats::{line, median};
use contender::Contender;
use contenders::{Comparison, comparisons, contenders};
use run::MeasuredRun;
use workload::TrainingCase;

/// The number of steps of the single comparison of losses that precedes the timed rounds.
const CHECKED_STEPS: usize = 20;
/// The largest accepted relative difference between the losses of two trainers in fp32.
const TOLERANCE: f64 = 1e-5;
/// The number of steps at the start of a run that are not timed, and the number of timed steps after them.
const WARM_UP: usize = 2;
const TIMED_STEPS: usize = 5;

pub(crate) fn measure(folder: &Path) -> Value {
    measure_all(folder, contenders(), &comparisons())
}

/// Measures only training with several replicas of the pipeline (data parallelism).
pub(crate) fn measure_replicas(folder: &Path) -> Value {
    measure_all(folder, replicas::contenders(), &replicas::comparisons())
}

fn measure_all(folder: &Path, contenders: Vec<Contender>, comparisons: &[Comparison]) -> Value {
    let rounds: usize = std::env::var("STAGECOACH_ROUNDS").map_or(5, |n| n.parse().unwrap());
    let workloads = TrainingCase::write_all(folder);
    let reference = check_losses(&contenders, folder);
    let mut runs: BTreeMap<String, Vec<MeasuredRun>> = BTreeMap::new();
    for round in 0..rounds {
        let mut order: Vec<&Contender> = contenders.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        println!("training, round {} of {rounds}", round + 1);
        for contender in order {
            let run = contender.run(folder, WARM_UP + TIMED_STEPS);
            let difference = relative_difference(&run.losses, &reference[contender.workload.name]);
            assert!(contender.bf16 || difference <= TOLERANCE, "{}: losses differ by {difference:.1e}", contender.name);
            let seconds = format!("{:.3} s", run.step_seconds());
            let beside = format!("{:.3} CPU-s, {:.0} MB", run.cpu_seconds, run.peak_bytes() / 1e6);
            line(&contender.name, seconds, &beside);
            runs.entry(contender.name.clone()).or_default().push(run);
        }
    }
    println!("ratios to PyTorch, medians of {rounds} rounds");
    let ratios: Vec<Value> = comparisons.iter().map(|comparison| report(comparison, &runs)).collect();
    let raw: BTreeMap<&String, Vec<Value>> =
        runs.iter().map(|(name, runs)| (name, runs.iter().map(MeasuredRun::to_json).collect())).collect();
    let workloads: Vec<Value> = workloads.iter().map(|workload| workload.to_json()).collect();
    json!({
        "torch": contender::torch_version(),
        "workloads": workloads,
        "ratios": ratios,
        "runs": raw,
    })
}

/// Runs the contenders with `is_checked`. Returns, for each workload, the losses of its first contender, which is
/// PyTorch in eager mode. Asserts that the losses of the other contenders agree with these losses within [`TOLERANCE`].
fn check_losses(contenders: &[Contender], folder: &Path) -> BTreeMap<&'static str, Vec<f64>> {
    println!("the first {CHECKED_STEPS} losses");
    let mut reference = BTreeMap::new();
    let checked = contenders.iter().filter(|contender| contender.is_checked);
    for contender in checked {
        let losses = contender.run(folder, CHECKED_STEPS).losses;
        let expected: &Vec<f64> = reference.entry(contender.workload.name).or_insert_with(|| losses.clone());
        let difference = relative_difference(&losses, expected);
        let beside = format!("largest relative difference {difference:.1e}");
        line(&contender.name, format!("{:.6}", losses[CHECKED_STEPS - 1]), &beside);
        assert!(
            difference <= TOLERANCE,
            "{}: its losses differ from PyTorch's, so its times would mean nothing",
            contender.name
        );
    }
    reference
}

fn relative_difference(losses: &[f64], expected: &[f64]) -> f64 {
    losses.iter().zip(expected).map(|(a, b)| (a / b - 1.0).abs()).fold(0.0, f64::max)
}

/// Prints the median of a comparison's ratios, and returns all of its figures.
fn report(comparison: &Comparison, runs: &BTreeMap<String, Vec<MeasuredRun>>) -> Value {
    let Comparison { what, ours, theirs, figure, goal } = comparison;
    let values = |name: &str| runs[name].iter().map(|run| figure.of(run)).collect::<Vec<f64>>();
    let (own, other) = (values(ours), values(theirs));
    let ratios: Vec<f64> = own.iter().zip(&other).map(|(a, b)| a / b).collect();
    let ratio = median(&ratios);
    let beside = format!("goal {goal:.2}   {ours} {:.3}, {theirs} {:.3}", median(&own), median(&other));
    line(what, format!("{ratio:.2}"), &beside);
    json!({ "what": what, "figure": figure.name(), "ours": ours, "theirs": theirs, "ratio": ratio, "goal": goal,
            "ratios": ratios })
}
