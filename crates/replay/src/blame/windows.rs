//! The windows of a streamed job. The leader makes these ranges of tokens from the sources while training runs, and
//! this module makes them again for the examined steps.

use std::path::Path;

use stagecoach_data::{DataConfig, Dataset, PreparedCorpus, StreamPosition};
use stagecoach_engine::StageError;
use stagecoach_launcher::WINDOWS;

use crate::RunRecord;
use crate::scratch::Scratch;

/// The windows of a job, in a scratch folder.
pub(super) struct Windows {
    /// The step of each checkpoint, ascending, and the positions of the sources after this step.
    positions: Vec<(u64, Vec<StreamPosition>)>,
    /// The step of the checkpoint at which reading began, and the last step whose windows are open.
    read: Option<(u64, u64)>,
    scratch: Scratch,
}

impl Windows {
    /// Creates the scratch folder below `workspace`.
    ///
    /// # Errors
    /// Returns an error if the workspace can't be written.
    pub(super) fn create(record: &RunRecord, workspace: &Path) -> anyhow::Result<Windows> {
        let position =
            |checkpoint: &crate::RecordedCheckpoint| (checkpoint.manifest.step, checkpoint.state.streams.clone());
        let mut positions: Vec<_> = record.checkpoints.iter().map(position).collect();
        positions.sort_by_key(|(step, _)| *step);
        Ok(Windows { positions, read: None, scratch: Scratch::create(workspace)? })
    }

    /// Changes the data configuration, so that windows are made in the scratch folder and not in the job's folder.
    pub(super) fn data_config(&self, mut config: DataConfig) -> DataConfig {
        if let Some(streaming) = &mut config.streaming {
            streaming.folder = self.scratch.folder.root().join(WINDOWS);
        }
        config
    }

    /// Reads the sources from the positions in the last checkpoint before `step`, up to the step, so that `dataset` has
    /// the step's windows. The step has `batch` sequences. Steps count from 1.
    ///
    /// # Errors
    /// Returns an error if a source can't be read.
    pub(super) fn read_up_to(
        &mut self,
        step: u64,
        batch: usize,
        (config, prepared): (&DataConfig, &PreparedCorpus),
        dataset: &mut Dataset,
    ) -> Result<(), StageError> {
        let base = self.positions.iter().rfind(|(checkpoint, _)| *checkpoint < step);
        let (base, positions) = base.map_or((0, &[][..]), |(base, positions)| (*base, positions));
        if self.read.is_none_or(|(from, last)| from != base || last > step) {
            *dataset = Dataset::open(config, prepared)?;
            dataset.make_windows(config, prepared, positions)?;
        }
        self.read = Some((base, step));
        dataset.wait_for_step((step - 1) * batch as u64, batch, &|_| true)?;
        Ok(())
    }
}
