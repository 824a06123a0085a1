//! A full or failing disk: the save fails with a message, training continues without a restart, the older checkpoint
//! stays, and the next save succeeds.

use std::fs;

use stagecoach_checkpoint::{Manifest, paths};
use stagecoach_test_volumes::{EIO, ENOSPC, VolumeFault};
use stagecoach_tests::corpus::Draws;
use stagecoach_tests::each;
use stagecoach_tests::faulty::{StageCall, StageFault};
use stagecoach_tests::fixture::{COMMITTED, Case, Fixture, STEPS, seed};

/// The job resumes after step 3. It saves at step 4 and at its end.
const CHECKPOINT: &str = "{everySteps: 2, keepLast: 3, mode: Sync}";
const PERIODIC: u64 = 4;
/// The number of failing writes in the sample.
const SAMPLE: usize = 10;

struct StorageFailure {
    call: StageCall,
    errno: i32,
    /// Whether the failure is in the last save of the job.
    last: bool,
}

/// Returns the writes and syncs of the job's two saves, each with `true` if it belongs to the last save.
fn calls(fixture: &Fixture) -> Vec<(StageCall, bool)> {
    fixture.stopped("traced");
    let ran = fixture.run(&Case { name: "traced", checkpoint: CHECKPOINT, fault: "trace", restarts: 0 });
    ran.ended_well(fixture);
    let mut saves = [0; 2]; // the number of saves that each rank has started
    let mut found = Vec::new();
    for call in ran.trace() {
        let begins = match call.rank {
            0 => call.operation == "make_dir" && call.path.contains("/step-"),
            _ => call.operation == "create" && call.path.ends_with("model.safetensors"),
        };
        let saves = &mut saves[call.rank as usize];
        *saves += usize::from(begins);
        if *saves > 0 && ["write", "sync", "sync_dir"].contains(&call.operation.as_str()) {
            found.push((call, *saves == 2));
        }
    }
    assert_eq!(saves, [2; 2]);
    found
}

/// Returns the failures to test. With `STAGECOACH_CRASHES=all`, each of `calls` fails once with each of the two errors.
/// By default, every sync fails with one of the errors, and [`SAMPLE`] failures of writes are drawn at random.
fn failures(calls: Vec<(StageCall, bool)>) -> Vec<StorageFailure> {
    let all = calls
        .into_iter()
        .flat_map(|(call, last)| [ENOSPC, EIO].map(|errno| StorageFailure { call: call.clone(), errno, last }));
    if std::env::var("STAGECOACH_CRASHES").as_deref() == Ok("all") {
        return all.collect();
    }
    let mut draws = Draws(seed());
    let (mut writes, syncs): (Vec<_>, Vec<_>) = all.partition(|f| f.call.operation == "write");
    let mut chosen: Vec<StorageFailure> =
        (0..SAMPLE).map(|_| writes.swap_remove(draws.below(writes.len() as u64) as usize)).collect();
    for pair in syncs.chunks(2) {
        let StorageFailure { call, errno, last } = &pair[draws.below(2) as usize];
        chosen.push(StorageFailure { call: call.clone(), errno: *errno, last: *last });
    }
    chosen
}

fn run(fixture: &Fixture, at: usize, StorageFailure { call, errno, last }: &StorageFailure) {
    let fault = StageFault { rank: call.rank, call: call.number, fault: VolumeFault::Fail(*errno) }.to_string();
    println!("{fault}: {} {}", call.operation, call.path);
    let name = &format!("case-{at}");
    let case = Case { name, checkpoint: CHECKPOINT, fault: &fault, restarts: 3 };
    fixture.stopped(name);
    let ran = fixture.run(&case);
    ran.ended_well(fixture);
    assert_eq!(ran.fired().map(|fired| fired.operation).as_ref(), Some(&call.operation));
    let (step, older) = if *last { (STEPS, PERIODIC) } else { (PERIODIC, COMMITTED[2]) };
    assert!(ran.checkpoints().contains(&older), "the checkpoint before the failed one is gone");
    let printed = &ran.outcome.stdout;
    if !last {
        ran.is_tidy(&[]);
        assert_eq!(ran.attempts(), 1, "a periodic save that failed ended the attempt:\n{printed}");
        let reported = [
            format!("the checkpoint of step {step} failed"),
            format!("remove obsolete files after the save of step {step}"),
        ];
        assert!(reported.iter().any(|reported| printed.contains(reported)), "nothing is reported:\n{printed}");
    }
}

#[test]
fn a_save_that_fails_costs_a_checkpoint_and_nothing_else() {
    let fixture = crate::fixture();
    let failures = failures(calls(&fixture));
    println!("{} failures, seed {}", failures.len(), seed());
    each("failures", &failures, |at, failure| run(&fixture, at, failure));
}

/// A stage reads only its own tensors, since a checkpoint may be hundreds of times as large as a stage's part of it.
#[test]
fn a_stage_reads_its_own_tensors_of_a_checkpoint_once_and_no_others() {
    let fixture = crate::fixture();
    let newest = paths::checkpoint_path(COMMITTED[2]);
    let manifest = fs::read(fixture.stopped("read").join(&newest).join(paths::MANIFEST_FILE)).unwrap();
    let manifest = Manifest::parse(&manifest).unwrap();
    let ran = fixture.run(&Case { name: "read", checkpoint: CHECKPOINT, fault: "trace", restarts: 0 });
    ran.ended_well(&fixture);
    let trace = ran.trace();
    for rank in 0..2 {
        let is_shard = |path: &str| path.starts_with(&newest) && path.ends_with(".safetensors");
        let reads = trace.iter().filter(|call| call.rank == rank && is_shard(&call.path));
        let own = manifest.tensors.iter().filter(|tensor| tensor.file.starts_with(&format!("stage-{rank}.")));
        let (read, held): (u64, u64) = (reads.map(|call| call.bytes_read).sum(), own.map(|tensor| tensor.bytes).sum());
        assert!(held > 0 && read == held, "stage {rank} holds {held} bytes and has read {read}");
    }
}

/// The job refuses the volume before it trains a step, and does not restart.
#[test]
fn a_volume_that_can_not_rename_folders_is_refused() {
    let fixture = crate::fixture();
    fixture.stopped("traced");
    let ran = fixture.run(&Case { name: "traced", checkpoint: CHECKPOINT, fault: "trace", restarts: 0 });
    let call = ran
        .trace()
        .into_iter()
        .find(|call| call.operation == "rename" && call.path.starts_with("checkpoints/.probe-"))
        .unwrap();
    const ENOSYS: i32 = 38;
    let fault = StageFault { rank: call.rank, call: call.number, fault: VolumeFault::Fail(ENOSYS) }.to_string();
    fixture.stopped("refused");
    let ran = fixture.run(&Case { name: "refused", checkpoint: CHECKPOINT, fault: &fault, restarts: 3 });
    let printed = ran.outcome.stdout.clone() + &ran.outcome.stderr;
    assert_eq!((ran.outcome.status.code(), ran.attempts()), (Some(78), 1), "{printed}");
    assert!(
        printed.contains("can't rename a folder") && printed.contains("not an object store that is mounted"),
        "{printed}"
    );
    assert!(!printed.contains("\nstep "), "{printed}");
}
