//! The speeds of a job's stages: the speeds that a plan assumes, and the speeds that were measured during steps.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::{CheckpointError, Fence, Volume};
use stagecoach_launcher::{METRICS, SPEEDS};
use stagecoach_pipeline::{RankSpeeds, SpeedError};
use stagecoach_telemetry::{read_metrics, speeds};

use super::JobConfig;

/// The speeds of stages and links. By default, these are the speeds at which the costs were measured or assumed.
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
    /// Returns machines whose stages have the speeds `speeds`, where 1 is the speed at which the costs were measured or
    /// assumed.
    ///
    /// # Errors
    /// Returns an error if a speed is not finite, or not above zero.
    pub fn new(speeds: &[f64], link_bytes_per_second: Option<f64>) -> Result<Machines, SpeedError> {
        let fastest = speeds.iter().copied().reduce(f64::max).unwrap_or(1.0);
        Ok(Machines { speeds: RankSpeeds::new(speeds)?, fastest, link_bytes_per_second })
    }
}

/// Returns the speeds of a job's stages in the last measured steps, if the job has run with the same number of stages;
/// otherwise equal speeds. Metrics that can't be read count as missing. The step recorder, which appends to the
/// metrics, reports the problem.
pub fn measured_speeds(config: &JobConfig, stages: usize) -> RankSpeeds {
    let records = read_metrics(&config.folder().join(METRICS)).unwrap_or_default();
    speeds(records.iter().filter_map(|record| record.timeline.as_deref()), stages).unwrap_or_default()
}

/// The speeds with which an attempt was planned.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AttemptSpeeds {
    job_uid: String,
    attempt: u64,
    /// The speeds by rank, relative to the fastest.
    speeds: Vec<f64>,
}

/// Returns the measured speeds with which the first group (the processes that train together) of this attempt was
/// planned. With other speeds, a later group could assign other layers to a stage, and the stage's memory checkpoints
/// (copies of its state at the next stage) would be unusable. The job's folder on the volume therefore stores the
/// speeds for later groups. If the speeds can't be stored, for example because the volume is full, a later group takes
/// the speeds from the metrics again.
///
/// # Errors
/// Returns an error if a newer group has acquired the next fence, and with it the right to write into the job's folder.
pub fn attempt_speeds(
    config: &JobConfig,
    env: &StageEnv,
    volume: &dyn Volume,
    fence: &Fence,
) -> Result<RankSpeeds, CheckpointError> {
    let stages = config.job.spec.stages as usize;
    let parse = |bytes: Vec<u8>| serde_json::from_slice::<AttemptSpeeds>(&bytes).ok();
    let known = std::fs::read(config.folder().join(SPEEDS)).ok().and_then(parse);
    let known = known
        .filter(|known| (&known.job_uid, known.attempt) == (&env.job_uid, env.attempt) && known.speeds.len() == stages);
    if let Some(speeds) = known.and_then(|known| RankSpeeds::new(&known.speeds).ok()) {
        return Ok(speeds);
    }
    let measured = measured_speeds(config, stages);
    let known = AttemptSpeeds {
        job_uid: env.job_uid.clone(),
        attempt: env.attempt,
        speeds: (0..stages).map(|rank| measured.of(rank)).collect(),
    };
    match fence.write_job_file(volume, SPEEDS, serde_json::json!(known).to_string().as_bytes()) {
        Err(error @ CheckpointError::FencedOff { .. }) => return Err(error),
        Err(error) => tracing::warn!("the stages' speeds could not be stored for this attempt: {error}"),
        Ok(()) => {}
    }
    Ok(measured)
}
