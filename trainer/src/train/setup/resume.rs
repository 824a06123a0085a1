//! Resumes training: the leader of the group acquires the fence (the right to commit checkpoints), then chooses the
//! newest checkpoint of this job. Every stage verifies the bytes that it loads, and all stages skip a checkpoint that
//! any stage finds damaged.

use std::time::Instant;

use serde_json::Value;
use stagecoach_api::job::{ChangeEffect, change_effect};
use stagecoach_checkpoint::{
    CheckpointError, CheckpointReader, Damage, Fence, FenceOwner, NewestCheckpoint, VerifyLevel, Volume, differences,
    list, newest_fence, open_newest, open_tensors, paths, quarantine, read_manifest,
};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::Stage;
use stagecoach_engine::state_dict::{InitialWeights, checkpoint_tensors, first_difference, load_checkpoint};
use stagecoach_group::Member;
use stagecoach_model::Architecture;
use stagecoach_planner::{JobConfig, Plan, TrainerState};
use stagecoach_telemetry::has_launcher;

use crate::train::collective::{all_gather, topic};
use crate::train::context::StageContext;
use crate::train::join::rendezvous::living_other_job;
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::LastSnapshot;
use crate::train::setup::environment::compare_with_checkpoint;
use crate::train::setup::initial_weights::{LoadProgress, load_initial_weights};

/// The checkpoint that the leader chose.
#[derive(Debug)]
pub(in crate::train) struct ResumePoint {
    pub(in crate::train) trainer_state: TrainerState,
    /// The newer checkpoints that can't be used. The leader sets them aside (moves them to `damaged/`) after the stages
    /// have loaded another checkpoint.
    pub(in crate::train) damage: Vec<Damage>,
    /// The messages for the user.
    pub(in crate::train) notes: Vec<String>,
}

/// Acquires the next fence on `volume` for the job `owner`. `last` is the fence of the last group that this stage led.
/// If there is a newer fence, another stage has replaced this stage, and the call fails. If `after` is given, the call
/// also fails if there is a fence with a number greater than `after`.
///
/// # Errors
/// If a newer group is starting or has begun, or the volume fails.
pub(in crate::train) fn acquire_fence(
    volume: &dyn Volume,
    owner: &FenceOwner,
    last: Option<&Fence>,
    after: Option<u64>,
) -> Result<Fence, LeaveReason> {
    last.map_or(Ok(()), |last| last.check(volume))?;
    Ok(Fence::acquire_for(volume, owner, after)?)
}

/// Refuses a folder that belongs to another job. This check comes before the fence is acquired, because acquiring it
/// would end the other job's group. The check fails if the leader of another job's group answers, or if the newest
/// checkpoint has another identity, which consists of the values that determine the losses and weights of a job. The
/// comparison skips the values that depend on the corpus, because the corpus is not read yet. Returns the newest fence
/// at the time of the check. If a stage then acquires exactly the next fence, no other group has begun in the folder
/// since the check.
///
/// # Errors
/// Returns `InvalidConfig` with the name of the other job or the fields that differ, or another error if the volume
/// fails.
pub(in crate::train) fn check_folder(context: &StageContext, own: &FenceOwner) -> Result<u64, LeaveReason> {
    let StageContext { config, volume, .. } = *context;
    let seen = newest_fence(volume)?;
    if let Some(other) = living_other_job(volume, own)? {
        return Err(StageError::invalid(format!(
            "{other} trains in {}, and a folder belongs to one job: give each job a separate spec.storage.path",
            volume.display("").display()
        ))
        .into());
    }
    let newest = list(volume)?.steps.first().copied();
    // `choose_checkpoint` reports a damaged checkpoint
    if let Some(Ok(manifest)) = newest.map(|step| read_manifest(volume, step)) {
        let recorded = &manifest.metadata.identity;
        let identity = config.resuming(recorded)?.identity_over_corpus_of(recorded);
        refuse_other_job(volume, other_fields(&identity, recorded))?;
    }
    Ok(seen)
}

