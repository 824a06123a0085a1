//! The removal of the files that older groups left on the volume. These groups have lost the fence, which is the right
//! to commit checkpoints. The removal runs concurrently with training, because the files may be many gigabytes large
//! and nothing depends on their removal.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use stagecoach_api::job::CheckpointMode;
use stagecoach_checkpoint::{Volume, remove_stale_fences};

use crate::train::context::StageContext;

/// The removals of stale files by one process, over all groups that the process leads. A process that must exit does
/// not wait for the removals, because the next process removes the remaining files.
pub(in crate::train) struct StaleFenceRemoval {
    volume: Arc<dyn Volume>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StaleFenceRemoval {
    pub(in crate::train) fn of(volume: &Arc<dyn Volume>) -> StaleFenceRemoval {
        StaleFenceRemoval { volume: Arc::clone(volume), thread: Mutex::default() }
    }

    /// Starts to remove the stale files, after the removals of earlier calls. With `checkpoint.mode: Sync`, training
    /// waits for the removal, as for all work on the volume.
    pub(in crate::train) fn begin(&self, context: &StageContext) {
        let (volume, monitor) = (Arc::clone(&self.volume), context.monitor.clone());
        let remove = move || {
            if let Err(error) = remove_stale_fences(&*volume) {
                monitor.note(format!("could not remove the files of older groups: {error}"));
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
                let message =
                    format!("the files of older groups are not removed yet: could not start a thread ({error})");
                context.monitor.note(message);
            }
        }
    }

    /// Waits until the removals of earlier calls have ended.
    pub(in crate::train) fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}
