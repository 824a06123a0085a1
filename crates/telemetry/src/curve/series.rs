//! The data of the loss curve: points, a smoothed line, and the ranges of the axes.

use crate::StepRecord;

/// A point of the curve: a step, and a loss in nats per token.
pub(super) type CurvePoint = (f64, f64);

/// The losses of a run. A loss that is not finite is a gap in the curve.
#[derive(Debug, Default)]
pub(super) struct LossSeries {
    /// The name of the training losses.
    pub(super) name: String,
    /// The name of the held-out losses.
    pub(super) points_name: String,
    /// The beginning of the x axis.
    pub(super) begin: f64,
    /// Training losses, split at gaps.
    pub(super) training: Vec<Vec<CurvePoint>>,
    /// Smoothed training losses, joined across gaps.
    pub(super) smoothed: Vec<CurvePoint>,
    /// Held-out losses.
    pub(super) held_out: Vec<CurvePoint>,
    /// Unigram entropy of the held-out tokens, in nats per token.
    pub(super) entropy: Option<f64>,
}

impl LossSeries {
    pub(crate) fn new(records: &[StepRecord], entropy: Option<f64>) -> Self {
        let entropy = entropy.filter(|entropy| entropy.is_finite());
        let (name, points_name) = ("training loss".into(), "held-out loss".into());
        let mut series = Self { name, points_name, training: vec![Vec::new()], entropy, ..Self::default() };
        for record in records {
            let step = record.step as f64;
            match loss(record) {
                Some(loss) => series.training.last_mut().into_iter().for_each(|run| run.push((step, loss))),
                None => series.training.push(Vec::new()),
            }
            if let Some(loss) = record.evaluation_loss.filter(|loss| loss.is_finite()) {
                series.held_out.push((step, loss));
            }
        }
        series.training.retain(|run| !run.is_empty());
        series.smoothed = smooth(&series.training.concat());
        series
    }

    /// Returns the series of a comparison: the training losses of `records` are its line, and the training losses of
    /// `others` are its points, called `name`. A comparison draws no held-out losses.
    pub(super) fn comparison(records: &[StepRecord], others: &[StepRecord], name: &str) -> Self {
        let points = |record: &StepRecord| Some((record.step as f64, loss(record)?));
        Self {
            name: "as trained".into(),
            points_name: name.to_owned(),
            begin: records.first().map_or(0.0, |record| record.step.saturating_sub(1) as f64),
            held_out: others.iter().filter_map(points).collect(),
            ..Self::new(records, None)
        }
    }

    /// Returns the range of the x axis, to the last step; `None` without points.
    pub(super) fn steps(&self) -> Option<(f64, f64)> {
        let last = self.points().map(|point| point.0).reduce(f64::max)?;
        Some((self.begin, last.max(self.begin + 1.0)))
    }

    /// Returns the range of the y axis: all losses and the entropy, with a margin; `None` without points.
    pub(super) fn losses(&self) -> Option<(f64, f64)> {
        let low = self.points().map(|point| point.1).reduce(f64::min)?;
        let high = self.points().map(|point| point.1).reduce(f64::max)?;
        let (low, high) = self.entropy.map_or((low, high), |entropy| (low.min(entropy), high.max(entropy)));
        let margin = if high > low { 0.05 * (high - low) } else { 0.5 };
        Some(((low - margin).max(0.0_f64.min(low)), high + margin))
    }

    fn points(&self) -> impl Iterator<Item = CurvePoint> {
        self.training.iter().flatten().chain(&self.held_out).copied()
    }
}

fn loss(record: &StepRecord) -> Option<f64> {
    record.loss.map(f64::from).filter(|loss| loss.is_finite())
}

/// Returns a moving average. The window of a point extends over a sixtieth of all points on either side of the point,
/// so that the average doesn't lag behind the losses.
pub(super) fn smooth(points: &[CurvePoint]) -> Vec<CurvePoint> {
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(points.iter().scan(0.0, |sum, point| {
            *sum += point.1;
            Some(*sum)
        }))
        .collect();
    let mean_around = |(index, point): (usize, &CurvePoint)| {
        let half_window = points.len() / 60;
        let (from, to) = (index.saturating_sub(half_window), (index + half_window + 1).min(points.len()));
        (point.0, (sums[to] - sums[from]) / (to - from) as f64)
    };
    points.iter().enumerate().map(mean_around).collect()
}

/// Reduces the points to about `max_points`: the lowest and the highest loss of every interval of steps, so that spikes
/// stay visible.
pub(super) fn downsample(points: &[CurvePoint], max_points: usize) -> Vec<CurvePoint> {
    if points.len() <= max_points.max(2) {
        return points.to_vec();
    }
    let interval = (points.len() * 2).div_ceil(max_points.max(2));
    let mut kept = Vec::with_capacity(max_points + 2);
    for part in points.chunks(interval) {
        let by_loss = |a: &&CurvePoint, b: &&CurvePoint| a.1.total_cmp(&b.1);
        let mut extremes: Vec<CurvePoint> =
            part.iter().min_by(by_loss).into_iter().chain(part.iter().max_by(by_loss)).copied().collect();
        extremes.sort_by(|a, b| a.0.total_cmp(&b.0));
        extremes.dedup();
        kept.extend(extremes);
    }
    kept
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::curve) fn records(losses: &[f32]) -> Vec<StepRecord> {
        let record = |(index, loss): (usize, &f32)| StepRecord {
            step: index as u64 + 1,
            loss: Some(*loss),
            ..StepRecord::default()
        };
        losses.iter().enumerate().map(record).collect()
    }

    #[test]
    fn losses_that_are_not_finite_are_gaps() {
        let series = LossSeries::new(&records(&[3.0, f32::NAN, 2.0, 1.0, f32::INFINITY]), Some(f64::NAN));
        assert_eq!(series.training, [vec![(1.0, 3.0)], vec![(3.0, 2.0), (4.0, 1.0)]]);
        assert_eq!((series.smoothed.len(), series.entropy, series.steps()), (3, None, Some((0.0, 4.0))));
        assert_eq!(series.losses(), Some((0.9, 3.1)));
    }

    #[test]
    fn no_points_have_no_range_and_one_point_has_one() {
        let none = LossSeries::new(&records(&[f32::NAN]), Some(6.0));
        assert_eq!((none.steps(), none.losses()), (None, None));
        let one = LossSeries::new(&records(&[2.0]), None);
        assert_eq!((one.steps(), one.losses()), (Some((0.0, 1.0)), Some((1.5, 2.5))));
        assert_eq!(LossSeries::new(&records(&[2.0]), Some(8.0)).losses().map(|range| range.1), Some(8.3));
    }

    #[test]
    fn smoothing_does_not_lag_and_downsampling_keeps_spikes() {
        let straight: Vec<CurvePoint> = (0..300).map(|step| (f64::from(step), 9.0 - 0.02 * f64::from(step))).collect();
        assert!(
            smooth(&straight)[5..295]
                .iter()
                .zip(&straight[5..295])
                .all(|(mean, point)| (mean.1 - point.1).abs() < 1e-9)
        );
        assert_eq!(smooth(&[]), []);
        let mut points: Vec<CurvePoint> = (0..10_000).map(|step| (f64::from(step), 1.0)).collect();
        points[7_777].1 = 9.0;
        let reduced = downsample(&points, 1000);
        assert!(reduced.len() <= 1002 && reduced.contains(&(7_777.0, 9.0)));
    }
}
