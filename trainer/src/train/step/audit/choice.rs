//! The choice of audited work and of its auditor. The functions are pure, so that all stages make the same choice
//! without communication.

use stagecoach_api::job::AuditSpec;
use stagecoach_pipeline::{GradientBlocks, Placement, Replica, WorkItem};

/// An audited work item: one microbatch of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AuditedItem {
    /// The rank that computed the work.
    pub(super) rank: usize,
    /// The chunk and the microbatch, as the program of that rank numbers them.
    pub(super) item: WorkItem,
    /// The microbatch, counted over all replicas.
    pub(super) microbatch: usize,
}

/// Returns the audited item of `step` in a group with `replicas` replicas of the pipeline. Returns `None` if the step
/// is not audited.
pub(super) fn audited_item(
    spec: AuditSpec,
    seed: u64,
    step: u64,
    placement: &Placement,
    (blocks, replicas): (GradientBlocks, usize),
) -> Option<AuditedItem> {
    if !step.is_multiple_of(spec.every_steps.into()) {
        return None;
    }
    let drawn = blake3::hash(format!("audit {seed} {step}").as_bytes());
    let mut numbers =
        drawn.as_bytes().chunks_exact(8).map(|bytes| bytes.iter().fold(0, |n, &byte| n << 8 | u64::from(byte)));
    let mut below = |count: usize| (numbers.next().unwrap_or(0) % count.max(1) as u64) as usize;
    let (replica, chunk) = (Replica { index: below(replicas), count: replicas }, below(placement.chunks()));
    let microbatches = blocks.of_replica(replica.index, replicas).microbatches();
    let microbatch = below(microbatches.len());
    Some(AuditedItem {
        rank: replica.rank(placement.rank_of(chunk), placement.ranks()),
        item: WorkItem { chunk, microbatch },
        microbatch: microbatches.start + microbatch,
    })
}

/// Returns the rank, among `ranks` ranks, that recomputes the work of `rank`. The rank `rank` has an audit link to the
/// returned rank.
pub(super) fn auditor(rank: usize, ranks: usize) -> usize {
    (rank + 1) % ranks
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use stagecoach_api::job::OnDifference;

    use super::*;

    #[test]
    fn every_chunk_and_microbatch_of_every_replica_is_audited_sooner_or_later() {
        let spec = AuditSpec { every_steps: 3, on_difference: OnDifference::Report };
        let placement = Placement::looped(3, 2);
        let blocks = (GradientBlocks::new(4, 8).unwrap(), 3);
        let item = |step| audited_item(spec, 7, step, &placement, blocks);
        assert_eq!((item(1), item(2), item(3)), (None, None, item(3)));
        let items: Vec<AuditedItem> = (1..3000).filter_map(item).collect();
        assert_eq!(items.len(), 999);
        let all: BTreeSet<_> = items.iter().map(|audited| (audited.item.chunk, audited.microbatch)).collect();
        assert_eq!(all.len(), 6 * 8);
        for audited in items {
            let (replica, stage) = (audited.rank / 3, audited.rank % 3);
            let own = blocks.0.of_replica(replica, 3).microbatches();
            assert_eq!(stage, audited.item.chunk % 3);
            assert_eq!(own.start + audited.item.microbatch, audited.microbatch);
            assert!(own.contains(&audited.microbatch));
        }
    }
}
