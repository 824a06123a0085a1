//! A plan's assumptions about the machines of a job's stages.

use stagecoach_pipeline::{RankSpeeds, SpeedError};

/// The speeds of stages and links, relative to the measured or assumed speeds; equal to them by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Machines {
    /// The speeds of the stages, relative to the fastest of them.
    pub speeds: RankSpeeds,
    /// The speed of the fastest stage, relative to the speed at which the costs were measured or assumed.
    pub fastest: f64,
    /// Bytes per second of every link, if specified.
    pub link_bytes_per_second: Option<f64>,
}

impl Default for Machines {
    fn default() -> Machines {
        Machines { speeds: RankSpeeds::default(), fastest: 1.0, link_bytes_per_second: None }
    }
}

impl Machines {
    /// Stages of these speeds, where 1 is the speed at which the costs were measured or assumed.
    ///
    /// # Errors
    /// If a speed is not finite, or not above zero.
    pub fn new(speeds: &[f64], link_bytes_per_second: Option<f64>) -> Result<Machines, SpeedError> {
        let fastest = speeds.iter().copied().reduce(f64::max).unwrap_or(1.0);
        Ok(Machines { speeds: RankSpeeds::new(speeds)?, fastest, link_bytes_per_second })
    }
}
