//! Defines the relative speeds of the ranks, for pipelines over unequal machines.

use std::fmt;

use crate::costs::Costs;
use crate::measured::compute_seconds;
use crate::placement::Placement;
use crate::timeline::Timeline;

/// The least measured speed, relative to the fastest rank, at which a rank counts as equally fast. Smaller differences
/// are noise, because the modules' costs are estimates and other programs take time on the same machines.
const EQUAL_SPEED_RATIO: f64 = 0.8;

/// The speed of the fastest rank. Other speeds are in whole thousandths of this speed, because only their ratios
/// matter.
pub(crate) const FASTEST: u16 = 1000;

/// The speed of each rank relative to the fastest rank. By default all speeds are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankSpeeds {
    /// The speeds in thousandths of the fastest, 1 to 1000. The list is empty if all speeds are equal.
    thousandths: Vec<u16>,
}

/// The error of a number that is not a speed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the speed of stage {rank} is {speed}: it has to be a finite number above zero")]
pub struct SpeedError {
    /// The rank of the number.
    pub rank: usize,
    /// The given number.
    pub speed: f64,
}

impl RankSpeeds {
    /// Creates the speeds from numbers in any unit, one per rank. A speed below a thousandth of the fastest counts as a
    /// thousandth.
    ///
    /// # Errors
    /// Returns an error if a speed is not finite or not above zero.
    pub fn new(speeds: &[f64]) -> Result<RankSpeeds, SpeedError> {
        if let Some((rank, &speed)) = speeds.iter().enumerate().find(|(_, speed)| !(speed.is_finite() && **speed > 0.0))
        {
            return Err(SpeedError { rank, speed });
        }
        let fastest = speeds.iter().copied().fold(0.0, f64::max);
        let thousandths = |speed: &f64| ((speed / fastest * f64::from(FASTEST)).round() as u16).max(1);
        let thousandths: Vec<u16> = speeds.iter().map(thousandths).collect();
        let is_equal = thousandths.iter().all(|&speed| speed == FASTEST);
        Ok(RankSpeeds { thousandths: if is_equal { Vec::new() } else { thousandths } })
    }

    /// Returns the speeds of ranks in measured steps: the median of each rank's work per second. `work` has the work of
    /// each rank in a step. A speed that differs from the fastest speed by no more than noise counts as the fastest
    /// speed. Returns `None` if no step was measured, or if a rank has no work.
    pub fn measured(timelines: &[Timeline], work: &[f64]) -> Option<RankSpeeds> {
        let median = |(rank, work): (usize, &f64)| {
            let speed = |timeline: &Timeline| timeline.spans.get(rank).map(|spans| work / compute_seconds(spans));
            let mut speeds = timelines.iter().map(speed).collect::<Option<Vec<f64>>>()?;
            speeds.sort_by(f64::total_cmp);
            speeds.get(speeds.len() / 2).copied()
        };
        let speeds = work.iter().enumerate().map(median).collect::<Option<Vec<f64>>>()?;
        let mut measured = RankSpeeds::new(&speeds).ok()?;
        let least = (EQUAL_SPEED_RATIO * f64::from(FASTEST)) as u16;
        measured.thousandths.iter_mut().filter(|speed| **speed >= least).for_each(|speed| *speed = FASTEST);
        if measured.thousandths.iter().all(|&speed| speed == FASTEST) {
            measured.thousandths.clear();
        }
        Some(measured)
    }

    /// Whether all ranks are equally fast.
    pub fn is_equal(&self) -> bool {
        self.thousandths.is_empty()
    }

    /// Returns the rank's speed divided by the fastest rank's speed. Ranks beyond the list count as the fastest.
    pub fn of(&self, rank: usize) -> f64 {
        f64::from(self.thousandths_of(rank)) / f64::from(FASTEST)
    }

    pub(crate) fn thousandths_of(&self, rank: usize) -> u16 {
        self.thousandths.get(rank).copied().unwrap_or(FASTEST)
    }
}

impl fmt::Display for RankSpeeds {
    /// Writes the speeds in the form `1.00/0.50`, or nothing if all speeds are equal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rank in 0..self.thousandths.len() {
            write!(f, "{}{:.2}", if rank > 0 { "/" } else { "" }, self.of(rank))?;
        }
        Ok(())
    }
}

impl Costs {
    /// Returns the costs on ranks of these speeds. `self` has the times of each chunk on the fastest rank. This
    /// function scales the times to the rank of each chunk.
    pub fn at_speeds(mut self, placement: &Placement, speeds: &RankSpeeds) -> Costs {
        for (chunk, &rank) in placement.as_slice().iter().enumerate() {
            self.scale(chunk, 1.0 / speeds.of(rank));
        }
        self
    }
}
