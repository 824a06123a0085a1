//! The relative speeds of a job's stages.

use serde::{Deserialize, Serialize};
use stagecoach_api::contract::StageEnv;
use stagecoach_checkpoint::{CheckpointError, Fence, Volume};
use stagecoach_launcher::{METRICS, SPEEDS};
use stagecoach_pipeline::RankSpeeds;
use stagecoach_telemetry::{read_metrics, speeds};

use super::JobConfig;

/// The speeds of a job's stages in the last measured steps, if the job has run with the same number of stages;
/// otherwise equal speeds. Metrics that can't be read count as missing: the step recorder, which appends to them,
/// reports the problem.
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

/// The measured speeds at the first group of this attempt. The copies that stages hold in memory are usable only as
/// long as each stage keeps its layers, so the job's folder on the volume stores the speeds for later groups. If the
/// volume is full, a later group measures the speeds again.
///
/// # Errors
/// If this group no longer holds `fence`.
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
        Err(error) => tracing::warn!("the stages' speeds are not kept for this attempt: {error}"),
        Ok(()) => {}
    }
    Ok(measured)
}
