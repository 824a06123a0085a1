//! Runs a stage: join, plan (stage 0) or receive the plan, build, connect, train, save, leave.

mod checkpoint;
mod collective;
mod context;
mod data_loader;
mod drain;
mod environment;
mod evaluate;
mod finish;
mod join;
mod measured_step;
mod monitor;
mod prepare;
mod rendezvous;
mod resume;
mod step_recorder;
mod steps;

pub(crate) use monitor::{StageMonitor, write_termination_message};
pub(crate) use resume::check_extension;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stagecoach_api::contract::{FailureKind, StageEnv, StagePhase};
use stagecoach_checkpoint::Volume;
use stagecoach_group::Member;

use crate::execute::{Stage, StageConfig, kind};
use crate::fatal::Fatal;
use crate::folder::JobFolder;
use crate::links::{LinksConfig, link_ids, open_links};
use crate::model::Architecture;
use crate::observe::{EventWriter, StartRecord, TrainingEvent};
use crate::plan::{JobConfig, Plan};

use context::{RunningStage, StageContext, emit};
use data_loader::DataLoader;
use join::{Assignment, JoinedGroup};

/// Successful end of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageOutcome {
    /// Trained to the end, and the model is saved.
    Done,
    /// Asked to stop, and all stages stopped after the same step.
    Drained,
}

/// How long to wait, after a link breaks, for the group to report the root cause.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(4);

fn train_and_finish(running: &mut RunningStage, architecture: &dyn Architecture) -> Result<StageOutcome, Fatal> {
    let state = steps::train(running, architecture)?;
    if state.step < running.plan.steps || state.evaluation_due {
        return Ok(StageOutcome::Drained);
    }
    finish::finish(running, &state)?;
    Ok(StageOutcome::Done)
}

/// Runs one stage from start to exit.
///
/// # Errors
/// What ends the stage, ready for the termination message.
pub(crate) fn run_stage(
    env: &StageEnv,
    config: &JobConfig,
    mount: fn(&Path) -> Arc<dyn Volume>,
    monitor: &StageMonitor,
    event_writer: &EventWriter,
) -> Result<StageOutcome, Fatal> {
    let rank = env.rank as usize;
    tch::set_num_threads(config.training.threads as i32);
    tch::set_num_interop_threads(1);
    let device = config.device(rank)?;
    if rank == 0 {
        JobFolder::open(&config.folder(), None)?;
    }
    let volume = &*mount(&config.folder());
    let context = StageContext { env, config, device, volume, monitor, event_writer };
    let JoinedGroup { member, coordinator, assignment, notes } = join::join_group(&context)?;
    notes.into_iter().for_each(|message| emit(&context, &TrainingEvent::Note { message }));
    let outcome = load_and_train(&context, &member, assignment);
    let code = match &outcome {
        Ok(StageOutcome::Done) => FailureKind::Done.exit_code().code(),
        Ok(StageOutcome::Drained) => FailureKind::Drained.exit_code().code(),
        Err(fatal) if fatal.kind == FailureKind::PeerLost => {
            // a link broke: within the heartbeat timeout the group reports the root cause, which ends this process
            std::thread::sleep(ROOT_CAUSE_TIMEOUT);
            fatal.kind.exit_code().code()
        }
        // the exit code tells the others the cause
        Err(fatal) => fatal.kind.exit_code().code(),
    };
    monitor.set_leaving();
    let left = member.leave(code);
    drop(coordinator);
    let outcome = outcome?;
    left?;
    Ok(outcome)
}

/// From the plan to the end of training; the caller reports every failure to the group.
fn load_and_train(context: &StageContext, member: &Member, assignment: Assignment) -> Result<StageOutcome, Fatal> {
    let StageContext { env, config, device, monitor, .. } = *context;
    let Assignment { roster, mut plan, verified, listener, damage } = assignment;
    let rank = env.rank as usize;
    let note = |message| emit(context, &TrainingEvent::Note { message });
    let architecture = config.architecture(plan.vocab_size, device);
    let placement = &verified.training.placement;
    monitor.telemetry().set_phase(StagePhase::Forming);
    monitor.set_activity("building the stage");
    // a fallback from a damaged checkpoint is an older one, never a fresh start
    let is_fresh = plan.trainer_state.step == 0 && plan.initial_weights.is_none();
    let mut stage = Stage::build(
        rank,
        &StageConfig {
            architecture: architecture.as_ref(),
            placement,
            partition: &verified.partition,
            seed: is_fresh.then_some(config.training.seed),
            optimizer: config.adamw(),
            recompute: plan.recompute,
            precision: config.training.precision,
            device,
        },
    );
    monitor.set_activity("loading");
    let notes = resume::load_weights(context, member, &mut plan, architecture.as_ref(), &mut stage, damage)?;
    notes.into_iter().for_each(note);
    let own = environment::environment(config, device);
    let different = environment::compare_stages(member, &mut plan.trainer_state, &own)?;
    different.filter(|_| rank == 0).into_iter().for_each(note);
    let data_loader = DataLoader::open(config, &plan, rank, placement, device)?;
    monitor.set_activity("opening links");
    let addresses: Vec<String> = roster.members.iter().map(|hello| hello.data_address.clone()).collect();
    let links = open_links(LinksConfig {
        rank,
        group: format!("{}/{}", env.job_uid, env.attempt),
        secret: member.secret(),
        on_rejected: &|| monitor.telemetry().count_rejected_connection(),
        listener,
        addresses: &addresses,
        link_ids: &link_ids(placement, architecture.tie_word_embeddings()),
        transport: config.job.spec.pipeline.transport,
        encryption: config.job.spec.pipeline.encryption,
        boundary_bytes: kind(config.training.precision).elt_size_in_bytes()
            * config.microbatch_size()
            * config.data.sequence_length as usize
            * architecture.hidden_size(),
        tied_bytes: 4 * architecture.vocab_size() * architecture.hidden_size(),
        timeout: join::group_timeouts(config).startup_timeout,
    })?;
    member.form()?;
    monitor.set_formed();
    if rank == 0 {
        let record = start_record(env, config, &plan, architecture.as_ref());
        if record.first_step > record.steps {
            note(format!(
                "step {} is trained, and the job has {} steps: nothing is left to train",
                plan.trainer_state.step, plan.steps
            ));
        } else {
            emit(context, &TrainingEvent::Started(record));
        }
    }
    let mut running =
        RunningStage { context: *context, plan: &plan, verified: &verified, member, stage, links, data_loader };
    train_and_finish(&mut running, architecture.as_ref())
}

fn start_record(env: &StageEnv, config: &JobConfig, plan: &Plan, architecture: &dyn Architecture) -> StartRecord {
    let specs = architecture.all_parameter_specs();
    StartRecord {
        stages: env.world_size as usize,
        schedule: plan.schedule.clone(),
        partition: plan.partition.clone(),
        microbatches: config.training.microbatches as usize,
        first_step: plan.trainer_state.step + 1,
        steps: plan.steps,
        parameters: specs.iter().map(|s| s.shape.iter().product::<i64>() as u64).sum(),
        tokens: plan.training_tokens,
        vocab_size: plan.vocab_size,
        expected_bubble: plan.expected_bubble,
        unigram_entropy: plan.unigram_entropy,
        environment_differences: plan.trainer_state.environment_differences.clone(),
    }
}
