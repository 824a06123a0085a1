//! Removing old checkpoints.

use std::io::ErrorKind;

use crate::error::{CheckpointError, on};
use crate::fence::{Fence, sync};
use crate::layout::{self, CHECKPOINTS};
use crate::load::list;
use crate::volume::{Volume, move_dir, remove_tree};

/// What to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many; at least one is always kept.
    pub last: usize,
    /// And the first one at or after every multiple of so many steps: a save that had to wait for the one before is no
    /// multiple. 0 for none.
    pub every: u64,
}

/// Which of `steps` to remove, oldest first. The newest always stays.
pub fn doomed(steps: &[u64], keep: Keep) -> Vec<u64> {
    let mut steps = steps.to_vec();
    steps.sort_unstable();
    steps.dedup();
    let mut multiple = 0;
    let mut first_after_a_multiple = |step: u64| {
        let last = step.checked_div(keep.every).unwrap_or(0);
        std::mem::replace(&mut multiple, last) < last
    };
    let keepers: Vec<bool> = steps.iter().map(|&step| first_after_a_multiple(step)).collect();
    let old = steps.len().saturating_sub(keep.last.max(1));
    steps.into_iter().zip(keepers).take(old).filter(|(_, keeper)| !keeper).map(|(step, _)| step).collect()
}

/// Removes the checkpoints that needn't be kept, each first moved into the fence, and says which. `intact` is the newest
/// one that is known to be whole (loaded or committed by this group): it stays, and what is newer doesn't count.
///
/// # Errors
/// `FencedOff`, or if the volume refuses; what was moved by then is gone for readers, and the next save clears it.
pub fn prune(volume: &dyn Volume, fence: &Fence, keep: Keep, intact: u64) -> Result<Vec<u64>, CheckpointError> {
    let mut steps = list(volume)?.steps;
    steps.retain(|&step| step <= intact);
    if !steps.contains(&intact) {
        return Ok(Vec::new()); // then nothing here is known to be good
    }
    let steps = doomed(&steps, keep);
    let work = fence.work();
    let mut moved = Vec::new();
    for &step in &steps {
        let from = layout::checkpoint(step);
        let to = format!("{work}/pruned-{}", layout::step_name(step));
        match move_dir(volume, &from, &to) {
            Ok(()) => moved.push(to),
            // gone already, or the fence is
            Err(e) if e.kind() == ErrorKind::NotFound => fence.check(volume)?,
            Err(e) => return Err(on(volume, "prune", &from)(e)),
        }
    }
    if !moved.is_empty() {
        // or a power cut could bring a half-removed one back
        sync(volume, &work).and_then(|()| sync(volume, CHECKPOINTS)).map_err(|e| fence.explain(volume, e))?;
    }
    for path in moved {
        remove_tree(volume, &path).map_err(|e| fence.explain(volume, on(volume, "remove", &path)(e)))?;
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keepers_stay() {
        let doom = |last, every| doomed(&[300, 100, 200, 400, 500], Keep { last, every });
        assert_eq!(doom(3, 0), [100, 200]);
        assert_eq!(doom(2, 200), [100, 300]);
        assert_eq!(doom(0, 0), [100, 200, 300, 400]);
        // the save due at 200 waited until 201; 210 was a stop's
        assert_eq!(doomed(&[100, 201, 210, 300, 301, 400], Keep { last: 1, every: 100 }), [210, 301]);
        assert_eq!(doom(9, 0), [0; 0]);
    }

    proptest! {
        #[test]
        fn the_newest_so_many_and_every_keeper_stay(
            steps in prop::collection::btree_set(0u64..2000, 0..20), last in 0usize..5, every in 0u64..7
        ) {
            let steps: Vec<u64> = steps.into_iter().collect();
            let doomed = doomed(&steps, Keep { last, every });
            for (at, step) in steps.iter().enumerate() {
                let newest = steps.len() - at <= last.max(1);
                let before = at.checked_sub(1).map_or(0, |before| steps[before]);
                let keeper = every > 0 && step / every > before / every;
                prop_assert_eq!(doomed.contains(step), !newest && !keeper);
            }
            prop_assert!(doomed.is_sorted());
        }
    }
}
