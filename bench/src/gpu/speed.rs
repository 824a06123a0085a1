//! Measures the tokens per second and the MFU of each model on one stage, and of the 12-layer model on several stages
//! that share the GPU.

use std::time::Instant;

use serde_json::{Value, json};
use stagecoach_tests::fixture::records;

use super::gpu_run::{GpuRun, measured_or_failure};
use super::model::{GpuBenchModel, JobLayout, MODELS};
use crate::stats::{line, median};

/// The number of steps before the timed steps.
pub(super) const WARM_UP: usize = 4;

pub(super) fn measure_models(run: &GpuRun) -> Value {
    let layout = JobLayout { name: "one-stage", steps: 12, ..JobLayout::without_checkpoints() };
    let [twelve_layers, billion, packed] = &MODELS;
    [billion, twelve_layers, packed].into_iter().filter_map(|model| measure(run, model, &layout)).collect()
}

pub(super) fn measure_stages(run: &GpuRun) -> Value {
    let layouts = [(2, "Nccl", "2-nccl"), (2, "Tcp", "2-tcp"), (3, "Nccl", "3-nccl"), (3, "Tcp", "3-tcp")];
    let layouts = layouts.map(|(stages, transport, name)| JobLayout {
        name,
        stages,
        transport,
        steps: 8,
        ..JobLayout::without_checkpoints()
    });
    layouts.iter().filter_map(|layout| measure(run, &MODELS[0], layout)).collect()
}

/// Measures the speed of a model; `None` if too little time remains.
fn measure(run: &GpuRun, model: &GpuBenchModel, layout: &JobLayout) -> Option<Value> {
    let name = model.job_name(layout);
    if !run.has_time_for(&format!("speed of {name}"), model.seconds) {
        return None;
    }
    let mut reported = measured_or_failure(&name, || {
        let TrainedJob { metrics, seconds } = train(run, model, layout);
        let step_values = |field| numbers(&metrics[WARM_UP..], field);
        let (speeds, mfus) = (step_values("tokensPerSecond"), step_values("mfu"));
        let mfu = (!mfus.is_empty()).then(|| median(&mfus));
        let beside = mfu.map_or("MFU unknown".to_owned(), |mfu| format!("MFU {:.1} %", 100.0 * mfu));
        line(&name, format!("{:.0} tokens/s", median(&speeds)), &beside);
        let step_seconds: f64 = numbers(&metrics, "seconds").iter().sum();
        let peak_bytes = metrics.last().map(|last| &last["peakBytes"]);
        json!({ "tokensPerSecond": median(&speeds), "allTokensPerSecond": speeds, "mfu": mfu,
                "secondsBesideSteps": seconds - step_seconds, "peakBytes": peak_bytes })
    });
    reported["model"] = model.name.into();
    reported["isShrunk"] = run.gpu().is_none().into();
    reported["stages"] = layout.stages.into();
    reported["transport"] = layout.transport.into();
    Some(reported)
}

/// The results of a job.
pub(super) struct TrainedJob {
    pub(super) metrics: Vec<Value>,
    /// Seconds from the launch of the job to its end.
    pub(super) seconds: f64,
}

/// Trains the model or, in a run without a GPU (a rehearsal), its shrunk form. Then removes the job's folder.
///
/// # Panics
/// If the job fails.
pub(super) fn train(run: &GpuRun, model: &GpuBenchModel, layout: &JobLayout) -> TrainedJob {
    let (name, workspace) = (model.job_name(layout), run.folder());
    let job = model.of_run(run).job(layout, run.device());
    let file = workspace.join(format!("{name}.json"));
    std::fs::write(&file, job.to_string()).unwrap();
    let started = Instant::now();
    let environment = [run.environment(layout.transport), layout.environment.clone()].concat();
    let launched = run.launch_file(workspace, &file, &name, &environment);
    run.finish(launched, workspace, 150);
    let seconds = started.elapsed().as_secs_f64();
    let metrics = records(&workspace.join(&name));
    std::fs::remove_dir_all(workspace.join(&name)).unwrap();
    TrainedJob { metrics, seconds }
}

/// Returns the values of a field in the lines that have the field.
pub(super) fn numbers(metrics: &[Value], field: &str) -> Vec<f64> {
    metrics.iter().filter_map(|line| line[field].as_f64()).collect()
}
