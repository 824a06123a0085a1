//! Compares the losses of a job on the GPU with the losses of the same job on the CPU. As a reference, the report also
//! contains the difference between bf16 and fp32 on the CPU.

use serde_json::{Value, json};
use stagecoach_tests::TestJob;
use stagecoach_tests::fixture::records;

use super::gpu_run::GpuRun;
use crate::stats::line;

const STEPS: u64 = 40;

pub(super) fn measure(run: &GpuRun) -> Value {
    let on_gpu = if run.gpu().is_some() { "Cuda" } else { "Cpu" };
    let train = |precision, device| losses(run, precision, device);
    let (cpu, bf16_cpu) = (train("Float32", "Cpu"), train("BFloat16", "Cpu"));
    let spread = largest_difference(&bf16_cpu, &cpu);
    let compared = [("Float32", &cpu), ("BFloat16", &bf16_cpu)].map(|(precision, cpu)| {
        let difference = largest_difference(&train(precision, on_gpu), cpu);
        line(
            &format!("losses, {precision}"),
            format!("{difference:.1e}"),
            &format!("relative to the CPU's losses; bf16 relative to fp32 on the CPU: {spread:.1e}"),
        );
        if run.gpu().is_none() && difference != 0.0 {
            run.wrong(format!("a second run of {precision} on the CPU has other losses"));
        }
        json!({ "precision": precision, "largestRelativeDifference": difference })
    });
    json!({ "steps": STEPS, "devices": ["Cpu", on_gpu], "againstCpu": compared, "bf16AgainstFp32OnCpu": spread })
}

fn losses(run: &GpuRun, precision: &'static str, device: &'static str) -> Vec<f64> {
    // a rehearsal trains each precision twice on the CPU, and the number gives each run a separate workspace
    let number = std::fs::read_dir(run.folder()).unwrap().count();
    let own = run.workspace(&format!("loss-{number}"));
    let job = TestJob { name: "loss".into(), stages: 1, precision, device, steps: STEPS, ..TestJob::default() };
    run.finish(run.launch(&own, &job), &own, 120);
    records(&own.join("loss")).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// Returns the largest difference between the losses of one step, relative to `expected`.
fn largest_difference(losses: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(losses.len(), expected.len());
    losses.iter().zip(expected).map(|(loss, expected)| ((loss - expected) / expected).abs()).fold(0.0, f64::max)
}
