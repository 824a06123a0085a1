//! Lists the shared libraries that a training process has mapped. An image for GPUs needs these libraries.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use stagecoach_tests::TestJob;

use super::gpu_run::{GpuRun, attempt_in};
use crate::stats::line;

pub(super) fn measure(run: &GpuRun) -> Value {
    let own = run.workspace("libraries");
    let job = TestJob {
        name: "libraries".into(),
        stages: 2,
        transport: "Nccl",
        device: run.device(),
        precision: "BFloat16",
        decay_steps: Some(60),
        ..TestJob::default()
    };
    let mapped = attempt_in(&own, || {
        let mut launched = run.launch(&own, &job.endless());
        launched.wait_for_step(5);
        let stages = launched.wait_for_stages(job.stages).into_iter();
        let mapped: BTreeMap<String, u64> = stages.flat_map(mapped_libraries).collect();
        launched.interrupt(&own);
        mapped
    });
    let mapped = mapped.unwrap_or_else(|failure| panic!("{failure}"));
    let bytes: u64 = mapped.values().sum();
    line("shared libraries of a stage", format!("{:.0} MB", bytes as f64 / 1e6), &format!("{} files", mapped.len()));
    json!({ "bytes": bytes, "files": mapped })
}

/// Returns the names and sizes of the mapped libraries.
fn mapped_libraries(pid: u32) -> BTreeMap<String, u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let libraries = maps.lines().filter_map(path).filter(|path| path.contains(".so"));
    let name = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    libraries.filter_map(|path| Some((name(&path)?, std::fs::metadata(&path).ok()?.len()))).collect()
}
