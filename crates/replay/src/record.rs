//! The record of a run: its job, checkpoints, metrics and result. This module only reads.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use stagecoach_api::PipelineJob;
use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, Damage, FileSystemVolume, Manifest, Volume, list, paths, read_manifest, verify,
};
use stagecoach_launcher::{JobFolder, METRICS, RESULT};
use stagecoach_telemetry::{RunSummary, StepRecord, read_metrics};

use stagecoach_planner::{TrainerState, recorded_last_sequences, recorded_streaming};

/// A checkpoint of the run.
#[derive(Clone, Debug)]
pub struct RecordedCheckpoint {
    /// The folder of the checkpoint.
    pub folder: PathBuf,
    /// The manifest of the checkpoint.
    pub manifest: Manifest,
    /// The state of training in the manifest.
    pub state: TrainerState,
}

/// The record in a run's folder, or in a partial copy of this folder.
#[derive(Debug)]
pub struct RunRecord {
    /// The job's folder.
    pub folder: PathBuf,
    /// The volume with the checkpoints.
    volume: FileSystemVolume,
    /// The step of the checkpoint, if the record is of a single checkpoint with the files beside it.
    pub(crate) single_step: Option<u64>,
    /// The checkpoints whose manifest can be read, ascending by step.
    pub checkpoints: Vec<RecordedCheckpoint>,
    /// The checkpoints whose manifest can't be read.
    pub damage: Vec<Damage>,
    /// The lines of the metrics, in the order of the file; empty if there is no file.
    pub steps: Vec<StepRecord>,
    /// The result, if the run is finished.
    pub result: Option<RunSummary>,
    /// The job of the newest checkpoint. Without a checkpoint, this is the resolved job, which the launcher writes for
    /// its stages.
    pub job: PipelineJob,
}

impl RunRecord {
    /// Whether the job holds out the last sequences of each source, as jobs of older Stagecoach versions do.
    pub(crate) fn holds_out_last_sequences(&self) -> bool {
        self.checkpoints.last().is_some_and(|newest| recorded_last_sequences(&newest.manifest.metadata.identity))
    }

    /// Whether the job streams its corpus, or `None` if the run has no checkpoint.
    pub(crate) fn streams(&self) -> Option<bool> {
        self.checkpoints.last().map(|newest| recorded_streaming(&newest.manifest.metadata.identity))
    }

    /// Reads a job's folder, or a single checkpoint at `path` with the files beside it.
    ///
    /// # Errors
    /// Returns an error if neither a checkpoint nor a resolved job specifies the job, if a file has invalid content, or
    /// if the volume fails.
    pub fn open(path: &Path) -> anyhow::Result<RunRecord> {
        let location = CheckpointLocation::resolve(path)?;
        let volume = location.volume();
        let CheckpointLocation { job_folder, step, .. } = location;
        let mut steps = list(&volume)?.steps;
        steps.retain(|listed| step.is_none_or(|step| step == *listed));
        steps.reverse();
        let (mut checkpoints, mut damage) = (Vec::new(), Vec::new());
        for step in steps {
            match read_manifest(&volume, step) {
                Ok(manifest) => {
                    let folder = volume.display(&paths::checkpoint_path(step));
                    let state = serde_json::from_value(manifest.metadata.progress.clone())
                        .with_context(|| format!("could not understand the progress in {}", folder.display()))?;
                    checkpoints.push(RecordedCheckpoint { folder, manifest, state });
                }
                Err(CheckpointError::Damaged(found)) => damage.push(found),
                Err(error) => return Err(error.into()),
            }
        }
        let job = read_job(&job_folder, checkpoints.last())?;
        let read_result = |path: &Path| -> anyhow::Result<Option<RunSummary>> {
            match std::fs::read(path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                read => Ok(Some(serde_json::from_slice(&read?)?)),
            }
        };
        let result_path = job_folder.join(RESULT);
        let result = read_result(&result_path)
            .with_context(|| format!("could not read the result {}", result_path.display()))?;
        Ok(RunRecord {
            checkpoints,
            damage,
            steps: read_metrics(&job_folder.join(METRICS))?,
            result,
            job,
            folder: job_folder,
            volume,
            single_step: step,
        })
    }

