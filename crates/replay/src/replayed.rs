//! The replay of a run's steps, with the ordinary launcher and the ordinary stages, in a scratch folder.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stagecoach_api::contract::FailureKind;
use stagecoach_api::job::{ChangeEffect, change_effect};
use stagecoach_checkpoint::{FileSystemVolume, Manifest, differences, read_manifest};
use stagecoach_data::Dataset;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::DumpConfig;
use stagecoach_engine::state_dict::FrozenWeights;
use stagecoach_kernels::device::driver_devices;
use stagecoach_launcher::{LaunchConfig, LauncherState, RunOutcome, StageExecutable, supervise, write_file};
use stagecoach_planner::{JobConfig, TrainerState};
use stagecoach_telemetry::{ProgressDisplay, RunSummary, StepRecord, read_metrics};
use tch::Tensor;

use super::compare::ReplayDifference;
use super::dump::read_dump;
use super::job_config::{job_config, show_progress};
use super::record::{RecordedCheckpoint, RunRecord};
use super::replayed_job::replayed_job;
use super::scratch::Scratch;

/// The options that a stage has only in a replay, beyond the contract of a stage's process. The launcher passes them as
/// JSON in the argument `--replay` of `stagecoach stage`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReplayOptions {
    /// The tensors to write.
    pub dump: Option<DumpConfig>,
    /// The indices of the documents whose tokens are not targets in training.
    pub without: BTreeSet<u64>,
    /// Whether the replayed job holds out the last sequences of each source.
    #[serde(default)]
    pub holds_out_last_sequences: bool,
    /// The frozen weights of the replayed job. A replay from the first step fails if it finds other weights.
    #[serde(default)]
    pub frozen_weights: Option<FrozenWeights>,
}

/// The settings of a replay.
#[derive(Clone, Debug, Default)]
pub struct ReplayConfig {
    /// The folder that contains the corpus, the token cache and other jobs.
    pub workspace: PathBuf,
    /// The number of stages; `None` for the run's number of stages.
    pub stages: Option<u32>,
    /// The patterns of the names of the tensors to dump.
    pub dump: Vec<String>,
    /// The steps whose tensors are dumped; empty for the last step.
    pub dump_steps: Vec<u64>,
    /// The indices of the documents to train without ([`Dataset::without`]).
    pub without: BTreeSet<u64>,
}

/// The folder of the stages' dumps in the scratch folder.
const DUMP: &str = "dump";

/// The results of the replayed steps.
#[derive(Debug)]
pub struct Replayed {
    /// The records of the replayed steps.
    pub steps: Vec<StepRecord>,
    /// The checkpoint after the last step.
    pub manifest: Manifest,
    /// The state of training in the manifest.
    pub state: TrainerState,
    /// The summary of the replay.
    pub result: RunSummary,
    /// The scratch folder. Dropping this value removes the folder.
    scratch: Scratch,
}

impl Replayed {
    /// Reads the dumped tensors of `step`, by name.
    ///
    /// # Errors
    /// Returns an error if the replay has no dump of the step, or the dump can't be read.
    pub fn tensors(&self, step: u64) -> anyhow::Result<Vec<(String, Tensor)>> {
        read_dump(&self.scratch.folder.root().join(DUMP), step)
    }
}

