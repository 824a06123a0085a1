//! A series of values by step, in bounded memory. For a run of any length, the series has a limited number of buckets.
//! Each bucket has the lowest, the highest and the mean value of its steps. The number of steps in a bucket is a power
//! of two. The module does no I/O.

/// The largest number of buckets. A run with at most this number of steps has a bucket for each step.
const MAX_BUCKETS: usize = 1 << 16;

/// A bucket: the summary of the values of consecutive steps.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    low: f32,
    high: f32,
    sum: f64,
    /// The number of finite values in the bucket.
    count: u32,
}

const EMPTY: Bucket = Bucket { low: f32::INFINITY, high: f32::NEG_INFINITY, sum: 0.0, count: 0 };

impl Bucket {
    fn merged(self, other: Bucket) -> Bucket {
        Bucket {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            sum: self.sum + other.sum,
            count: self.count.saturating_add(other.count),
        }
    }
}

/// A quantity by step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    /// The number of steps in a bucket, a power of two.
    steps_per_bucket: u64,
    /// The buckets. The first step of the bucket at index i is `i * steps_per_bucket`.
    buckets: Vec<Bucket>,
}

impl Default for Series {
    fn default() -> Self {
        Series { steps_per_bucket: 1, buckets: Vec::new() }
    }
}

/// The values of consecutive steps, as one column of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Column {
    /// The middle of the column's steps.
    pub(super) step: f64,
    /// The lowest value.
    pub(super) low: f64,
    /// The highest value.
    pub(super) high: f64,
    /// The mean of the values.
    pub(super) mean: f64,
}

impl Series {
    /// Adds the value of a step. A value that is not finite is left out.
    pub(super) fn push(&mut self, step: u64, value: f64) {
        let value_f32 = value as f32;
        if !value_f32.is_finite() {
            return;
        }
        while step / self.steps_per_bucket >= MAX_BUCKETS as u64 {
            self.halve();
        }
        let index = (step / self.steps_per_bucket) as usize;
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, EMPTY);
        }
        let added = Bucket { low: value_f32, high: value_f32, sum: value, count: 1 };
        self.buckets[index] = self.buckets[index].merged(added);
    }

    fn halve(&mut self) {
        let pairs = self.buckets.chunks(2);
        self.buckets = pairs.map(|pair| pair.iter().fold(EMPTY, |merged, bucket| merged.merged(*bucket))).collect();
        self.steps_per_bucket *= 2;
    }

    /// Returns the values of the steps from `first` to `last` in at most `most + 1` columns, by ascending steps,
    /// without empty columns. Columns begin at multiples of their size. The columns of a growing curve therefore stay
    /// the same until their size doubles.
    pub(super) fn columns(&self, first: u64, last: u64, most: usize) -> Vec<Column> {
        let end = self.buckets.len();
        let from = usize::try_from(first / self.steps_per_bucket).unwrap_or(end).min(end);
        let to =
            usize::try_from(last / self.steps_per_bucket).map_or(end, |last| last.saturating_add(1)).clamp(from, end);
        let size = (to - from).div_ceil(most.max(1)).next_power_of_two();
        let mut columns = Vec::new();
        let mut index = from;
        while index < to {
            let next = ((index / size + 1) * size).min(to);
            columns.extend(self.column(index, next));
            index = next;
        }
        columns
    }

    /// Returns the buckets `from..to` as one column; `None` if the buckets have no value.
    fn column(&self, from: usize, to: usize) -> Option<Column> {
        let merged = self.buckets[from..to].iter().fold(EMPTY, |merged, bucket| merged.merged(*bucket));
        let start = |bucket: usize| (bucket as u64).saturating_mul(self.steps_per_bucket);
        let (first, last) = (start(from), start(to) - 1);
        (merged.count > 0).then(|| Column {
            step: (first as f64 + last as f64) / 2.0,
            low: merged.low.into(),
            high: merged.high.into(),
            mean: merged.sum / f64::from(merged.count),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::default();
        values.iter().enumerate().for_each(|(index, value)| series.push(index as u64 + 1, *value));
        series
    }

    #[test]
    fn few_steps_are_shown_one_by_one() {
        let columns = series(&[3.0, f64::NAN, 2.0, 1.0]).columns(2, 4, 100);
        let shown: Vec<(f64, f64)> = columns.iter().map(|column| (column.step, column.mean)).collect();
        assert_eq!(shown, [(3.0, 2.0), (4.0, 1.0)]);
        assert!(columns.iter().all(|column| column.low == column.mean && column.high == column.mean));
    }

    #[test]
    fn a_spike_stays_visible_in_a_run_of_any_length() {
        for steps in [1_000, 50_000, 300_000] {
            let mut values = vec![1.0; steps];
            values[steps / 3] = 9.0;
            let columns = series(&values).columns(1, steps as u64, 700);
            assert!(columns.len() <= 701 && columns.len() > 300, "{} columns for {steps}", columns.len());
            assert_eq!(columns.iter().filter(|column| column.high == 9.0).count(), 1);
            assert!(columns.iter().all(|column| column.low == 1.0));
        }
    }

    #[test]
    fn memory_is_bounded_whatever_the_steps_are() {
        let mut series = Series::default();
        for step in [0, 1, 1 << 40, u64::MAX, 5] {
            series.push(step, 1.0);
            assert!(series.buckets.len() <= MAX_BUCKETS);
        }
        assert_eq!(series.columns(0, u64::MAX, 10).len(), 2);
        assert!(series.columns(3, 2, 10).len() <= 1 && Series::default().columns(0, 9, 0).is_empty());
    }

    proptest! {
        #[test]
        fn columns_keep_extremes_and_mean(
            values in proptest::collection::vec(-1e3..1e3f64, 1..3000),
            most in 1usize..200,
        ) {
            let last = values.len() as u64;
            let columns = series(&values).columns(1, last, most);
            prop_assert!(!columns.is_empty() && columns.len() <= most + 1);
            prop_assert!(columns.windows(2).all(|pair| pair[0].step < pair[1].step));
            let low = columns.iter().map(|column| column.low).fold(f64::INFINITY, f64::min);
            let high = columns.iter().map(|column| column.high).fold(f64::NEG_INFINITY, f64::max);
            prop_assert_eq!(low, values.iter().copied().fold(f64::INFINITY, f64::min) as f32 as f64);
            prop_assert_eq!(high, values.iter().copied().fold(f64::NEG_INFINITY, f64::max) as f32 as f64);
            prop_assert!(columns.iter().all(|c| c.low - 1e-3 <= c.mean && c.mean <= c.high + 1e-3));
        }

        #[test]
        fn a_growing_curve_keeps_its_columns(values in proptest::collection::vec(0.0..9.0f64, 66..128)) {
            // 65 to 127 steps make columns of two steps
            let before = series(&values[..values.len() - 1]).columns(1, values.len() as u64 - 1, 64);
            let after = series(&values).columns(1, values.len() as u64, 64);
            prop_assert_eq!(&before[..before.len() - 1], &after[..before.len() - 1]);
        }
    }
}
