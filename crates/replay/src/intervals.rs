//! The intervals of a run between its checkpoints, and a random sample of these intervals.

use std::fmt;

/// The steps of a run that one replay trains again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The step of the checkpoint from which the replay starts; 0 for the initial weights.
    pub after: u64,
    /// The last step of the interval.
    pub until: u64,
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.after + 1 == self.until {
            true => write!(f, "step {}", self.until),
            false => write!(f, "steps {} to {}", self.after + 1, self.until),
        }
    }
}

/// Returns the intervals of a run of `last` steps that has checkpoints at the ascending `steps`. The last interval ends
/// at the last step, even if this step has no checkpoint.
pub fn intervals(steps: &[u64], last: u64) -> Vec<Interval> {
    let mut ends: Vec<u64> = steps.iter().copied().filter(|step| *step > 0).collect();
    ends.extend((ends.last().copied().unwrap_or(0) < last).then_some(last));
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends.iter().copied()).map(|(after, until)| Interval { after, until }).collect()
}

/// Returns a random sample of `count` intervals, in their order, or all intervals if there are at most `count`. Each
/// interval is equally likely.
pub fn sample(intervals: &[Interval], count: usize, seed: u64) -> Vec<Interval> {
    let mut drawn = intervals.to_vec();
    let mut state = seed;
    // the sample is the first `count` elements of a Fisher-Yates shuffle
    for at in 0..count.min(drawn.len()) {
        let other = at + (next(&mut state) % (drawn.len() - at) as u64) as usize;
        drawn.swap(at, other);
    }
    drawn.truncate(count);
    drawn.sort_unstable();
    drawn
}

/// Returns the next number of the generator SplitMix64 (Steele, Lea and Flood, 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(after: u64, until: u64) -> Interval {
        Interval { after, until }
    }

    #[test]
    fn intervals_cover_every_step_once() {
        assert_eq!(intervals(&[10, 20], 25), [of(0, 10), of(10, 20), of(20, 25)]);
        assert_eq!(intervals(&[10, 20], 20), [of(0, 10), of(10, 20)]);
        assert_eq!(intervals(&[], 5), [of(0, 5)]);
        assert_eq!(intervals(&[], 0), []);
        assert_eq!([of(4, 5).to_string(), of(0, 5).to_string()], ["step 5", "steps 1 to 5"]);
    }

    #[test]
    fn a_sample_follows_from_its_seed_and_reaches_all() {
        let all = intervals(&[1, 2, 3, 4, 5, 6, 7, 8], 8);
        assert_eq!(sample(&all, 3, 7), sample(&all, 3, 7));
        assert_eq!(sample(&all, 99, 7), all);
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let drawn = sample(&all, 3, seed);
            assert_eq!(BTreeSet::from_iter(&drawn).len(), 3, "each once");
            assert!(drawn.is_sorted());
            seen.extend(drawn);
        }
        assert_eq!(seen.len(), all.len());
    }
}