    /// Returns the name of the job's folder, which is the name of the job.
    pub fn name(&self) -> String {
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        folder.file_name().unwrap_or_default().display().to_string()
    }

    /// Checks that the run has trained `step`, according to the record.
    ///
    /// # Errors
    /// Returns an error if the record ends before `step`.
    pub fn check_trained(&self, step: u64) -> anyhow::Result<()> {
        match self.steps.iter().map(|line| line.step).max() {
            Some(last) if last < step => {
                bail!("step {step} is not trained yet: the record in {} ends at step {last}", self.folder.display())
            }
            _ => Ok(()),
        }
    }

    /// Returns the workspace that contains the job's folder.
    pub fn workspace(&self) -> PathBuf {
        let depth = self.job.spec.storage.path.as_deref().map(|path| Path::new(path).components().count());
        self.folder.ancestors().nth(depth.unwrap_or(1)).unwrap_or(&self.folder).to_owned()
    }

    /// Returns the newest checkpoint before `step`, or `None` if the record has no earlier checkpoint and a replay must
    /// begin with the initial weights. Steps count from 1.
    pub fn newest_before(&self, step: u64) -> Option<&RecordedCheckpoint> {
        self.checkpoints.iter().rev().find(|checkpoint| checkpoint.manifest.step < step)
    }

    /// Returns the checkpoint of `step`, if the record has it.
    pub fn checkpoint(&self, step: u64) -> Option<&RecordedCheckpoint> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.manifest.step == step)
    }

    /// Returns the last step that appears anywhere in the record.
    pub fn last_step(&self) -> u64 {
        let recorded = self.steps.iter().map(|record| record.step).max();
        recorded.max(self.checkpoints.last().map(|checkpoint| checkpoint.manifest.step)).unwrap_or(0)
    }

    /// Verifies the hash of every file of the checkpoint of `step`. Returns the first damage, if there is any.
    ///
    /// # Errors
    /// Returns an error if the volume fails.
    pub fn verify(&self, step: u64) -> anyhow::Result<Option<Damage>> {
        let mut damage = None;
        let verified = verify(&self.volume, step, &mut |event| {
            if let stagecoach_checkpoint::VerifyEvent::FileChecked(file, Some(reason)) = event {
                let file = format!("{}/{}", paths::checkpoint_path(step), file.name);
                damage.get_or_insert(Damage { step, file, reason });
            }
        });
        match verified {
            Err(CheckpointError::Damaged(found)) => Ok(Some(found)),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(damage),
        }
    }
}

/// Reads the job of the newest checkpoint. Without a checkpoint, reads the resolved job, which the launcher wrote.
fn read_job(folder: &Path, newest: Option<&RecordedCheckpoint>) -> anyhow::Result<PipelineJob> {
    if let Some(RecordedCheckpoint { folder, manifest, .. }) = newest {
        let spec = serde_json::from_value(manifest.metadata.job.clone())
            .with_context(|| format!("could not understand the job in {}", folder.display()))?;
        return Ok(PipelineJob::new("replay", spec));
    }
    let resolved = JobFolder::resolved_job_in(folder);
    match std::fs::read_to_string(&resolved) {
        Ok(text) => Ok(stagecoach_api::parse(&text, &resolved.display().to_string())?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "{} has neither a checkpoint nor {}: expected a job's folder, such as workspace/NAME, or a copy of one",
            folder.display(),
            resolved.file_name().unwrap_or_default().display()
        ),
        Err(error) => Err(error).with_context(|| format!("could not read the job {}", resolved.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_cannot_be_read_is_not_reported_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        let error = || RunRecord::open(folder.path()).unwrap_err().to_string();
        assert!(error().contains("has neither a checkpoint nor resolved-job.yaml"), "{}", error());
        // a folder with the name of the file can't be read as a file
        std::fs::create_dir(JobFolder::resolved_job_in(folder.path())).unwrap();
        assert!(error().starts_with("could not read the job "), "{}", error());
    }
}
