//! Tests across crates: the real trainer as processes, disturbed in every way, and compared with an undisturbed run.

mod attempts;
mod audit;
mod bad_input;
mod blame;
mod checkpoint_commands;
mod collector;
mod commands;
mod crashes;
mod damage;
mod diff;
mod drain;
mod evaluation;
mod faults;
mod full_volume;
mod host_waits;
mod init;
mod initial;
mod memory;
mod memory_checkpoints;
mod nccl;
mod own_files;
mod page;
mod parity;
mod portable;
mod pressure;
mod replay;
mod replicas;
mod resume;
mod sbom;
mod silent_corruption;
mod soak;
mod spares;
mod storage;
mod strace;
mod survivors;
mod tensorboard;
mod transformers;
mod two_jobs;
mod unequal;
mod why;

use stagecoach_tests::scene::Scene;

/// A job that was stopped half-way, for tests that continue it.
fn scene() -> Scene {
    Scene::new(env!("CARGO_BIN_EXE_faulty"), env!("CARGO_TARGET_TMPDIR"))
}
