//! Measures the timed models (`MODELS`) in PyTorch, with random weights and tokens: in eager mode, and with
//! `torch.compile`.

use std::process::Command;

use serde_json::{Value, json};

use super::gpu_run::{GpuRun, attempt, shortened};
use super::model::{GpuBenchModel, MODELS};
use super::speed::WARM_UP;
use crate::stats::{line, median};

const STEPS: usize = 12;

pub(super) fn measure(run: &GpuRun) -> Value {
    let [twelve_layers, billion, packed] = &MODELS;
    let models = [billion, twelve_layers, packed].into_iter();
    let ways = models.flat_map(|model| [(model, false, 30), (model, true, 60)]);
    let measured = ways.filter_map(|(model, compile, seconds)| {
        let way = if compile { "torch.compile" } else { "torch, eager" };
        let what = format!("{}, {way}", model.name);
        run.has_time_for(&what, seconds).then(|| {
            let mut reported = attempt(|| train(run, model, compile, &what)).unwrap_or_else(|failure| {
                line(&what, "FAILED".into(), failure.lines().last().unwrap_or_default());
                json!({ "failure": failure })
            });
            reported["model"] = model.name.into();
            reported["isShrunk"] = run.gpu().is_none().into();
            reported["way"] = way.into();
            reported
        })
    });
    measured.collect()
}

fn train(run: &GpuRun, model: &GpuBenchModel, compile: bool, what: &str) -> Value {
    let model = model.of_run(run);
    let settings = model.torch_settings(STEPS, compile).to_string();
    // the path is relative to the root of the repository, where this program runs
    let mut command = Command::new("python3");
    let (_, stdout, stderr) = run.execute(command.arg("bench/torch/speed.py").arg(settings), 120);
    let raw: Value = serde_json::from_str(&stdout).unwrap_or_default();
    let Some(seconds) = raw["seconds"].as_array() else { panic!("{}", shortened(&stderr)) };
    let tokens = (model.rows * model.length) as f64;
    let timed = seconds.iter().skip(WARM_UP).filter_map(Value::as_f64);
    let speeds: Vec<f64> = timed.map(|seconds| tokens / seconds).collect();
    line(what, format!("{:.0} tokens/s", median(&speeds)), raw["device"].as_str().unwrap_or_default());
    json!({ "tokensPerSecond": median(&speeds), "raw": raw })
}
