//! The result of a job that nothing disturbs. A process trains it once for all tests that compare with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{Hashes, Launched, TestJob, corpus};

/// The hashes of `job`, run by itself over its corpus, on one stage under 1F1B and without saving: none of that matters
/// to a bit.
///
/// # Panics
/// If it does not finish.
pub fn undisturbed(job: &TestJob) -> Hashes {
    static KNOWN: OnceLock<Mutex<HashMap<String, Arc<OnceLock<Hashes>>>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    let job = &TestJob {
        name: "undisturbed".into(),
        stages: 1,
        data_parallel: 1,
        schedule: "1F1B",
        virtual_stages: 1,
        partition: None,
        transport: "Auto",
        extra: "  checkpoint: {everySteps: 0}\n".into(),
        ..job.clone()
    };
    // the lock is not held while the job is trained: other jobs can be
    let hashes = Arc::clone(known.lock().unwrap_or_else(PoisonError::into_inner).entry(job.yaml()).or_default());
    let train = || {
        let workspace = corpus::workspace();
        // a second a step is far above what any machine takes
        Launched::start(workspace.path(), job, &[]).finish_within(120 + job.steps, workspace.path()).hashes()
    };
    hashes.get_or_init(train).clone()
}
