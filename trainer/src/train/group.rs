//! A stage in one group, from joining to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stagecoach_api::contract::{FailureKind, StagePhase};
use stagecoach_api::job::Transport;
use stagecoach_group::{Coordinator, GroupError, Member, Roster};

use super::audit::Audits;
use super::context::{RunningStage, StageContext, emit};
use super::data_loader::DataLoader;
use super::join::{Assignment, JoinedGroup, group_timeouts, join_group};
use super::kept::{Kept, Layout};
use super::memory::{HeldByGroup, MemoryCheckpoints};
use super::on_failure::FailureHandler;
use super::{StageOutcome, carriers, environment, finish, resume, steps};
use crate::execute::{Stage, StageConfig, gather_weights, kind};
use crate::fatal::Fatal;
use crate::folder::METRICS;
use crate::links::{CopyRing, Interrupt, LinkError, LinkId, LinksConfig, open_links, replicated_link_ids};
use crate::model::Architecture;
use crate::observe::{StartRecord, TrainingEvent, read_metrics};
use crate::plan::{JobConfig, Plan};
use crate::state_dict::StateCopy;

/// How long to wait, after a link breaks, for the group to report the root cause.
const ROOT_CAUSE_TIMEOUT: Duration = Duration::from_secs(4);

/// Runs the stage in the next group. None if that ended to form again, with a replica that is back or led by this stage.
///
/// # Errors
/// What ends the stage, or the group: then [`Fatal::is_group_lost`].
pub(super) fn run_group(context: &StageContext, kept: &mut Kept) -> Result<Option<StageOutcome>, Fatal> {
    let monitor = context.monitor;
    monitor.set_forming();
    let interrupt = Interrupt::default();
    // dropped when this function returns
    let (handler, _in_group) = FailureHandler::new(context, interrupt.clone());
    let handler = Arc::new(handler);
    let on_failure = {
        let handler = Arc::clone(&handler);
        move |failure| handler.handle(failure)
    };
    // what fails before the group is released does not get better by forming another
    let joined = join_group(context, kept, on_failure).map_err(|fatal| Fatal { is_group_lost: false, ..fatal });
    let Some(JoinedGroup { member, coordinator, assignment, notes }) = joined? else { return Ok(None) };
    let roster = assignment.roster.clone();
    handler.set_roster(&roster);
    notes.into_iter().for_each(|message| emit(context, &TrainingEvent::Note { message }));
    // from here on it is the stage that it is in this group
    let rank = roster.rank_in_group(context.env.rank as usize).unwrap_or_default();
    let env = &context.env.in_group(rank as u32, roster.members.len());
    let config = &context.config.with_data_parallel(env.mesh.data_parallel);
    let in_group = StageContext { env, config, ..*context };
    let mut outcome = load_and_train(&in_group, &member, assignment, kept, &interrupt);
    handler.leave();
    let left = match &outcome {
        Ok(Some(StageOutcome::Done)) => member.leave(FailureKind::Done.exit_code().code()),
        Ok(Some(StageOutcome::Drained)) => member.leave(FailureKind::Drained.exit_code().code()),
        Ok(None) => member.leave_for_next_group(),
        Err(Fatal { kind: FailureKind::WrongResult | FailureKind::Drained, .. }) => member.leave_for_good(),
        // the exit code tells the others the cause
        Err(fatal) => member.leave(fatal.kind.exit_code().code()),
    };
    // one that fails while all leave is known from that alone
    let failure = match (handler.failure(), &left) {
        (None, Err(GroupError::GroupFailed(failure))) => Some(&**failure),
        (failure, _) => failure,
    };
    let lost = failure.and_then(|failure| failure.root_cause_rank);
    kept.lost_ranks = Some(lost_ranks(context, &roster, lost, coordinator.as_ref()));
    let second = roster.members.get(context.env.mesh.stages as usize).filter(|_| context.may_lack_replicas());
    kept.succeeds = second.filter(|second| second.rank == context.env.rank as usize).map(|_| roster.leader() as u32);
    let has_leader_ended = failure.is_some_and(|failure| failure.has_ended && lost == Some(roster.leader()));
    kept.leaderless = kept.epoch.filter(|_| kept.succeeds.is_some() && has_leader_ended);
    if outcome.is_ok() {
        outcome = left.map_err(Fatal::from).and(outcome);
    }
    outcome
}

/// The ranks that the next group need not wait for: the one that was lost, and those that were not here.
fn lost_ranks(
    context: &StageContext,
    roster: &Roster,
    lost: Option<usize>,
    coordinator: Option<&Coordinator>,
) -> Vec<usize> {
    let waiting = coordinator.map(Coordinator::waiting_ranks).unwrap_or_default();
    let is_away = |rank: &usize| roster.rank_in_group(*rank).is_none() && !waiting.contains(rank);
    (0..context.env.mesh.ranks() as usize).filter(is_away).chain(lost).collect()
}

