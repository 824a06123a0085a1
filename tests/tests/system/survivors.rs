//! When a stage is lost, the other stages keep the state from which the next group resumes, and so do not read the
//! checkpoint.

use std::path::Path;

use stagecoach_tests::faulty::{FAULT_VARIABLE, RECORDS_VARIABLE, tensor_bytes_read};
use stagecoach_tests::{Launched, TestJob, checkpoints, corpus, signal, until};

/// Returns the number of bytes of weights and optimizer moments that each of three stages has read after the loss of
/// stage 1.
fn bytes_read(checkpoint: &str) -> [u64; 3] {
    let workspace = corpus::workspace();
    let workspace = workspace.path();
    let extra = format!("  checkpoint: {checkpoint}\n  restart: {{backoff: {{initialSeconds: 0}}}}\n");
    let job = TestJob { name: "read".into(), decay_steps: Some(60), extra, ..TestJob::default() }.endless();
    let (file, folder, records) = (workspace.join("read.yaml"), workspace.join("read"), workspace.join("records"));
    std::fs::write(&file, job.yaml()).unwrap();
    std::fs::create_dir(&records).unwrap();
    let environment = [(FAULT_VARIABLE, "trace"), (RECORDS_VARIABLE, records.to_str().unwrap())];
    let faulty = Path::new(env!("CARGO_BIN_EXE_faulty"));
    let mut launched = Launched::start_program(faulty, workspace, &file, folder.clone(), &[], &environment);
    until("a checkpoint", || (!checkpoints(&folder).is_empty()).then_some(()));
    // the next save must not have started before the kill: the other stages would then hold the state of that save
    signal(launched.wait_for_stages(3)[1], libc::SIGKILL);
    launched.wait_for_restart(workspace);
    launched.interrupt(workspace);
    tensor_bytes_read(&records)
}

/// In the default `mode: Async`, a stage keeps the copy of its state that it has saved. A synchronous save makes no
/// such copy, since it writes the weights themselves.
#[test]
fn only_a_replacement_reads_the_checkpoint() {
    let read = bytes_read("{everySteps: 200}");
    assert!(read[0] == 0 && read[1] > 0 && read[2] == 0, "{read:?}");
}

#[test]
fn no_stage_reads_the_checkpoint_if_there_are_checkpoints_in_memory() {
    assert_eq!(bytes_read("{everySteps: 50, memory: {everySteps: 1}}"), [0; 3]);
}
