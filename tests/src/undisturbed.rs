//! The result of a job without disturbances. Each test process trains the job once for all tests that compare with it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::{Deadline, Hashes, Launched, Outcome, TestJob, corpus, saved};

/// Returns the hashes of `job`, trained on the same corpus with one stage, the schedule 1F1B and no saves. None of
/// these settings changes a bit of the result.
///
/// # Panics
/// If the job does not finish.
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
        recompute: "None",
        extra: "  checkpoint: {everySteps: 0}\n".into(),
        ..job.clone()
    };
    // the lock is free while the job trains, so that other jobs can train too
    let hashes = Arc::clone(known.lock().unwrap_or_else(PoisonError::into_inner).entry(job.yaml()).or_default());
    let train = || {
        let workspace = corpus::workspace();
        let launched = Launched::start(workspace.path(), job, &[]);
        // the job of a soak has thousands of steps, and every machine trains a step in less than a second
        launched.finish_before(Deadline::after(240 + job.steps), workspace.path()).hashes()
    };
    hashes.get_or_init(train).clone()
}

/// Resumes `job` from its newest checkpoint, and trains it to an end that comes soon. Returns the outcome.
///
/// # Panics
/// If the hashes are not those of the undisturbed job.
#[track_caller]
pub fn ends_undisturbed(workspace: &Path, job: &TestJob) -> Outcome {
    let rest = job.ending_after(saved(&workspace.join(&job.name)));
    let outcome = Launched::start(workspace, &rest, &[]).finish(workspace);
    assert_eq!(outcome.hashes(), undisturbed(&rest), "{job:?}");
    outcome
}