/// From the plan to the end of training; the caller reports every failure to the group.
fn load_and_train(
    context: &StageContext,
    member: &Member,
    assignment: Assignment,
    kept: &mut Kept,
    interrupt: &Interrupt,
) -> Result<Option<StageOutcome>, Fatal> {
    let StageContext { env, config, device, monitor, .. } = *context;
    let Assignment { roster, mut plan, verified, listener, damage } = assignment;
    let rank = env.rank as usize;
    let note = |message| emit(context, &TrainingEvent::Note { message });
    let architecture = config.architecture(plan.vocab_size, device);
    let (placement, replica) = (&verified.training.placement, verified.replica);
    let stage_index = rank % placement.ranks();
    monitor.telemetry().group_joined(plan.fence.number(), roster.incarnations());
    monitor.telemetry().set_phase(StagePhase::Forming);
    monitor.set_activity("building the stage");
    let ranks = env.mesh.ranks() as usize;
    let memory_spec = config.job.spec.memory_checkpoints(ranks);
    kept.set_layout(Layout::of(config, &plan, &verified));
    let ring = CopyRing { stages: placement.ranks(), replicas: replica.count };
    let is_replicated = roster.members.first().is_some_and(|hello| hello.world_size > ring.stages);
    let recorded = (rank == 0 && is_replicated).then(|| last_recorded_step(config));
    let agree = |_| HeldByGroup::agree(member, &kept.copies, ring, plan.trainer_state.step, recorded);
    let held = memory_spec.map(agree).transpose()?;
    let mut saved_step = plan.trainer_state.step;
    let in_memory = held.as_ref().and_then(HeldByGroup::state);
    if let Some(state) = in_memory {
        plan.trainer_state = state.clone();
    }
    // a fallback from a damaged checkpoint is an older one, never a fresh start
    let is_fresh = plan.trainer_state.step == 0 && plan.initial_weights.is_none();
    let stage_config = StageConfig {
        architecture: architecture.as_ref(),
        placement,
        partition: &verified.partition,
        seed: is_fresh.then_some(config.training.seed),
        optimizer: config.adamw(),
        recompute: plan.recompute,
        precision: config.training.precision,
        device,
        replica,
    };
    let is_reused = plan.trainer_state.step > 0 && context.replay.dump.is_none();
    let reused = if is_reused { kept.take_stage() } else { None };
    let mut stage = reused.unwrap_or_else(|| Stage::build(stage_index, &stage_config));
    if let Some(dump) = &context.replay.dump {
        stage.prepare_dump(dump, &verified.partition);
    }
    monitor.set_activity("opening links");
    let addresses: Vec<String> = roster.members.iter().map(|hello| hello.data_address.clone()).collect();
    let mut link_ids = replicated_link_ids(placement, architecture.tie_word_embeddings(), replica.count);
    if memory_spec.is_some() {
        link_ids.extend(ring.link_ids());
    }
    let audit_spec = config.job.spec.audit(ranks);
    if audit_spec.is_some() {
        link_ids.extend((0..ranks).map(|rank| LinkId::audit(rank, ranks)));
    }
    let opened = open_links(LinksConfig {
        rank,
        group: format!("{}/{}", env.job_uid, env.attempt),
        secret: member.secret(),
        on_rejected: &|| monitor.telemetry().count_rejected_connection(),
        listener,
        addresses: &addresses,
        link_ids: &link_ids,
        transport: config.job.spec.pipeline.transport,
        device,
        encryption: config.job.spec.pipeline.encryption,
        boundary_bytes: kind(config.training.precision).elt_size_in_bytes()
            * config.microbatch_size()
            * config.data.sequence_length as usize
            * architecture.hidden_size(),
        tied_bytes: 4 * architecture.vocab_size() * architecture.hidden_size(),
        interrupt: interrupt.clone(),
        timeout: group_timeouts(config).startup_timeout,
    });
    let mut links = opened.map_err(|error| link_failure(member, error))?;
    if config.job.spec.pipeline.transport == Transport::Auto {
        let missing = carriers::missing(member, &roster, rank, &links)?;
        let is_news = rank == 0 && !std::mem::replace(&mut kept.told_of_carriers, !missing.is_empty());
        missing.into_iter().filter(|_| is_news).for_each(note);
    }
    let seed = config.training.seed;
    let begin_audits = |spec| Audits::begin(spec, seed, (rank, &roster), &verified, &stage_config, &mut links);
    let mut audits = audit_spec.and_then(begin_audits);
    monitor.set_activity("loading");
    let started = Instant::now();
    let is_in_memory = in_memory.is_some();
    let mut memory = None;
    if let (Some(spec), Some(held)) = (memory_spec, held) {
        let numel = |rank| StateCopy::numel(architecture.as_ref(), placement, &verified.partition, replica.count, rank);
        let numels = [numel(rank), numel(ring.held_by(rank))];
        let begun =
            MemoryCheckpoints::begin(spec, held, (rank, ring), numels, &mut links, &mut kept.copies, &mut stage);
        memory = begun.map_err(|error| link_failure(member, error))?;
    }
    let notes = if is_in_memory {
        resume::finish_in_memory(context, &plan, started, &damage)?
    } else {
        let held = kept.snapshot.as_ref();
        let notes = resume::load_weights(context, member, &mut plan, architecture.as_ref(), &mut stage, damage, held)?;
        // an older one may have taken its place
        saved_step = plan.trainer_state.step;
        notes
    };
    notes.into_iter().for_each(note);
    if plan.trainer_state.step > 0 {
        // each replica has loaded what it owns
        let gathered = gather_weights(&mut stage, &mut links, placement.ranks(), &member.activity());
        gathered.map_err(|error| link_failure(member, error))?;
    }
    let (different, environments) = environment::compare_stages(member, &mut plan.trainer_state, context.environment)?;
    let has_unaudited = audits.as_mut().is_some_and(|audits| audits.set_environments(environments.clone()));
    let unaudited = has_unaudited.then(|| "stages in different environments do not audit each other".to_owned());
    different.into_iter().chain(unaudited).filter(|_| rank == 0).for_each(note);
    let data_loader = DataLoader::open(context, &plan, stage_index, placement)?;
    member.form()?;
    monitor.set_formed();
    if rank == 0 {
        let record = start_record(config, &plan, architecture.as_ref(), &roster);
        if record.first_step > record.steps {
            note(format!(
                "step {} is trained, and the job has {} steps: nothing is left to train",
                plan.trainer_state.step, plan.steps
            ));
        } else {
            emit(context, &TrainingEvent::Started(record));
        }
    }
    let snapshot = kept.snapshot.take();
    let mut running = RunningStage {
        context: *context,
        plan: &plan,
        saved_step,
        verified: &verified,
        member,
        environments: &environments,
        stage,
        links,
        data_loader,
        snapshot,
    };
    let trained = train_and_finish(&mut running, architecture.as_ref(), memory.as_mut(), audits);
    if let (Some(memory), Err(_)) = (&mut memory, &trained) {
        // what has arrived whole counts, and nothing more arrives
        interrupt.trigger();
        let _ = memory.wait();
    }
    (kept.stage, kept.snapshot) = (Some(running.stage), running.snapshot);
    trained
}

