//! What a run left: its job, checkpoints, metrics and result. Nothing is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use stagecoach_api::PipelineJob;
use stagecoach_checkpoint::{
    CheckpointError, CheckpointLocation, Damage, FileSystemVolume, Manifest, Volume, list, paths, read_manifest, verify,
};

use crate::folder::{JobFolder, METRICS, RESULT};
use crate::observe::{RunSummary, StepRecord, read_metrics};
use crate::plan::TrainerState;

/// A checkpoint of the run.
#[derive(Clone, Debug)]
pub(crate) struct RecordedCheckpoint {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// Its manifest.
    pub(crate) manifest: Manifest,
    /// The state of training in the manifest.
    pub(crate) state: TrainerState,
}

/// What a run left in its folder, or what of it was copied elsewhere.
#[derive(Debug)]
pub(crate) struct RunRecord {
    /// The job's folder.
    pub(crate) folder: PathBuf,
    /// The volume with the checkpoints.
    volume: FileSystemVolume,
    /// Ascending by step; those whose manifest can be read.
    pub(crate) checkpoints: Vec<RecordedCheckpoint>,
    /// Those whose manifest can't.
    pub(crate) damage: Vec<Damage>,
    /// The lines of the metrics, as they are in the file; none if there is no file.
    pub(crate) steps: Vec<StepRecord>,
    /// The result, if the run is finished.
    pub(crate) result: Option<RunSummary>,
    /// The job as it was trained last.
    pub(crate) job: PipelineJob,
}

impl RunRecord {
    /// Reads a job's folder, or the one checkpoint that `path` names with what is beside it.
    ///
    /// # Errors
    /// If neither a checkpoint nor a resolved job says what was trained, a file is not what it should be, or the volume
    /// fails.
    pub(crate) fn open(path: &Path) -> anyhow::Result<RunRecord> {
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
        })
    }

    /// The name of its folder, which is that of the job.
    pub(crate) fn name(&self) -> String {
        let folder = self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        folder.file_name().unwrap_or_default().display().to_string()
    }

    /// Checks that `step` is trained, as far as the record tells.
    ///
    /// # Errors
    /// If the record ends before it.
    pub(crate) fn check_trained(&self, step: u64) -> anyhow::Result<()> {
        match self.steps.iter().map(|line| line.step).max() {
            Some(last) if last < step => {
                bail!("step {step} is not trained yet: the record in {} ends at step {last}", self.folder.display())
            }
            _ => Ok(()),
        }
    }

    /// The workspace that the job's folder is in.
    pub(crate) fn workspace(&self) -> PathBuf {
        let depth = self.job.spec.storage.path.as_deref().map(|path| Path::new(path).components().count());
        self.folder.ancestors().nth(depth.unwrap_or(1)).unwrap_or(&self.folder).to_owned()
    }

    /// The newest checkpoint before `step`, from 1; None if it is trained from the initial weights.
    pub(crate) fn newest_before(&self, step: u64) -> Option<&RecordedCheckpoint> {
        self.checkpoints.iter().rev().find(|checkpoint| checkpoint.manifest.step < step)
    }

    /// The checkpoint of `step`.
    pub(crate) fn checkpoint(&self, step: u64) -> Option<&RecordedCheckpoint> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.manifest.step == step)
    }

    /// The last step of which something is known.
    pub(crate) fn last_step(&self) -> u64 {
        let recorded = self.steps.iter().map(|record| record.step).max();
        recorded.max(self.checkpoints.last().map(|checkpoint| checkpoint.manifest.step)).unwrap_or(0)
    }

    /// Verifies the hash of every file of the checkpoint of `step`; returns the damage, if there is any.
    ///
    /// # Errors
    /// If the volume fails.
    pub(crate) fn verify(&self, step: u64) -> anyhow::Result<Option<Damage>> {
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

/// The job of the newest checkpoint, or the one that the launcher resolved.
fn read_job(folder: &Path, newest: Option<&RecordedCheckpoint>) -> anyhow::Result<PipelineJob> {
    if let Some(RecordedCheckpoint { folder, manifest, .. }) = newest {
        let spec = serde_json::from_value(manifest.metadata.job.clone())
            .with_context(|| format!("could not understand the job in {}", folder.display()))?;
        return Ok(PipelineJob::new("replay", spec));
    }
    let resolved = JobFolder::resolved_job_in(folder);
    match std::fs::read_to_string(&resolved) {
        Ok(text) => Ok(stagecoach_api::parse(&text, &resolved.display().to_string())?),
        Err(_) => bail!(
            "{} has neither a checkpoint nor {}: expected a job's folder, such as workspace/NAME, or a copy of one",
            folder.display(),
            resolved.file_name().unwrap_or_default().display()
        ),
    }
}
