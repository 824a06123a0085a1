//! A job on a slow volume defers saves. A job whose volume stays full ends after all its attempts to save have failed,
//! and loses no checkpoint.

use stagecoach_tests::block_io::{self, IoBlock};
use stagecoach_tests::fixture::{COMMITTED, Case, records};
use stagecoach_tests::phases::Phase;
use stagecoach_tests::{says, until};

#[test]
fn a_save_that_falls_due_while_one_is_written_waits() {
    let fixture = crate::fixture();
    fixture.stopped("slow");
    let fault = IoBlock::new(0, Phase::Write).unwrap().to_string();
    let notes = fixture.path("slow.notes");
    std::fs::create_dir(&notes).unwrap();
    block_io::arm(&notes);
    let case = Case { name: "slow", checkpoint: "{everySteps: 1, keepLast: 9}", fault: &fault, restarts: 0 };
    let deferred = "the checkpoint due at step 5 is deferred: the previous one is still being written";
    let ran = std::thread::scope(|scope| {
        let running = scope.spawn(|| fixture.run(&case));
        // the save of step 5 is due before the save of step 4 has finished
        let printed = || std::fs::read_to_string(notes.join("stdout")).unwrap_or_default();
        until("the save to be deferred", || (running.is_finished() || printed().contains(deferred)).then_some(()));
        block_io::release(&notes);
        running.join().unwrap()
    });
    ran.ended_well(&fixture);
    // the job never omits its last save, which waits for the save before it
    says(&ran.outcome, deferred);
    assert_eq!(ran.checkpoints(), [6, 4, 3, 2, 1]);
}

#[test]
fn a_volume_that_stays_full_ends_the_job_after_all_tries_and_loses_no_checkpoint() {
    let fixture = crate::fixture();
    fixture.stopped("full");
    let case =
        Case { name: "full", checkpoint: "{everySteps: 2, keepLast: 9, mode: Sync}", fault: "full", restarts: 0 };
    let file = fixture.job(&case);
    let yaml = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, yaml.replace("maxRestarts: 0", "maxRestarts: 0, stallTimeoutSeconds: 3")).unwrap();
    let ran = fixture.run_file(&case, &file);
    assert_eq!(ran.outcome.status.code(), Some(74), "{}\n{}", ran.outcome.stdout, ran.outcome.stderr);
    says(&ran.outcome, "the checkpoint of step 4 failed: ");
    says(&ran.outcome, "the checkpoint of step 6 failed and is tried again: ");
    says(&ran.outcome, "the checkpoint of step 6 could not be saved: ");
    assert_eq!(ran.checkpoints(), [COMMITTED[2], COMMITTED[1], COMMITTED[0]]);
    // the metrics contain the failure too
    let records = records(&ran.folder);
    let mut saves = records.iter().filter_map(|line| line.get("checkpoint"));
    let failed = saves.find(|save| save["step"] == 4).expect("the save of step 4 in the metrics");
    assert!(failed["error"].as_str().is_some_and(|error| error.contains("could not write")), "{failed}");
}