/// Chooses the newest checkpoint without `known` damage, for training up to step `steps`. The stages verify the content
/// when they load it.
///
/// # Errors
/// If there are checkpoints but none can be used, if the newest one is of another job or another model, if its learning
/// rate can't continue as the job specifies, or if the volume fails.
pub(in crate::train) fn choose_checkpoint(
    context: &StageContext,
    identity: &Value,
    steps: u64,
    architecture: &dyn Architecture,
    known: &[Damage],
) -> Result<ResumePoint, LeaveReason> {
    let StageContext { config, volume, environment, .. } = *context;
    let NewestCheckpoint { checkpoint, damage, foreign, .. } = open_newest(volume, VerifyLevel::Sizes, known)?;
    let mut notes: Vec<String> = foreign.iter().map(ToString::to_string).collect();
    let mut trainer_state = TrainerState::default();
    if let Some(checkpoint) = checkpoint {
        same_job(volume, &checkpoint, identity, architecture)?;
        trainer_state = read_trainer_state(&checkpoint)?;
        let before = &checkpoint.manifest().metadata.environment;
        notes.extend(compare_with_checkpoint(&mut trainer_state, before, environment));
    }
    notes.extend(config.fix_decay(&mut trainer_state, steps)?);
    Ok(ResumePoint { trainer_state, damage, notes })
}

/// Refuses a checkpoint of another job, and names the fields that differ.
fn same_job(
    volume: &dyn Volume,
    loaded: &CheckpointReader,
    identity: &Value,
    architecture: &dyn Architecture,
) -> Result<(), StageError> {
    let recorded = &loaded.manifest().metadata.identity;
    let mut different = other_fields(identity, recorded);
    let (job_ids, recorded_ids) = (&identity["data"]["specialTokenIds"], &recorded["data"]["specialTokenIds"]);
    // the identity has the padding token only if the job names tokens
    if !job_ids.is_null() && recorded_ids.is_null() && job_ids.get("pad").is_none() {
        different.push(
            "the tokens at the beginning and end of documents come from tokenizer_config.json and config.json here, \
             and from an earlier version's choice among the words of the vocabulary in the checkpoints"
                .to_owned(),
        );
    }
    different.extend(first_difference(&architecture.all_parameter_specs(), loaded.manifest()));
    refuse_other_job(volume, different)
}

/// Returns the fields in which a job's identity differs from the `recorded` one. Skips the decay of the learning rate,
/// which may differ in a job with more steps and which `fix_decay` checks.
fn other_fields(identity: &Value, recorded: &Value) -> Vec<String> {
    let different = differences(identity, recorded).into_iter();
    let different = different.filter(|difference| change_effect(&difference.path) != Some(ChangeEffect::Extension));
    different.map(|difference| difference.to_string()).collect()
}

fn refuse_other_job(volume: &dyn Volume, different: Vec<String>) -> Result<(), StageError> {
    if different.is_empty() {
        return Ok(());
    }
    Err(StageError::invalid(format!(
        "the checkpoints in {} are another job's: {}; set spec.storage.path to another folder{}",
        volume.display("").display(),
        different.join(", "),
        // a pod has no argument `--fresh`
        if has_launcher() { ", or start over with --fresh" } else { "" }
    )))
}

/// Returns the identity of the newest checkpoint, if the job has one that can be read.
pub(in crate::train) fn recorded_identity(volume: &dyn Volume) -> Option<Value> {
    let newest = open_newest(volume, VerifyLevel::Sizes, &[]).ok()?;
    Some(newest.checkpoint?.manifest().metadata.identity.clone())
}

fn read_trainer_state(loaded: &CheckpointReader) -> Result<TrainerState, StageError> {
    serde_json::from_value(loaded.manifest().metadata.progress.clone())
        .map_err(|e| StageError::storage("understand the progress in", loaded.folder().as_ref(), e))
}

/// Sets aside the checkpoints that contain the result of `step`, which an audit has found wrong, so that the next
/// attempt resumes from an earlier one.
///
/// # Errors
/// If a newer group has begun, or the volume fails.
pub(in crate::train) fn quarantine_from(
    volume: &dyn Volume,
    fence: &Fence,
    step: u64,
) -> Result<Vec<String>, CheckpointError> {
    let damage = |saved: u64| Damage {
        step: saved,
        file: paths::checkpoint_path(saved),
        reason: format!("was saved after step {step}, for which an audit has found a wrong result"),
    };
    let steps = list(volume)?.steps.into_iter().filter(|saved| *saved >= step);
    let quarantined = quarantine(volume, fence, &steps.map(damage).collect::<Vec<_>>())?;
    Ok(quarantined.iter().map(ToString::to_string).collect())
}

