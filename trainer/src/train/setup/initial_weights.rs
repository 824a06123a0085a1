//! The loading of weights from a model directory: the initial weights when a job begins, and the frozen weights at
//! every start.

use std::collections::BTreeSet;
use std::path::Path;

use stagecoach_checkpoint::CheckpointError;
use stagecoach_engine::StageError;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::{FrozenWeights, InitialWeights, TensorHash};
use stagecoach_group::Member;
use stagecoach_model::Architecture;
use stagecoach_planner::Plan;

use crate::train::collective::{all_gather, topic};
use crate::train::context::StageContext;
use crate::train::leave::LeaveReason;

/// Loads weights from a model directory. Converts damage into [`CheckpointError::Content`]: when a checkpoint is
/// damaged, the stages load an older one, but there is no older model directory.
pub(in crate::train) fn load_initial_weights<T>(
    folder: &Path,
    load: impl FnOnce(InitialWeights) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    InitialWeights::open(folder).and_then(load).map_err(|error| match error {
        CheckpointError::Damaged(damage) => {
            CheckpointError::Content { path: folder.to_owned(), problem: format!("is damaged: {damage}") }
        }
        other => other,
    })
}

/// Loads the frozen weights of `stage`, unless the stage has them from an earlier group. All stages record the same
/// hash of the frozen weights in the trainer state.
///
/// # Errors
/// If a weight can't be read, or if the weights differ from those with which the job began.
pub(in crate::train) fn load_frozen_weights(
    context: &StageContext,
    member: &Member,
    plan: &mut Plan,
    architecture: &dyn Architecture,
    stage: &mut Stage,
) -> Result<(), LeaveReason> {
    let (true, Some(path)) = (context.config.training.freezes_weights(), plan.initial_weights.clone()) else {
        return Ok(());
    };
    let folder = context.config.workspace.join(&path);
    if stage.frozen_hashes.is_none() {
        let mut progress = LoadProgress::of_frozen(context, stage);
        let load = |weights: InitialWeights| weights.load_frozen(architecture, stage, &mut |bytes| progress.add(bytes));
        stage.frozen_hashes = Some(load_initial_weights(&folder, load)?);
    }
    let all: Vec<Option<Vec<TensorHash>>> = all_gather(member, topic::FROZEN, &stage.frozen_hashes)?;
    // the replicas of a stage have the same tensors, and so do the two stages that share a tied weight
    let distinct: BTreeSet<TensorHash> = all.into_iter().flatten().flatten().collect();
    let names: BTreeSet<&str> = distinct.iter().map(TensorHash::name).collect();
    if names.len() < distinct.len() {
        return Err(StageError::invalid(format!(
            "stages read different weights in {}: all stages must see one volume",
            folder.display()
        ))
        .into());
    }
    let hashes: Vec<TensorHash> = distinct.into_iter().collect();
    if let Some(before) = &plan.trainer_state.frozen_weights {
        let checked = before.check(hashes.clone(), &folder, "put those weights back, or begin another job");
        checked.map_err(|other| StageError::invalid(other.to_string()))?;
    }
    plan.trainer_state.frozen_weights = Some(FrozenWeights { hash: TensorHash::combine(hashes), path });
    Ok(())
}

/// The progress of loading. Every tensor is a separate activity, so that the group does not mistake a large stage on a
/// slow volume for a hang.
pub(in crate::train) struct LoadProgress<'a> {
    context: &'a StageContext<'a>,
    tensors: (usize, usize),
    bytes: (u64, u64),
}

impl<'a> LoadProgress<'a> {
    /// Creates the progress of loading `stage`, with or without its moments.
    pub(in crate::train) fn new(context: &'a StageContext, stage: &Stage, with_moments: bool) -> LoadProgress<'a> {
        let each = if with_moments { 3 } else { 1 };
        let parameters = || stage.parameters.iter().enumerate();
        let owned = || {
            // without moments, the weights come from a model directory, which has no adapters
            parameters().filter(|(index, parameter)| match with_moments {
                true => stage.owns(*index),
                false => parameter.spec.is_model_weight(),
            })
        };
        let bytes: u64 = owned().map(|(_, parameter)| 4 * parameter.spec.numel()).sum();
        LoadProgress { context, tensors: (0, each * owned().count()), bytes: (0, each as u64 * bytes) }
    }

    /// Creates the progress of loading the frozen weights of `stage`.
    fn of_frozen(context: &'a StageContext, stage: &Stage) -> LoadProgress<'a> {
        let frozen = stage.parameters.frozen();
        let bytes = frozen.iter().map(|weight| 4 * weight.spec.numel()).sum();
        LoadProgress { context, tensors: (0, frozen.len()), bytes: (0, bytes) }
    }

    /// Records that one more tensor, of `bytes` bytes, was read.
    pub(in crate::train) fn add(&mut self, bytes: u64) {
        self.tensors.0 += 1;
        self.bytes.0 += bytes;
        let ((tensors, all), (done, total)) = (self.tensors, self.bytes);
        self.context.monitor.set_activity(&format!("loading {tensors} of {all} tensors, {done} of {total} bytes"));
        if self.context.is_leader() {
            self.context.monitor.preparing("loading", done, total);
        }
    }
}
