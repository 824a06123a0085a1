//! The mesh of a job (its numbers of stages and replicas), its gradient blocks, and the microbatches of each replica. A
//! gradient block is a group of microbatches whose gradients are added in a fixed order.

use stagecoach_api::contract::Mesh;
use stagecoach_engine::StageError;
use stagecoach_pipeline::GradientBlocks;

use super::JobConfig;

impl JobConfig {
    /// Returns this job for a group of `group_size` ranks: the number of replicas is `group_size` divided by the number
    /// of stages. The number of gradient blocks stays the same.
    pub fn with_replicas_of(&self, group_size: usize) -> JobConfig {
        self.with_data_parallel(group_size as u32 / self.job.spec.stages.max(1))
    }

    fn with_data_parallel(&self, data_parallel: u32) -> JobConfig {
        let mut config = self.clone();
        config.job.spec.data_parallel = data_parallel;
        config
    }

    /// Returns this job as if it began with `mesh`. The mesh determines the number of gradient blocks, unless the job
    /// specifies it.
    pub fn with_mesh(&self, mesh: Mesh) -> JobConfig {
        let mut config = self.with_data_parallel(mesh.data_parallel);
        config.job.spec.stages = mesh.stages;
        config.gradient_blocks = config.training.gradient_blocks(mesh.data_parallel) as usize;
        config
    }

    /// Returns the gradient blocks of a step's microbatches.
    ///
    /// # Errors
    /// Returns an error if the microbatches can't be divided into the blocks.
    pub fn blocks(&self) -> Result<GradientBlocks, StageError> {
        let (blocks, microbatches) = (self.gradient_blocks, self.training.microbatches as usize);
        GradientBlocks::new(blocks, microbatches).ok_or_else(|| {
            StageError::invalid(format!(
                "spec.training.microbatches {microbatches} can't be divided into {blocks} gradient blocks"
            ))
        })
    }

    /// Returns the number of microbatches of each replica.
    ///
    /// # Errors
    /// Returns the errors of [`JobConfig::blocks`].
    pub fn microbatches_of_replicas(&self) -> Result<Vec<usize>, StageError> {
        let (blocks, replicas) = (self.blocks()?, self.job.spec.data_parallel as usize);
        Ok((0..replicas).map(|replica| blocks.of_replica(replica, replicas).microbatches().len()).collect())
    }
}
