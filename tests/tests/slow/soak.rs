//! A test kills a job repeatedly, in every phase, and changes its number of stages, until the job ends. The losses and
//! weights are bit for bit those of the undisturbed run. `STAGECOACH_KILLS` sets the number of kills. `STAGECOACH_SEED`
//! repeats the choices of a run, but not its timing.

use std::time::{SystemTime, UNIX_EPOCH};

use stagecoach_tests::fixture::recorded_steps;
use stagecoach_tests::phases::Phase;
use stagecoach_tests::soak::{ENOUGH, Soak};
use stagecoach_tests::{TestJob, corpus, undisturbed};

/// The (stages, replicas) pairs between which a test changes its job.
const PIPELINES: [(usize, usize); 5] = [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)];
const REPLICATED: [(usize, usize); 5] = [(1, 2), (2, 2), (1, 4), (2, 3), (3, 1)];

/// The number of steps from one planned kill to the next.
const STEPS_A_KILL: u64 = 24;

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a number")),
        Err(_) => otherwise,
    }
}

fn kills() -> u64 {
    number("STAGECOACH_KILLS", 6)
}

/// Returns a job that saves often and has no end. A nonempty `memory` adds checkpoints in memory.
fn job(memory: &str, spares: u32) -> TestJob {
    let extra = format!(
        "  spares: {spares}\n  checkpoint: {{everySteps: 4, keepLast: 2{memory}}}\n  restart: {{maxRestarts: 1000, backoff: {{initialSeconds: 0}}, terminationTimeoutSeconds: 2}}\n"
    );
    let job = TestJob { name: "soaked".into(), decay_steps: Some(100), tied: true, extra, ..TestJob::default() };
    job.endless()
}

#[test]
fn a_job_killed_over_and_over_ends_with_the_undisturbed_bits() {
    soak(&job("", 0), &PIPELINES, kills());
}

#[test]
fn so_it_does_with_checkpoints_in_memory() {
    soak(&job(", memory: {everySteps: 1}", 0), &PIPELINES, kills());
}

#[test]
fn so_it_does_with_spares() {
    soak(&job(", memory: {everySteps: 1}", 1), &PIPELINES, kills());
}

/// The other replicas do not wait for the killed stage.
#[test]
fn so_it_does_with_replicas() {
    for memory in ["", ", memory: {everySteps: 1}"] {
        let job = job(memory, 0);
        let job = TestJob { stages: 2, data_parallel: 2, gradient_blocks: 4, ..job };
        soak(&job, &REPLICATED, kills().div_ceil(3));
    }
}

/// A kill may leave the other stages in the middle of a message on a device.
#[test]
fn so_it_does_over_nccl() {
    let job = TestJob { transport: "Nccl", ..job(", memory: {everySteps: 1}", 0) };
    soak(&job, &PIPELINES, kills().div_ceil(3));
}

fn soak(job: &TestJob, meshes: &[(usize, usize)], kills: u64) {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let seed = number("STAGECOACH_SEED", clock % 1_000_000);
    println!("seed {seed}, {kills} kills");
    let workspace = corpus::workspace();
    let mut soak = Soak::start(workspace.path(), job, meshes, seed);
    for kill in 1..=kills {
        // every fifth kill happens as soon as possible, and so does a kill whose step the job has already passed
        soak.strike(if kill % 5 == 0 { 0 } else { kill * STEPS_A_KILL });
        if kill % 10 == 0 {
            println!("{kill} of {kills} kills, step {}", soak.step());
        }
    }
    println!("kills by phase: {:?}; {} of the launcher; {} spares", soak.kills, soak.launcher_kills, soak.spare_kills);
    println!("groups by number of stages and replicas: {:?}", soak.counts);
    assert_eq!(soak.kills.values().sum::<usize>() as u64, kills);
    if kills >= 50 {
        // checkpoints in memory load too fast for a kill during `Load`
        let is_struck = |phase: &Phase| *phase != Phase::Load || !job.extra.contains("memory");
        let rare = soak.kills.iter().find(|(phase, kills)| is_struck(phase) && **kills < ENOUGH);
        assert!(rare.is_none(), "{:?}", soak.kills);
        assert_eq!(soak.counts.len(), meshes.len(), "{:?}", soak.counts);
    }
    let folder = soak.folder();
    let (ended, outcome) = soak.finish();
    assert_eq!(outcome.hashes(), undisturbed(&ended), "seed {seed}");
    assert_eq!(recorded_steps(&folder), (1..=ended.steps).collect::<Vec<_>>(), "seed {seed}");
}
