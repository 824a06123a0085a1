//! Resharding of a memory checkpoint from a group with other replicas. A copy has the parameters that its rank owned in
//! that group. In the new group, other ranks own these parameters. The functions are pure.

use super::choice::CopySource;

/// For each parameter of a stage, its number of values, and its owner among the replicas of the earlier group and of
/// the new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners<'a> {
    pub(super) numels: &'a [u64],
    pub(super) before: &'a [usize],
    pub(super) now: &'a [usize],
}

/// A parameter's part of a copy, which goes to the replica that owns the parameter in the new group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    /// The index of the parameter in its stage.
    pub(super) parameter: usize,
    /// The source of the copy that contains the parameter.
    pub(super) source: CopySource,
    /// The offset in that copy, in values.
    pub(super) source_offset: i64,
    /// The replica that owns the parameter in the new group.
    pub(super) owner: usize,
    /// The offset in the copy of that replica, in values.
    pub(super) offset: i64,
    /// The number of values of the parameter and its moments.
    pub(super) numel: i64,
}

/// Returns all transfers of a stage, one for each parameter. `sources` has the source of this stage's copy for each
/// replica of the earlier group.
pub(super) fn transfers(owners: Owners, sources: &[CopySource]) -> Vec<Transfer> {
    let Owners { numels, before, now } = owners;
    let replicas = 1 + before.iter().chain(now).copied().max().unwrap_or(0);
    let (mut source_offsets, mut offsets) = (vec![0; replicas], vec![0; replicas]);
    let transfer = |(parameter, numel): (usize, &u64)| {
        let (owner_before, owner, numel) = (before[parameter], now[parameter], 3 * *numel as i64);
        let (source_offset, offset) = (source_offsets[owner_before], offsets[owner]);
        source_offsets[owner_before] += numel;
        offsets[owner] += numel;
        Transfer { parameter, source: sources[owner_before], source_offset, owner, offset, numel }
    };
    numels.iter().enumerate().map(transfer).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the copies of all replicas. All values of parameter p and of its first and second moment are p.
    fn copies(numels: &[u64], owners: &[usize], replicas: usize) -> Vec<Vec<usize>> {
        let copy_of_replica = |replica| {
            let owned = (0..numels.len()).filter(move |&parameter| owners[parameter] == replica);
            owned.flat_map(|parameter| vec![parameter; 3 * numels[parameter] as usize]).collect()
        };
        (0..replicas).map(copy_of_replica).collect()
    }

    proptest! {
        #[test]
        fn all_copies_are_those_of_a_group_that_always_had_these_replicas(
            parameters in prop::collection::vec((0u64..5, 0usize..4, 0usize..3), 0..12),
        ) {
            let numels: Vec<u64> = parameters.iter().map(|(numel, ..)| *numel).collect();
            let before: Vec<usize> = parameters.iter().map(|(_, before, _)| *before).collect();
            let now: Vec<usize> = parameters.iter().map(|(.., now)| *now).collect();
            let sources: Vec<CopySource> = (0..4).map(|rank| CopySource { rank, is_own: true }).collect();
            let (then, expected) = (copies(&numels, &before, 4), copies(&numels, &now, 3));
            let mut found: Vec<Vec<usize>> = expected.iter().map(|copy| vec![usize::MAX; copy.len()]).collect();
            for t in transfers(Owners { numels: &numels, before: &before, now: &now }, &sources) {
                let (from, to, numel) = (t.source_offset as usize, t.offset as usize, t.numel as usize);
                found[t.owner][to..to + numel].copy_from_slice(&then[t.source.rank][from..from + numel]);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
