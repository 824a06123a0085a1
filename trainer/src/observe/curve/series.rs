//! What both pictures draw: points, a smoothed line, and the ranges of the axes.

use crate::observe::StepRecord;

/// A step and a loss in nats.
pub(super) type Point = (f64, f64);

/// The points of a run. Losses that aren't finite are gaps.
#[derive(Debug, Default)]
pub(super) struct Series {
    /// Training losses, cut at the gaps.
    pub(super) training: Vec<Vec<Point>>,
    /// The same, smoothed; it runs over the gaps.
    pub(super) smoothed: Vec<Point>,
    /// Held-out losses.
    pub(super) held_out: Vec<Point>,
    /// Unigram entropy of the held-out part, in nats.
    pub(super) entropy: Option<f64>,
}

impl Series {
    pub(super) fn new(records: &[StepRecord], entropy: Option<f64>) -> Self {
        let entropy = entropy.filter(|entropy| entropy.is_finite());
        let mut series = Self { training: vec![Vec::new()], entropy, ..Self::default() };
        for record in records {
            let step = record.step as f64;
            match record.loss.map(f64::from).filter(|loss| loss.is_finite()) {
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

    /// The first and last step drawn; none without points. The axis starts at 0.
    pub(super) fn steps(&self) -> Option<(f64, f64)> {
        let last = self.points().map(|point| point.0).reduce(f64::max)?;
        Some((0.0, last.max(1.0)))
    }

    /// The lowest and highest loss drawn, the entropy's line included, and a little more on both sides.
    pub(super) fn losses(&self) -> Option<(f64, f64)> {
        let low = self.points().map(|point| point.1).reduce(f64::min)?;
        let high = self.points().map(|point| point.1).reduce(f64::max)?;
        let (low, high) = self.entropy.map_or((low, high), |entropy| (low.min(entropy), high.max(entropy)));
        let margin = if high > low { 0.05 * (high - low) } else { 0.5 };
        Some(((low - margin).max(0.0_f64.min(low)), high + margin))
    }

    fn points(&self) -> impl Iterator<Item = Point> {
        self.training.iter().flatten().chain(&self.held_out).copied()
    }
}

/// The mean over a sixtieth of the points on either side, as far as there are any: it doesn't lag behind a fall.
fn smooth(points: &[Point]) -> Vec<Point> {
    let sums: Vec<f64> = std::iter::once(0.0)
        .chain(points.iter().scan(0.0, |sum, point| {
            *sum += point.1;
            Some(*sum)
        }))
        .collect();
    let mean_around = |(index, point): (usize, &Point)| {
        let reach = points.len() / 60;
        let (from, to) = (index.saturating_sub(reach), (index + reach + 1).min(points.len()));
        (point.0, (sums[to] - sums[from]) / (to - from) as f64)
    };
    points.iter().enumerate().map(mean_around).collect()
}

/// At most about `most` points: of each stretch of steps its lowest and its highest loss, so that no spike is lost.
pub(super) fn thin(points: &[Point], most: usize) -> Vec<Point> {
    if points.len() <= most.max(2) {
        return points.to_vec();
    }
    let stretch = (points.len() * 2).div_ceil(most.max(2));
    let mut kept = Vec::with_capacity(most + 2);
    for part in points.chunks(stretch) {
        let by_loss = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let mut ends: Vec<Point> =
            part.iter().min_by(by_loss).into_iter().chain(part.iter().max_by(by_loss)).copied().collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        kept.extend(ends);
    }
    kept
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::observe::curve) fn records(losses: &[f32]) -> Vec<StepRecord> {
        let record = |(index, loss): (usize, &f32)| StepRecord {
            step: index as u64 + 1,
            loss: Some(*loss),
            ..StepRecord::default()
        };
        losses.iter().enumerate().map(record).collect()
    }

    #[test]
    fn what_is_not_finite_is_a_gap() {
        let series = Series::new(&records(&[3.0, f32::NAN, 2.0, 1.0, f32::INFINITY]), Some(f64::NAN));
        assert_eq!(series.training, [vec![(1.0, 3.0)], vec![(3.0, 2.0), (4.0, 1.0)]]);
        assert_eq!((series.smoothed.len(), series.entropy, series.steps()), (3, None, Some((0.0, 4.0))));
        assert_eq!(series.losses(), Some((0.9, 3.1)));
    }

    #[test]
    fn nothing_and_one_point_have_ranges_or_none() {
        let none = Series::new(&records(&[f32::NAN]), Some(6.0));
        assert_eq!((none.steps(), none.losses()), (None, None));
        let one = Series::new(&records(&[2.0]), None);
        assert_eq!((one.steps(), one.losses()), (Some((0.0, 1.0)), Some((1.5, 2.5))));
        assert_eq!(Series::new(&records(&[2.0]), Some(8.0)).losses().map(|range| range.1), Some(8.3));
    }

    #[test]
    fn smoothing_does_not_lag_and_thinning_keeps_spikes() {
        let straight: Vec<Point> = (0..300).map(|step| (f64::from(step), 9.0 - 0.02 * f64::from(step))).collect();
        assert!(
            smooth(&straight)[5..295]
                .iter()
                .zip(&straight[5..295])
                .all(|(mean, point)| (mean.1 - point.1).abs() < 1e-9)
        );
        assert_eq!(smooth(&[]), []);
        let mut points: Vec<Point> = (0..10_000).map(|step| (f64::from(step), 1.0)).collect();
        points[7_777].1 = 9.0;
        let thinned = thin(&points, 1000);
        assert!(thinned.len() <= 1002 && thinned.contains(&(7_777.0, 9.0)));
    }
}
