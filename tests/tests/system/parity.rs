//! The promise's first half: neither stages, schedule, partition, transport nor recomputation change a bit of losses or
//! weights, in fp32 and in bf16.
//! By default a pairwise covering set; `STAGECOACH_PARITY=all` runs the full product (`make test-all`).

use std::collections::HashMap;
use std::path::Path;

use stagecoach_tests::{Launched, TestJob, corpus, cover};

const LAYERS: usize = 4;
const STAGES: [usize; 5] = [1, 2, 3, 4, 6];

/// Three partitions for any number of stages: the planner's, all layers on the first stage, all on the last.
fn partition(kind: usize, stages: usize) -> Option<Vec<usize>> {
    let all_on = |stage: usize| (0..stages).map(|s| if s == stage { LAYERS } else { 0 }).collect();
    match kind {
        0 => None,
        1 => Some(all_on(0)),
        _ => Some(all_on(stages - 1)),
    }
}

fn hashes(workspace: &Path, job: &TestJob) -> (String, String) {
    Launched::start(workspace, job, &["--fresh"]).finish(workspace).hashes()
}

#[test]
fn no_layout_changes_a_bit() {
    let workspace = tempfile::tempdir().unwrap();
    let workspace = workspace.path();
    corpus::write(workspace);
    let sizes = [STAGES.len(), 2, 3, 2, 2, 2, 3, 2];
    let all = std::env::var("STAGECOACH_PARITY").is_ok_and(|v| v == "all");
    let rows = if all { cover::product(&sizes) } else { cover::pairwise(&sizes) };
    let mut expected: HashMap<(bool, bool, &str), (String, String)> = HashMap::new();
    let mut runs = 0;
    for row in rows {
        let stages = STAGES[row[0]];
        let job = TestJob {
            stages,
            schedule: ["1F1B", "GPipe"][row[1]],
            partition: partition(row[2], stages),
            transport: ["Tcp", "Shm"][row[3]],
            packing: row[4] == 0,
            tied: row[5] == 0,
            recompute: ["None", "Selective", "Full"][row[6]],
            precision: ["Float32", "BFloat16"][row[7]],
            ..TestJob::default()
        };
        let reference = expected.entry((job.packing, job.tied, job.precision)).or_insert_with(|| {
            runs += 1;
            let TestJob { packing, tied, precision, .. } = job;
            hashes(workspace, &TestJob { stages: 1, packing, tied, precision, ..TestJob::default() })
        });
        runs += 1;
        assert_eq!(&hashes(workspace, &job), reference, "{job:?} differs from one stage");
    }
    let jobs = expected.len();
    println!("{runs} runs, {jobs} different jobs");
    assert!(all || runs <= 30, "{runs} runs are too many for every day");
    let mut different: Vec<_> = expected.into_values().collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), jobs, "packing, tying and precision are different jobs");
}
