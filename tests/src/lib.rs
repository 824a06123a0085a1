//! Helpers for tests that run the real binary. They write job files, generate a corpus from a seed, and read results
//! from the job's folder. They panic on failure, so that the test fails.

pub mod block_io;
pub mod browser;
pub mod combinations;
pub mod corpus;
mod each;
pub mod faulty;
pub mod fill_volume;
pub mod fixture;
mod group;
mod hashes;
mod in_process;
mod job;
mod launched;
pub mod nccl;
pub mod page_reader;
pub mod phases;
pub mod soak;
mod undisturbed;

pub use each::each;
pub use group::{Ended, Group};
pub use hashes::Hashes;
pub use in_process::{InProcessStage, TIMEOUT, in_process_group};
pub use job::TestJob;
pub use launched::{
    Launched, Outcome, checkpoints, entrypoint, fences, only_child, recorded_state, refusal, run, run_command, saved,
    says, signal, stagecoach, stages,
};
pub use stagecoach_test_wait::{Deadline, is_gone, spawn, until, until_within};
pub use undisturbed::{ends_undisturbed, undisturbed};

/// Returns the folder of a tiny Llama of two layers in the format of Hugging Face's tools, with a tokenizer for the
/// corpus of [`corpus`].
pub fn hugging_face() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("hugging_face/tiny-llama")
}

/// Returns a path as a command's argument.
///
/// # Panics
/// If the path is not UTF-8.
pub fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

/// Asserts that no file below `folder` contains `word`, for example a secret.
pub fn no_file_has(folder: &std::path::Path, word: &str) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            no_file_has(&path, word);
        } else if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            assert!(
                !bytes.windows(word.len()).any(|found| found == word.as_bytes()),
                "{word:?} is in {}",
                path.display()
            );
        }
    }
}

/// Returns the peak resident memory, in bytes, of each stage of the job in `folder`. The last line of the job's metrics
/// contains these numbers.
pub fn peak_bytes(folder: &std::path::Path) -> Vec<u64> {
    let last = fixture::records(folder).pop().unwrap();
    last["peakBytes"].as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).collect()
}

/// Whether this processor has AVX512. Tests emulate other processors by disabling instruction sets, so a test can
/// emulate an AVX512 processor only if this processor has AVX512.
pub fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bw");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
