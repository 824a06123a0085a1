//! Tests across crates that take minutes. They run the real trainer's processes, disturb them in many ways, and compare
//! the results with those of an undisturbed run.

// The tests run in the order of their names. A long test that mostly waits is therefore not among the last ones, beside
// which no other test would use the cores.
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
