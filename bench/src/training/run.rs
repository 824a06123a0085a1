//! Watches one run of a trainer from another process.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::until_within;

use super::WARM_UP;
use crate::job::json_lines;
use crate::machine::{memory, processor_seconds};
use crate::stats::median;

/// The measurements of a run.
#[derive(Clone, Debug)]
pub(super) struct MeasuredRun {
    /// Seconds from the start of the first process to the start of the first step.
    pub(super) start_seconds: f64,
    /// Seconds of each step after the warm-up.
    pub(super) seconds: Vec<f64>,
    /// Processor seconds per step, of all processes that compute.
    pub(super) cpu_seconds: f64,
    /// The largest resident memory of each process that computes, in bytes.
    pub(super) peak_bytes: Vec<f64>,
    /// The loss of each step, including the warm-up.
    pub(super) losses: Vec<f64>,
}

impl MeasuredRun {
    /// Watches processes that began at `started` and write a line to `metrics` after each step, until step `steps`.
    /// `processes` returns the IDs of the processes that compute, in the order of their ranks.
    pub(super) fn watch(
        started: Instant,
        metrics: &Path,
        steps: usize,
        mut processes: impl FnMut() -> Vec<u32>,
    ) -> MeasuredRun {
        let mut wait = |count: usize| {
            until_within(&format!("step {count} in {}", metrics.display()), 3600, || {
                let _ = processes(); // panics if a process has ended
                (json_lines(metrics).len() >= count).then_some(())
            });
            (started.elapsed().as_secs_f64(), processes())
        };
        let (first_step_end, _) = wait(1);
        let cpu = |processes: &[u32]| processes.iter().map(|&process| processor_seconds(process)).sum::<f64>();
        let before = cpu(&wait(WARM_UP).1);
        let (_, processes) = wait(steps);
        let cpu_seconds = (cpu(&processes) - before) / (steps - WARM_UP) as f64;
        let peak_bytes = processes.iter().map(|process| memory(process, "VmHWM:").unwrap() as f64 * 1024.0).collect();
        let lines = json_lines(metrics);
        let field =
            |name: &str| lines.iter().take(steps).map(|line| line[name].as_f64().unwrap()).collect::<Vec<f64>>();
        let seconds = field("seconds");
        MeasuredRun {
            start_seconds: first_step_end - seconds[0],
            seconds: seconds[WARM_UP..].to_vec(),
            cpu_seconds,
            peak_bytes,
            losses: field("loss"),
        }
    }

    /// Returns the median seconds of a step.
    pub(super) fn step_seconds(&self) -> f64 {
        median(&self.seconds)
    }

    /// Returns the largest peak memory of any process, in bytes.
    pub(super) fn peak_bytes(&self) -> f64 {
        self.peak_bytes.iter().copied().fold(0.0, f64::max)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "startSeconds": self.start_seconds, "stepSeconds": self.seconds, "cpuSecondsPerStep": self.cpu_seconds,
                "peakBytes": self.peak_bytes, "losses": self.losses })
    }
}
