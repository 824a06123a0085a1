//! The settings that a job keeps from its beginning, as its checkpoints record them.

use serde_json::Value;
use stagecoach_api::job::{StreamingMode, TrainingLength};
use stagecoach_engine::StageError;

use super::job_config::JobConfig;

impl JobConfig {
    /// Returns this job with the settings that stay as they were when the job began. `recorded` is the identity in the
    /// job's checkpoints, which contains these settings.
    ///
    /// # Errors
    /// Returns an error if the job has more replicas than gradient blocks, or a length in epochs for a streamed corpus.
    /// A gradient block is a fixed group of microbatches whose gradients are added in a fixed order.
    pub fn resuming(&self, recorded: &Value) -> Result<JobConfig, StageError> {
        let mut config = self.clone();
        if self.training.gradient_blocks.is_none() {
            config.gradient_blocks = recorded_gradient_blocks(recorded);
        }
        config.holds_out_last_sequences = recorded_last_sequences(recorded);
        if self.data.streaming_or_default().mode == StreamingMode::Auto {
            config.streams = recorded_streaming(recorded);
        }
        if config.streams && matches!(config.training.length(), Some(TrainingLength::Epochs(_))) {
            return Err(StageError::invalid(
                "training.epochs is given, and this job began with a streamed corpus, whose number of sequences is not \
                 known: set training.steps instead",
            ));
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

/// Returns the number of gradient blocks in the identity of a checkpoint.
pub fn recorded_gradient_blocks(identity: &Value) -> usize {
    identity["training"]["gradientBlocks"].as_u64().map_or(1, |blocks| blocks as usize)
}

/// Whether a job with this identity, if it holds out a fraction, holds out the last sequences of each source.
pub fn recorded_last_sequences(identity: &Value) -> bool {
    identity["data"]["evaluation"]["heldOut"].is_null()
}

/// Whether a job with this identity streams its corpus.
pub fn recorded_streaming(identity: &Value) -> bool {
    !identity["data"]["streaming"].is_null()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::identity::tests::config;

    /// The number of sequences of a stream is unknown. A length in epochs would give 0 steps, and the job would count
    /// as trained.
    #[test]
    fn a_streamed_job_gets_no_length_in_epochs() {
        let mut job = config(&[("data.paths.0", "hf://datasets/org/plays/*.jsonl")]);
        let identity = json!({"data": {"streaming": {"windowSequences": 4096}}});
        assert!(job.resuming(&identity).unwrap().streams);
        (job.training.steps, job.training.epochs) = (None, Some(1));
        let error = job.resuming(&identity).unwrap_err();
        assert!(error.message.contains("this job began with a streamed corpus"), "{error}");
        assert!(!job.resuming(&json!({})).unwrap().streams);
    }
}
