//! Stages, replicas, schedule, partition, transport and recomputation do not change a bit of the losses or weights, in
//! fp32 and in bf16. By default, the test runs a pairwise covering set of layouts, in which each pair of values of two
//! dimensions occurs. With `STAGECOACH_PARITY=all` it runs the full product (`make test-exhaustive`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use stagecoach_pipeline::{INTERLEAVED_ONE_F_ONE_B, SCHEDULES, ScheduleType};
use stagecoach_tests::{Hashes, Launched, TestJob, combinations, corpus, each, undisturbed};

const LAYERS: usize = 4;
const STAGES: [usize; 5] = [1, 2, 3, 4, 6];

/// Returns pairs of a schedule and its number of chunks (virtual stages) per stage. A schedule that has no fixed number
/// of chunks occurs in two pairs.
fn schedules() -> Vec<(&'static str, usize)> {
    let chunks = |schedule: &ScheduleType| match schedule.chunks.fixed() {
        Some(fixed) => vec![fixed],
        // with one chunk, this schedule is 1F1B
        None if *schedule == INTERLEAVED_ONE_F_ONE_B => vec![2, 3],
        None => vec![1, 2],
    };
    SCHEDULES.iter().flat_map(|schedule| chunks(schedule).into_iter().map(|chunks| (schedule.name, chunks))).collect()
}

/// Returns the partition of a kind: the planner's (0, returned as `None`), all layers in the first chunk (1), or all
/// layers in the last chunk (2).
fn partition(kind: usize, chunks: usize) -> Option<Vec<usize>> {
    let all_in = |chunk: usize| (0..chunks).map(|c| if c == chunk { LAYERS } else { 0 }).collect();
    match kind {
        0 => None,
        1 => Some(all_in(0)),
        _ => Some(all_in(chunks - 1)),
    }
}

/// Returns the number of replicas: `1 + more`, but at most one per gradient block, and at most eight stages over all
/// replicas. The number of gradient blocks is 2 to the power of `blocks`.
fn replicas(stages: usize, blocks: usize, more: usize) -> usize {
    (1 + more).min(1 << blocks).min(8 / stages)
}

fn hashes(workspace: &Path, job: &TestJob) -> Hashes {
    Launched::start(workspace, job, &["--fresh"]).finish(workspace).hashes()
}

#[test]
fn no_layout_changes_a_bit() {
    let schedules = schedules();
    let sizes = [STAGES.len(), schedules.len(), 3, 3, 2, 2, 3, 2, 3, 3];
    let all = std::env::var("STAGECOACH_PARITY").is_ok_and(|v| v == "all");
    let rows = if all {
        // the product covers the first eight dimensions; the numbers of blocks and replicas, which are independent of
        // these dimensions, only alternate from row to row
        let product = combinations::product(&sizes[..8]).into_iter().enumerate();
        product.map(|(index, row)| [row, vec![index % sizes[8], index / sizes[8] % sizes[9]]].concat()).collect()
    } else {
        combinations::pairwise(&sizes)
    };
    let layout = |row: Vec<usize>| {
        let (stages, (schedule, virtual_stages)) = (STAGES[row[0]], schedules[row[1]]);
        TestJob {
            stages,
            schedule,
            virtual_stages,
            partition: partition(row[2], stages * virtual_stages),
            transport: ["Tcp", "Shm", "Nccl"][row[3]],
            packing: row[4] == 0,
            tied: row[5] == 0,
            recompute: ["None", "Selective", "Full"][row[6]],
            precision: ["Float32", "BFloat16"][row[7]],
            gradient_blocks: [1, 2, 4][row[8]],
            data_parallel: replicas(stages, row[8], row[9]),
            // these steps include the warm-up, and an evaluation after which training continues
            steps: 6,
            evaluation: "{fraction: 0.1, everySteps: 4}".into(),
            ..TestJob::default()
        }
    };
    let layouts: Vec<TestJob> = rows.into_iter().map(layout).collect();
    let jobs: BTreeMap<_, _> =
        layouts.iter().map(|job| ((job.packing, job.tied, job.precision, job.gradient_blocks), job)).collect();
    let runs = layouts.len() + jobs.len();
    println!("{runs} runs, {} different jobs", jobs.len());
    assert!(all || runs <= 70, "{runs} runs are too many for the default set: expected at most 70");
    // the runs share a few workspaces, so that the corpus is tokenised only a few times
    let idle = Mutex::new(Vec::new());
    each("layouts", &layouts, |_, job| {
        let workspace = idle.lock().unwrap().pop();
        let workspace = workspace.unwrap_or_else(corpus::workspace);
        assert_eq!(hashes(workspace.path(), job), undisturbed(job), "{job:?} differs from one stage");
        idle.lock().unwrap().push(workspace);
    });
    let mut different: Vec<Hashes> = jobs.values().map(|job| undisturbed(job)).collect();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), jobs.len(), "packing, tying, precision and blocks are different jobs");
}

/// The schedule is DualPipeV in torch's CSV, with the embedding and the head on one stage.
#[test]
fn a_schedule_in_a_file_changes_no_bit() {
    const CSV: &str = include_str!("../../../crates/pipeline/tests/data/torch-DualPipeV-2-ranks-4-microbatches.csv");
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    std::fs::write(workspace.join("schedule.csv"), CSV).unwrap();
    for tied in [false, true] {
        let job = TestJob { tied, stages: 2, virtual_stages: 2, ..TestJob::default() };
        let dual_pipe_v = TestJob { schedule: "Csv, csv: {path: schedule.csv}", ..job.clone() };
        let one = TestJob { stages: 1, virtual_stages: 1, ..job };
        assert_eq!(hashes(workspace, &dual_pipe_v), hashes(workspace, &one), "tied: {tied}");
    }
}

/// With the smallest sufficient memory limit, `Auto` chooses another schedule than with a large limit, and recomputes
/// more.
#[test]
fn what_auto_takes_changes_no_bit() {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let job = TestJob { schedule: "Auto", stages: 2, ..TestJob::default() };
    let run = |limit: &str| {
        let limit = format!("pipeline.memoryLimit=\"{limit}\"");
        Launched::start(workspace, &job, &["--fresh", "--set", &limit]).finish(workspace)
    };
    let refused = run("1k");
    let printed = format!("{}{}", refused.stdout, refused.stderr);
    let (_, needed) = printed.split_once("raise the limit to ").expect(&printed);
    let (tight, ample) = (run(needed.split(',').next().unwrap()), run("1Gi"));
    assert!(tight.stdout.contains("recompute Full"), "{}", tight.stdout);
    assert!(ample.stdout.contains("recompute None"), "{}", ample.stdout);
    let one = hashes(workspace, &TestJob { stages: 1, ..TestJob::default() });
    assert_eq!([tight.hashes(), ample.hashes()], [one.clone(), one]);
}
