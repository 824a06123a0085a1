//! Tests across crates that take minutes. They run the real trainer's processes, disturb them in many ways, and compare
//! the results with those of an undisturbed run.

// The tests run in the order of their names, and few tests run beside the last ones. The names therefore put no long
// test that mostly waits at the end, because the cores would be idle.
mod attempts;
mod audit;
mod blame;
mod collector;
mod conversations;
mod crashes;
mod damage;
mod data_streaming;
mod diff;
mod drain;
mod evaluation;
mod fine_tuning;
mod full_volume;
mod held_out;
mod initial;
mod memory;
mod memory_checkpoints;
mod nccl;
mod page;
mod pressure;
mod remote_models;
mod replay;
mod replicas;
mod resume;
mod silent_corruption;
mod soak;
mod sources;
mod spares;
mod storage;
mod strace;
mod tensorboard;
mod transformers;
mod unequal;

use stagecoach_tests::fixture::Fixture;

/// Returns a job that was stopped before its end, for tests that continue it.
fn fixture() -> Fixture {
    Fixture::new(env!("CARGO_BIN_EXE_faulty"), env!("CARGO_TARGET_TMPDIR"))
}
