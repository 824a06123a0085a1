//! The machines of a job's stages, as a plan assumes them.

use stagecoach_pipeline::{RankSpeeds, SpeedError};

/// How fast stages and links are, beside what was measured or is assumed; by default just so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Machines {
    /// Of the stages, relative to the fastest of them.
    pub(crate) speeds: RankSpeeds,
    /// Of the fastest stage, relative to what the costs are for.
    pub(crate) fastest: f64,
    /// Bytes a second of every link, if they are given.
    pub(crate) link_bytes_per_second: Option<f64>,
}

impl Default for Machines {
    fn default() -> Machines {
        Machines { speeds: RankSpeeds::default(), fastest: 1.0, link_bytes_per_second: None }
    }
}

impl Machines {
    /// Stages of these speeds, of which 1 is what the costs are for.
    ///
    /// # Errors
    /// If a speed is not finite, or not above zero.
    pub(crate) fn new(speeds: &[f64], link_bytes_per_second: Option<f64>) -> Result<Machines, SpeedError> {
        let fastest = speeds.iter().copied().reduce(f64::max).unwrap_or(1.0);
        Ok(Machines { speeds: RankSpeeds::new(speeds)?, fastest, link_bytes_per_second })
    }
}
