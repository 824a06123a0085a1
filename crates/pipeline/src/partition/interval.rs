//! Dividing a sequence into consecutive intervals, one per chunk, with the minimal total: dynamic programming over
//! (chunk, items used), O(chunks x items^2).

use std::ops::Range;

/// The least total and the lengths that reach it; of several solutions, the lexicographically smallest lengths. `None`
/// if no division is allowed.
///
/// `value(chunk, range)` is the chunk's own value, `None` if the range is not allowed. `combine` computes a total from
/// a chunk's value and the total of the chunks after it, and must be monotonic in both.
pub(super) fn min_total_split(
    chunks: usize,
    items: usize,
    value: impl Fn(usize, Range<usize>) -> Option<u128>,
    combine: fn(u128, u128) -> u128,
) -> Option<(u128, Vec<usize>)> {
    // totals[chunk][start]: the least total of chunks `chunk..` over items `start..`, and the first one's length.
    let mut totals: Vec<Vec<Option<(u128, usize)>>> = vec![vec![None; items + 1]; chunks];
    for chunk in (0..chunks).rev() {
        for start in 0..=items {
            let mut best: Option<(u128, usize)> = None;
            for end in start..=items {
                let rest = match totals.get(chunk + 1) {
                    Some(after) => after[end].map(|(total, _)| Some(total)),
                    None => (end == items).then_some(None),
                };
                let (Some(rest), Some(own)) = (rest, value(chunk, start..end)) else { continue };
                let total = rest.map_or(own, |rest| combine(own, rest));
                if best.is_none_or(|(least, _)| total < least) {
                    best = Some((total, end - start));
                }
            }
            totals[chunk][start] = best;
        }
    }
    let (total, _) = (*totals.first()?.first()?)?;
    let mut start = 0;
    let mut lengths = Vec::with_capacity(chunks);
    for chunk in &totals {
        let (_, length) = chunk[start]?;
        lengths.push(length);
        start += length;
    }
    Some((total, lengths))
}
