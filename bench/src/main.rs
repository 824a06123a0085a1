//! `make bench`: what checkpoints cost, as ratios to what this machine can do in the same minutes, and what the operator
//! takes for many jobs. `make e2e-report`: how long a job is away when a pod dies on a real node. Nothing is asserted:
//! machines are shared. The raw figures go to `bench/results/`.

mod job;
mod load;
mod machine;
mod node;
mod operator;
mod recovery;
mod save;
mod stats;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A fresh folder for everything that is written, on the file system whose speed counts.
fn scratch(workspace: &Path) -> PathBuf {
    let folder = workspace.join("bench");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(folder.join("corpus")).unwrap();
    let text = stagecoach_tests::corpus::jsonl(4000, 40, 7);
    std::fs::write(folder.join("corpus/bench.jsonl"), text).unwrap();
    folder
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, workspace, results] = &arguments[..] else { usage() };
    let report = match what.as_str() {
        "checkpoint" => checkpoint(Path::new(workspace)),
        "operator" => operator::measure(),
        "node" => node::measure(),
        _ => usage(),
    };
    let path = Path::new(results).join(format!("{what}.json"));
    std::fs::write(&path, format!("{report:#}\n")).unwrap();
    println!("\nraw figures: {}", path.display());
}

fn usage() -> ! {
    eprintln!("usage: stagecoach-bench checkpoint|operator|node WORKSPACE RESULTS");
    std::process::exit(2);
}

fn checkpoint(workspace: &Path) -> Value {
    let folder = scratch(&std::path::absolute(workspace).unwrap());
    let mut report = json!({ "machine": machine::describe() });
    report["save"] = save::measure(&folder);
    report["load"] = load::measure(&folder);
    report["recovery"] = recovery::measure(&folder);
    let _ = std::fs::remove_dir_all(folder);
    report
}
