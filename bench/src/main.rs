//! `make bench` compares Stagecoach's training speed with PyTorch's. It also measures the pipeline bubble, the cost of
//! checkpoints, and the cost of the operator for many jobs. The cost of checkpoints is relative to the times of `dd`
//! and of a memory copy in the same run. `make e2e-report` measures how long a job is down when a pod dies on a real
//! node. `make gpu` makes the measurements that need a GPU. A low speed never fails a measurement, because other
//! programs may use the machine at the same time. The raw figures go to `bench/results/`.

mod agreement;
mod audit;
mod gpu;
mod job;
mod load;
mod machine;
mod memory;
mod node;
mod operator;
mod recovery;
mod report_file;
mod save;
mod scaling;
mod sleep;
mod stats;
mod streaming;
mod training;

use std::path::Path;

use serde_json::{Value, json};

use report_file::ReportFile;

/// Calls `measure` with a fresh folder for the files that it writes. The folder is in `workspace`, because some
/// measurements depend on the speed of the file system.
fn in_scratch(workspace: &str, measure: impl FnOnce(&Path) -> Value) -> Value {
    let folder = std::path::absolute(workspace).unwrap().join("bench");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("corpus")).unwrap();
    let text = stagecoach_tests::corpus::jsonl(4000, 40, 7);
    std::fs::write(folder.join("corpus/bench.jsonl"), text).unwrap();
    let report = measure(&folder);
    let _ = std::fs::remove_dir_all(folder);
    report
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, workspace, results, parts @ ..] = &arguments[..] else { usage() };
    if what != "gpu" && !parts.is_empty() {
        usage();
    }
    let file = ReportFile::new(if what == "gpu" { gpu::report_name() } else { what }, Path::new(results));
    let report = match what.as_str() {
        "agreement" => agreement::measure(),
        "audit" => in_scratch(workspace, audit::measure),
        "checkpoint" => in_scratch(workspace, checkpoint),
        "creation" => operator::measure_creation(),
        "gpu" => in_scratch(workspace, |folder| gpu::measure(folder, &file, parts)),
        "memory" => in_scratch(workspace, memory::measure),
        "operator" => operator::measure(),
        "scale" => operator::measure_scale(),
        "silence" => operator::measure_silence(),
        "spot" => operator::measure_spot(Path::new(results)),
        "replicas" => in_scratch(workspace, training::measure_replicas),
        "recovery" => in_scratch(workspace, recovery::measure),
        "node" => node::measure(),
        "node-replicas" => node::measure_replicas(),
        "scaling" => in_scratch(workspace, scaling::measure),
        "sleep" => in_scratch(workspace, sleep::measure),
        "streaming" => in_scratch(workspace, streaming::measure),
        "training" => in_scratch(workspace, training::measure),
        _ => usage(),
    };
    file.write(&report);
    println!("\nraw figures: {}", file.path().display());
    if gpu::is_wrong(&report) {
        std::process::exit(1);
    }
}

fn usage() -> ! {
    eprintln!(
        "usage: stagecoach-bench agreement|audit|checkpoint|creation|gpu|memory|node|node-replicas|operator|recovery|replicas|scale|scaling|silence|sleep|spot|streaming|training WORKSPACE \
         RESULTS [PART OF gpu...]"
    );
    std::process::exit(2);
}

fn checkpoint(folder: &Path) -> Value {
    json!({ "save": save::measure(folder), "load": load::measure(folder) })
}
