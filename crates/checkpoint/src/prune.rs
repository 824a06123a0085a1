//! Removes old checkpoints.

use std::io::ErrorKind;

use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::load::list;
use crate::paths::{self, CHECKPOINTS_DIR};
use crate::volume::{Volume, io_error_on, remove_tree, rename_idempotent, sync_dir};

/// The rule that decides which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// The number of newest checkpoints to keep. The newest checkpoint is kept even if the number is 0.
    pub keep_last: usize,
    /// The interval, in steps, of further checkpoints to keep. 0 disables the rule. For every multiple of the interval,
    /// the policy keeps the first checkpoint at or after the multiple, because a save can be deferred to a later step.
    pub keep_every: u64,
    /// The step of the best checkpoint, which the policy also keeps.
    pub best: Option<u64>,
}

/// Returns the elements of `steps` to remove, oldest first. The newest step is always kept.
pub fn to_prune(steps: &[u64], policy: RetentionPolicy) -> Vec<u64> {
    let mut steps = steps.to_vec();
    steps.sort_unstable();
    steps.dedup();
    let mut multiple = 0;
    let mut first_after_a_multiple = |step: u64| {
        let last = step.checked_div(policy.keep_every).unwrap_or(0);
        std::mem::replace(&mut multiple, last) < last
    };
    let kept: Vec<bool> = steps.iter().map(|&step| first_after_a_multiple(step) || policy.best == Some(step)).collect();
    let old = steps.len().saturating_sub(policy.keep_last.max(1));
    steps.into_iter().zip(kept).take(old).filter(|(_, kept)| !kept).map(|(step, _)| step).collect()
}

/// Removes the checkpoints that `policy` does not keep, and returns their steps. The function moves all these
/// checkpoints into the fence's folder before it removes their files. `intact` is the newest checkpoint that this group
/// has loaded or committed. The function keeps this checkpoint and all newer checkpoints. The newer checkpoints do not
/// count towards the policy.
///
/// # Errors
/// Returns [`CheckpointError::FencedOff`] if the group has lost the fence, or another error if the volume fails. After
/// an error, the next save removes the checkpoints that this call has moved.
pub fn prune(
    volume: &dyn Volume,
    fence: &Fence,
    policy: RetentionPolicy,
    intact: u64,
) -> Result<Vec<u64>, CheckpointError> {
    let mut steps = list(volume)?.steps;
    steps.retain(|&step| step <= intact);
    if !steps.contains(&intact) {
        return Ok(Vec::new()); // no checkpoint is known to be intact
    }
    let steps = to_prune(&steps, policy);
    if !steps.is_empty() {
        fence.check(volume)?;
    }
    let work = fence.work_dir();
    let mut moved = Vec::new();
    for &step in &steps {
        let from = paths::checkpoint_path(step);
        let to = format!("{work}/pruned-{}", paths::step_dir_name(step));
        match rename_idempotent(volume, &from, &to) {
            Ok(()) => moved.push(to),
            // another process removed the checkpoint, or this group is fenced off
            Err(e) if e.kind() == ErrorKind::NotFound => fence.check(volume)?,
            Err(e) => return Err(io_error_on(volume, "prune", &from)(e)),
        }
    }
    if !moved.is_empty() {
        // without the sync, a power failure could restore a partly removed checkpoint
        sync_dir(volume, &work)
            .and_then(|()| sync_dir(volume, CHECKPOINTS_DIR))
            .map_err(|e| fence.or_fenced_off(volume, e))?;
    }
    for path in moved {
        remove_tree(volume, &path).map_err(|e| fence.or_fenced_off(volume, io_error_on(volume, "remove", &path)(e)))?;
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kept_steps_are_not_pruned() {
        let pruned = |keep_last, keep_every| {
            to_prune(&[300, 100, 200, 400, 500], RetentionPolicy { keep_last, keep_every, best: None })
        };
        assert_eq!(pruned(3, 0), [100, 200]);
        assert_eq!(pruned(2, 200), [100, 300]);
        assert_eq!(pruned(0, 0), [100, 200, 300, 400]);
        // the save due at step 200 was deferred to step 201, and step 210 was saved because the job was stopped
        assert_eq!(
            to_prune(&[100, 201, 210, 300, 301, 400], RetentionPolicy { keep_last: 1, keep_every: 100, best: None }),
            [210, 301]
        );
        assert_eq!(pruned(9, 0), [0; 0]);
    }

    proptest! {
        #[test]
        fn newest_n_and_every_multiple_are_kept(
            steps in prop::collection::btree_set(0u64..2000, 0..20), keep_last in 0usize..5, keep_every in 0u64..7
        ) {
            let steps: Vec<u64> = steps.into_iter().collect();
            let pruned = to_prune(&steps, RetentionPolicy { keep_last, keep_every, best: None });
            for (at, step) in steps.iter().enumerate() {
                let newest = steps.len() - at <= keep_last.max(1);
                let before = at.checked_sub(1).map_or(0, |before| steps[before]);
                let multiple = keep_every > 0 && step / keep_every > before / keep_every;
                prop_assert_eq!(pruned.contains(step), !newest && !multiple);
            }
            prop_assert!(pruned.is_sorted());
        }
    }
}
