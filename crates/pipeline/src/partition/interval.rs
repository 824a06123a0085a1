//! Dividing a sequence into consecutive intervals, one per stage, with the minimal total: dynamic programming over
//! (stage, items used), O(stages x items^2).

use std::ops::Range;

/// The least total and the lengths that reach it; of several, the lexicographically smallest. None if nothing is
/// allowed.
///
/// `value(stage, range)` is the stage's own value, None where that range is not allowed; `combine` makes a total of a
/// stage's value and the total of the stages after it, and must not fall when either of them rises.
pub(super) fn min_total_split(
    stages: usize,
    items: usize,
    value: impl Fn(usize, Range<usize>) -> Option<u128>,
    combine: fn(u128, u128) -> u128,
) -> Option<(u128, Vec<usize>)> {
    // totals[stage][start]: the least total of stages `stage..` over items `start..`, and the first one's length.
    let mut totals: Vec<Vec<Option<(u128, usize)>>> = vec![vec![None; items + 1]; stages];
    for stage in (0..stages).rev() {
        for start in 0..=items {
            let mut best: Option<(u128, usize)> = None;
            for end in start..=items {
                let rest = match totals.get(stage + 1) {
                    Some(after) => after[end].map(|(total, _)| Some(total)),
                    None => (end == items).then_some(None),
                };
                let (Some(rest), Some(own)) = (rest, value(stage, start..end)) else { continue };
                let total = rest.map_or(own, |rest| combine(own, rest));
                if best.is_none_or(|(least, _)| total < least) {
                    best = Some((total, end - start));
                }
            }
            totals[stage][start] = best;
        }
    }
    let (total, _) = (*totals.first()?.first()?)?;
    let mut start = 0;
    let mut lengths = Vec::with_capacity(stages);
    for stage in &totals {
        let (_, length) = stage[start]?;
        lengths.push(length);
        start += length;
    }
    Some((total, lengths))
}
