//! The model directory with which a job begins. If the job names the folder of another job, this directory is the
//! newest checkpoint of the other job when this job begins. A record in this job's folder keeps the choice, because the
//! other job may have a newer checkpoint when this job restarts.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stagecoach_checkpoint::CheckpointError;
use stagecoach_engine::StageError;
use stagecoach_engine::state_dict::find_model;
use stagecoach_files::{read_if_exists, write_atomically};
use stagecoach_launcher::INITIAL_MODEL;

use crate::JobConfig;

/// The recorded choice of a model directory. Both paths are relative to the volume's root.
#[derive(Debug, Deserialize, Serialize)]
struct RecordedModel {
    /// The path that the job specifies.
    path: PathBuf,
    /// The model directory to which `path` led when the job began.
    model: PathBuf,
}

impl JobConfig {
    /// Returns the model directory with which the job begins, relative to the volume's root; `None` if the job begins
    /// with random weights.
    ///
    /// # Errors
    /// Returns an error if there is no model, or if the record can't be read.
    pub fn initial_model(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let Some(path) = &self.initial_weights else { return Ok(None) };
        match self.recorded_model(path)? {
            Some(recorded) => Ok(Some(recorded)),
            None => find_model(&self.workspace, path).map(Some),
        }
    }

    /// Like [`JobConfig::initial_model`], but also returns `None` if the model has been deleted since the job began.
    ///
    /// # Errors
    /// Returns an error if the record or the model can't be read.
    pub(crate) fn remaining_initial_model(&self) -> Result<Option<PathBuf>, CheckpointError> {
        let Some(path) = &self.initial_weights else { return Ok(None) };
        if let Some(recorded) = self.recorded_model(path)? {
            return Ok(Some(recorded));
        }
        match find_model(&self.workspace, path) {
            Ok(model) => Ok(Some(model)),
            // the folder does not exist, or no longer holds a model
            Err(CheckpointError::Content { .. }) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records `model`, the result of [`JobConfig::initial_model`], unless the job specifies this directory itself.
    ///
    /// # Errors
    /// Returns an error if the record can't be written.
    pub fn record_initial_model(&self, model: &Path) -> Result<(), StageError> {
        let Some(path) = self.initial_weights.clone().filter(|path| path != model) else { return Ok(()) };
        let record = self.folder().join(INITIAL_MODEL);
        let failed = |error: std::io::Error| StageError::storage("write", &record, error);
        let json = serde_json::to_vec_pretty(&RecordedModel { path, model: model.to_owned() });
        write_atomically(&record, &json.map_err(|error| failed(error.into()))?).map_err(failed)
    }

    /// Returns the recorded model directory to which `specified`, the path in the job, led when the job began.
    fn recorded_model(&self, specified: &Path) -> Result<Option<PathBuf>, CheckpointError> {
        if self.starts_over {
            return Ok(None);
        }
        let path = self.folder().join(INITIAL_MODEL);
        let bytes = read_if_exists(&path).map_err(|source| CheckpointError::Io {
            operation: "read",
            path: path.clone(),
            source,
        })?;
        let Some(bytes) = bytes else { return Ok(None) };
        let problem = match serde_json::from_slice::<RecordedModel>(&bytes) {
            Ok(recorded) if recorded.model.starts_with(&recorded.path) => {
                return Ok((recorded.path == specified).then_some(recorded.model));
            }
            Ok(_) => "the recorded model is not in the recorded path".to_owned(),
            Err(error) => error.to_string(),
        };
        let problem = format!(
            "has no valid record of the model with which the job begins ({problem}): remove the file; a job without \
             a checkpoint then chooses the model again"
        );
        Err(CheckpointError::Content { path, problem })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::GENERATION_CONFIG_FILE;
    use crate::identity::tests::config;

    /// A job needs its source model only to begin, so that the model may be deleted. A record that can't be read says
    /// nothing about the model.
    #[test]
    fn only_a_deleted_model_has_no_settings_of_generation() {
        let workspace = tempfile::tempdir().unwrap();
        let mut config = config(&[("checkpoint.initFrom.path", "older")]);
        config.workspace = workspace.path().to_owned();
        assert_eq!(config.generation_config().unwrap(), None);
        let model = workspace.path().join("older");
        fs::create_dir(&model).unwrap();
        assert_eq!(config.generation_config().unwrap(), None, "the model's files were deleted");
        fs::write(model.join("config.json"), "{}").unwrap();
        fs::write(model.join(GENERATION_CONFIG_FILE), "{}").unwrap();
        assert_eq!(config.generation_config().unwrap(), Some(b"{}".to_vec()));
        // a folder with the name of the file can't be read as a file
        let record = config.folder().join(INITIAL_MODEL);
        fs::create_dir_all(&record).unwrap();
        let error = config.generation_config().unwrap_err().to_string();
        assert!(error.contains("could not read") && error.contains(INITIAL_MODEL), "{error}");
    }
}
