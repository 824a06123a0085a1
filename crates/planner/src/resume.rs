//! Settings that a job keeps from its beginning, as its checkpoints record them.

use serde_json::Value;
use stagecoach_api::job::StreamingMode;
use stagecoach_engine::StageError;

use super::job_config::JobConfig;

impl JobConfig {
    /// This job with the fixed settings of a begun job, whose checkpoints have this identity.
    ///
    /// # Errors
    /// If the job now has more replicas than blocks.
    pub fn resuming(&self, recorded: &Value) -> Result<JobConfig, StageError> {
        let mut config = self.clone();
        if self.training.gradient_blocks.is_none() {
            config.gradient_blocks = recorded_gradient_blocks(recorded);
        }
        config.holds_out_last_sequences = recorded_last_sequences(recorded);
        if self.data.streaming_or_default().mode == StreamingMode::Auto {
            config.streams = recorded_streaming(recorded);
        }
        let (replicas, blocks) = (config.job.spec.data_parallel, config.gradient_blocks);
        if replicas as usize > blocks {
            return Err(StageError::invalid(format!(
                "spec.dataParallel is {replicas}, and this job began with {blocks} gradient block{}: set it to {blocks} at \
                 most, or begin a new job with training.gradientBlocks {}",
                if blocks == 1 { "" } else { "s" },
                replicas.next_power_of_two()
            )));
        }
        Ok(config)
    }
}

/// The gradient blocks in the identity of a checkpoint.
pub fn recorded_gradient_blocks(identity: &Value) -> usize {
    identity["training"]["gradientBlocks"].as_u64().map_or(1, |blocks| blocks as usize)
}

/// Whether a job with this identity holds out the last sequences of each source, if it holds out a fraction.
pub fn recorded_last_sequences(identity: &Value) -> bool {
    identity["data"]["evaluation"]["heldOut"].is_null()
}

/// Whether a job with this identity trains while the corpus is read.
pub fn recorded_streaming(identity: &Value) -> bool {
    !identity["data"]["streaming"].is_null()
}
