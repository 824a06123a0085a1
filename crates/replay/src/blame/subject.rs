//! The job whose steps are examined, with its corpus from the token cache.

use std::path::Path;

use stagecoach_data::{DataConfig, DataError, Dataset, DocumentName, DocumentPart, PartText, PreparedCorpus};
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::FrozenWeights;
use stagecoach_launcher::REMOTE_FILES;
use stagecoach_planner::JobConfig;
use stagecoach_telemetry::ProgressDisplay;

use super::windows::Windows;
use crate::RunRecord;
use crate::job_config::{job_config, show_progress, waits_as_notes};

/// A job and its documents.
pub struct BlamedJob {
    /// The job.
    pub config: JobConfig,
    /// The corpus.
    pub prepared: PreparedCorpus,
    data_config: DataConfig,
    dataset: Dataset,
    /// The windows of a streamed job.
    windows: Option<Windows>,
    /// The frozen weights, which training does not update; `None` if the job has none.
    pub(super) frozen: Option<FrozenWeights>,
}

impl BlamedJob {
    /// Opens the job of `record`, whose corpus is below `workspace`. Tokenises the documents that the token cache
    /// lacks.
    ///
    /// # Errors
    /// Returns an error if the job or its corpus can't be used on this machine.
    pub fn open(record: &RunRecord, workspace: &Path) -> anyhow::Result<BlamedJob> {
        let workspace = std::path::absolute(workspace).unwrap_or(workspace.into());
        let remote_files = record.folder.join(REMOTE_FILES);
        let holds_out_last_sequences = record.holds_out_last_sequences();
        let mut display = ProgressDisplay::notes();
        let config = job_config(record.job.clone(), &workspace, &record.folder, &mut display)?;
        let streams = record.streams().unwrap_or(config.streams);
        let config = JobConfig { remote_files, holds_out_last_sequences, streams, ..config };
        let windows = streams.then(|| Windows::create(record, &workspace)).transpose()?;
        let data_config = DataConfig { on_wait: waits_as_notes(), ..config.data_config() };
        let data_config = match &windows {
            Some(windows) => windows.data_config(data_config),
            None => data_config,
        };
        let progress = &mut |progress| show_progress(&mut display, progress);
        let prepared = stagecoach_data::prepare(&data_config, progress).map_err(StageError::from)?;
        let dataset = Dataset::open(&data_config, &prepared).map_err(StageError::from)?;
        let frozen = record.checkpoints.last().and_then(|checkpoint| checkpoint.state.frozen_weights.clone());
        Ok(BlamedJob { config, prepared, data_config, dataset, windows, frozen })
    }

    /// Returns the parts of documents in `step`. Steps count from 1.
    ///
    /// # Errors
    /// Returns an error if the tokens can't be read.
    pub fn document_parts(&mut self, step: u64) -> Result<Vec<DocumentPart>, StageError> {
        let training = &self.config.training;
        let batch = training.global_batch_size as usize;
        let position = step.saturating_sub(1) * batch as u64;
        if let Some(windows) = &mut self.windows {
            windows.read_up_to(step, batch, (&self.data_config, &self.prepared), &mut self.dataset)?;
        }
        let plan = self.dataset.step_plan(training.seed, position, batch, training.microbatches as usize)?;
        Ok(self.dataset.document_parts(&plan))
    }

    /// Returns the text of each part, with the name of the part's document and the position in this document.
    ///
    /// # Errors
    /// Returns an error if the corpus can't be read.
    pub fn part_texts(&self, parts: &[DocumentPart]) -> Result<Vec<PartText>, StageError> {
        let mut display = ProgressDisplay::notes();
        let progress = &mut |progress| show_progress(&mut display, progress);
        Ok(stagecoach_data::part_texts(&self.data_config, &self.prepared, parts, progress)?)
    }

    /// Returns the indices of the documents with these names.
    ///
    /// # Errors
    /// Returns an error if the corpus lacks a document, or can't be read.
    pub fn document_indices(&self, names: &[DocumentName]) -> anyhow::Result<Vec<u64>> {
        let mut display = ProgressDisplay::notes();
        let progress = &mut |progress| show_progress(&mut display, progress);
        stagecoach_data::document_indices(&self.data_config, &self.prepared, names, progress).map_err(|error| {
            match error {
                // the job is valid, and the user asks for a document that does not exist
                DataError::NoDocument { .. } => error.into(),
                error => StageError::from(error).into(),
            }
        })
    }
}