/// Replays the steps after `base` up to and including `until`. Without `base`, the replay starts from the initial
/// weights. Returns `Ok(Err(difference))` if the corpus or the tokenizer of this machine differs from the run's.
///
/// # Errors
/// Returns an error if this machine can't train the steps, or if a signal stops the replay.
pub fn replay(
    record: &RunRecord,
    base: Option<&RecordedCheckpoint>,
    until: u64,
    config: &ReplayConfig,
    display: &mut ProgressDisplay,
) -> anyhow::Result<Result<Replayed, ReplayDifference>> {
    let workspace = std::path::absolute(&config.workspace)?;
    ensure!(
        workspace.is_dir(),
        "the workspace {} is not a folder: set --workspace to the folder that contains the corpus",
        workspace.display()
    );
    let newest = record.checkpoints.last();
    let scratch = Scratch::create(&workspace)?;
    scratch.copy_records(&record.folder)?;
    let job = replayed_job(record, base, until, config.stages, &scratch.path)?;
    let holds_out_last_sequences = record.holds_out_last_sequences();
    let replayed = JobConfig { holds_out_last_sequences, ..job_config(job, &workspace, &record.folder, display)? };
    if let Some(newest) = newest
        && let Some(difference) = other_identity(&replayed, &newest.manifest, base, display)?
    {
        return Ok(Err(difference));
    }
    if let Some(base) = base {
        scratch.link_checkpoint(base, &with_decays_of(base, newest.unwrap_or(base)))?;
    }
    let job = &replayed.job;
    write_file(&scratch.folder.resolved_job(), &job.to_yaml()?)?;
    let mut executable = StageExecutable::current();
    let folder = scratch.folder.root().join(DUMP);
    std::fs::create_dir(&folder)?;
    let steps = if config.dump_steps.is_empty() { vec![until] } else { config.dump_steps.clone() };
    let dump = DumpConfig { patterns: config.dump.clone(), steps, folder };
    let dump = (!config.dump.is_empty()).then_some(dump);
    let frozen_weights = newest.and_then(|newest| newest.state.frozen_weights.clone());
    let options = ReplayOptions { dump, without: config.without.clone(), holds_out_last_sequences, frozen_weights };
    executable.arguments.extend(["--replay".into(), serde_json::to_string(&options)?.into()]);
    let mut state = LauncherState::load(&scratch.folder)?;
    let launch = LaunchConfig {
        job,
        workspace: &workspace,
        folder: &scratch.folder,
        executable: &executable,
        count_gpus: driver_devices,
    };
    let result = match supervise(launch, &mut state, display)? {
        RunOutcome::Complete(Some(result)) => *result,
        RunOutcome::Stopped | RunOutcome::Killed => {
            bail!(StageError::new(FailureKind::Drained, "stopped by a signal: nothing was compared"))
        }
        RunOutcome::Complete(None) | RunOutcome::Failed(_) => {
            let failure = state.state.last_failure;
            let kind = failure.as_ref().and_then(|failure| failure.kind).unwrap_or(FailureKind::Error);
            let message = failure.map_or_else(|| "the stages reported no result".into(), |failure| failure.message);
            bail!(StageError::new(kind, format!("the steps could not be trained again: {message}")))
        }
    };
    let manifest = read_manifest(&FileSystemVolume::new(scratch.folder.root()), until)?;
    let state = serde_json::from_value(manifest.metadata.progress.clone())?;
    Ok(Ok(Replayed { steps: read_metrics(&scratch.folder.metrics())?, manifest, state, result, scratch }))
}

/// Returns the manifest of `base` with the learning-rate decays of steps that were added to the job after `base`.
fn with_decays_of(base: &RecordedCheckpoint, newest: &RecordedCheckpoint) -> Manifest {
    let state = TrainerState {
        decay_steps: newest.state.decay_steps,
        length: newest.state.length,
        extensions: newest.state.extensions.clone(),
        ..base.state.clone()
    };
    let mut manifest = base.manifest.clone();
    manifest.metadata.progress = json!(state);
    manifest
}

/// Returns the first difference in the corpus or the tokenizer between the job on this machine and the recorded job.
fn other_identity(
    config: &JobConfig,
    recorded: &Manifest,
    base: Option<&RecordedCheckpoint>,
    display: &mut ProgressDisplay,
) -> anyhow::Result<Option<ReplayDifference>> {
    let data_config = config.data_config();
    let prepared = stagecoach_data::prepare(&data_config, &mut |progress| show_progress(display, progress))
        .map_err(StageError::from)?;
    let dataset = Dataset::open(&data_config, &prepared).map_err(StageError::from)?;
    let here: Value = config.identity(&prepared, &dataset);
    // the identity is compared with two checkpoints: the newest checkpoint, whose job is replayed, and the checkpoint
    // from which the replay starts
    let found = [Some(recorded), base.map(|base| &base.manifest)].into_iter().flatten().find_map(|manifest| {
        let different = differences(&here, &manifest.metadata.identity);
        let different = different.into_iter().find(|d| change_effect(&d.path) != Some(ChangeEffect::Extension))?;
        let what = format!(
            "the corpus or the tokenizer on this machine differs from the run's: {different} of step {}",
            manifest.step
        );
        Some(ReplayDifference { step: manifest.step, what })
    });
    Ok(found)
}