fn train_and_finish(
    running: &mut RunningStage,
    architecture: &dyn Architecture,
    memory: Option<&mut MemoryCheckpoints>,
    audits: Option<Audits>,
) -> Result<Option<StageOutcome>, Fatal> {
    let (state, forms_again) = steps::train(running, architecture, memory, audits)?;
    if state.step < running.plan.steps || state.evaluation_due {
        return Ok((!forms_again).then_some(StageOutcome::Drained));
    }
    finish::finish(running, &state)?;
    Ok(Some(StageOutcome::Done))
}

/// The last step in the metrics; 0 if there is none.
fn last_recorded_step(config: &JobConfig) -> u64 {
    let records = read_metrics(&config.folder().join(METRICS)).unwrap_or_default();
    records.last().map_or(0, |record| record.step)
}

/// What a broken link means: the group knows the root cause a moment later.
pub(super) fn link_failure(member: &Member, error: LinkError) -> Fatal {
    match error {
        LinkError::Broken(_) => match member.wait_for_failure(ROOT_CAUSE_TIMEOUT) {
            Some(failure) => GroupError::GroupFailed(Box::new(failure)).into(),
            None => error.into(),
        },
        LinkError::Mismatch(_) | LinkError::Unavailable(_) => error.into(),
    }
}

fn start_record(config: &JobConfig, plan: &Plan, architecture: &dyn Architecture, roster: &Roster) -> StartRecord {
    let specs = architecture.all_parameter_specs();
    StartRecord {
        stages: config.job.spec.stages as usize,
        schedule: plan.schedule.clone(),
        partition: plan.schedule_partition().layers,
        microbatches: config.training.microbatches as usize,
        first_step: plan.trainer_state.step + 1,
        steps: plan.steps,
        parameters: specs.iter().map(|s| s.shape.iter().product::<i64>() as u64).sum(),
        tokens: plan.training_tokens,
        vocab_size: plan.vocab_size,
        expected_bubble: plan.expected_bubble,
        unigram_entropy: plan.unigram_entropy,
        environment_differences: plan.trainer_state.environment_differences.clone(),
        audit_differences: plan.trainer_state.audit_differences.clone(),
        incarnations: roster.incarnations(),
    }
}