/// Checks, as the leader does, whether the learning rate of this job can continue from the newest checkpoint on
/// `volume`. The launcher calls this before it changes anything. This function ignores all other problems of the
/// volume, because the leader reports them.
///
/// # Errors
/// If the learning rate can't continue as the job specifies.
pub(crate) fn check_extension(config: &JobConfig, volume: &dyn Volume) -> Result<(), StageError> {
    let Ok(NewestCheckpoint { checkpoint: Some(checkpoint), .. }) = open_newest(volume, VerifyLevel::Sizes, &[]) else {
        return Ok(());
    };
    // a job that streams its corpus records no number of sequences, and specifies its length in steps
    let sequences = checkpoint.manifest().metadata.identity["data"]["trainingSequences"].as_u64();
    match read_trainer_state(&checkpoint) {
        Ok(mut trainer_state) => config.fix_decay(&mut trainer_state, config.steps(sequences)).map(drop),
        Err(_) => Ok(()),
    }
}

/// Finishes the loading of a memory checkpoint, which began at `started`. The leader sets aside the damaged checkpoints
/// on the volume. Returns messages for the user.
///
/// # Errors
/// If the volume fails.
pub(in crate::train) fn finish_in_memory(
    context: &StageContext,
    plan: &Plan,
    started: Instant,
    damage: &[Damage],
) -> Result<Vec<String>, LeaveReason> {
    if !context.is_leader() {
        return Ok(Vec::new());
    }
    let (step, seconds) = (plan.trainer_state.step, started.elapsed().as_secs_f64());
    let loaded = format!("resuming after step {step}, which was in memory and was loaded in {seconds:.2}s");
    let quarantined = quarantine(context.volume, &plan.fence, damage)?;
    Ok(std::iter::once(loaded).chain(quarantined.iter().map(ToString::to_string)).collect())
}

/// Loads `stage` from the checkpoint that the leader has chosen. If any stage finds this checkpoint damaged, all stages
/// load an older one, and all make the same change to `plan.trainer_state`. Does not read the tensors of the checkpoint
/// that are in `held`. Returns messages for the user.
///
/// # Errors
/// If no intact checkpoint remains, if the group fails, or if the volume fails.
pub(in crate::train) fn load_weights(
    context: &StageContext,
    member: &Member,
    plan: &mut Plan,
    architecture: &dyn Architecture,
    stage: &mut Stage,
    mut damage: Vec<Damage>,
    held: Option<&LastSnapshot>,
) -> Result<Vec<String>, LeaveReason> {
    let StageContext { config, volume, .. } = *context;
    let mut notes = Vec::new();
    let started = Instant::now();
    loop {
        let mut progress = LoadProgress::new(context, stage, plan.trainer_state.step > 0);
        let mut on_read = |bytes| progress.add(bytes);
        let own = match plan.trainer_state.step {
            0 => plan.initial_weights.as_ref().map_or(Ok(()), |path| {
                let load = |weights: InitialWeights| weights.load(architecture, stage, &mut on_read);
                load_initial_weights(&config.workspace.join(path), load)
            }),
            step => {
                let held = held.filter(|held| held.step == step).map(|held| &held.snapshot);
                let names = checkpoint_tensors(stage, held);
                // a stage with all its tensors in `held` needs no file
                let checkpoint = (!names.is_empty()).then(|| open_tensors(volume, step, &names)).transpose();
                checkpoint.and_then(|checkpoint| {
                    load_checkpoint(checkpoint.as_ref(), held, stage, plan.trainer_state.updates, &mut on_read)
                })
            }
        };
        let own: Option<Damage> = match own {
            Err(CheckpointError::Damaged(damage)) => Some(damage),
            loaded => loaded.map(|()| None)?,
        };
        let found: Vec<Damage> = all_gather(member, topic::LOAD, &own)?.into_iter().flatten().collect();
        if found.is_empty() {
            break;
        }
        if context.is_leader() {
            damage.extend(found);
            let again = choose_checkpoint(context, &plan.identity, plan.steps, architecture, &damage)?;
            (damage, notes) = (again.damage, again.notes);
            let trainer_state =
                serde_json::to_vec(&again.trainer_state).map_err(|e| StageError::invalid(e.to_string()))?;
            member.broadcast(topic::LOAD, trainer_state)?;
        }
        plan.trainer_state = serde_json::from_slice(&member.receive_broadcast(topic::LOAD)?).map_err(|e| {
            StageError::invalid(format!(
                "the leader's choice can't be read ({e}): all stages must run the same version of Stagecoach"
            ))
        })?;
    }
    if context.is_leader() {
        let (step, seconds) = (plan.trainer_state.step, started.elapsed().as_secs_f64());
        notes.extend(
            (step > 0).then(|| format!("resuming after step {step}, whose checkpoint was loaded in {seconds:.2}s")),
        );
        notes.extend(quarantine(volume, &plan.fence, &damage)?.iter().map(ToString::to_string));
    }
    Ok(notes)
}
