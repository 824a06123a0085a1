//! Removes the files that fenced-off groups left on the volume, concurrently with training: they may be many gigabytes,
//! and nothing depends on the removal.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use stagecoach_api::job::CheckpointMode;
use stagecoach_checkpoint::{Volume, remove_stale_fences};

use crate::train::context::StageContext;

/// The removal, for all groups in which a stage 0 takes part. A process that must leave does not wait for it: the next
/// process removes the rest.
pub(in crate::train) struct StaleFenceRemoval {
    volume: Arc<dyn Volume>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StaleFenceRemoval {
    pub(in crate::train) fn of(volume: &Arc<dyn Volume>) -> StaleFenceRemoval {
        StaleFenceRemoval { volume: Arc::clone(volume), thread: Mutex::default() }
    }

    /// Starts to remove the files that exist now, after the removals of earlier calls. With `checkpoint.mode: Sync`
    /// training waits for it, as for all other work on the volume.
    pub(in crate::train) fn begin(&self, context: &StageContext) {
        let (volume, monitor) = (Arc::clone(&self.volume), context.monitor.clone());
        let remove = move || {
            if let Err(error) = remove_stale_fences(&*volume) {
                monitor.note(format!("could not remove what older groups left: {error}"));
            }
        };
        if context.config.job.spec.checkpoint.mode == CheckpointMode::Sync {
            return remove();
        }
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = thread.take();
        let work = move || {
            if let Some(earlier) = earlier {
                let _ = earlier.join();
            }
            remove();
        };
        match Builder::new().name("stale-fences".into()).spawn(work) {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => {
                let message = format!("what older groups left stays for now: no thread to remove it ({error})");
                context.monitor.note(message);
            }
        }
    }

    /// Waits until all files are removed.
    pub(in crate::train) fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
