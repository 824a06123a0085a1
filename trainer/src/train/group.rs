//! Runs a stage in one group, from joining the group to leaving it.

use std::sync::Arc;
use std::time::Instant;

use stagecoach_api::contract::{FailureKind, StagePhase};
use stagecoach_engine::StageError;
use stagecoach_engine::execute::StageGpu;
use stagecoach_group::{Coordinator, GroupError, Member, Roster};
use stagecoach_model::Architecture;
use stagecoach_transport::Interrupt;

use crate::train::StageOutcome;
use crate::train::context::{RunningStage, StageContext};
use crate::train::join::{Assignment, JoinedGroup, join_group};
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::{CarryOver, TensorLayout};
use crate::train::recover::on_failure::FailureHandler;
use crate::train::save::finish;
use crate::train::save::memory::MemoryCheckpoints;
use crate::train::setup::GroupSetup;
use crate::train::setup::initial_weights::load_frozen_weights;
use crate::train::setup::resume;
use crate::train::step;
use crate::train::step::audit::Audits;
use crate::train::step::data_loader::DataLoader;

/// The next action of a stage that has left a group.
#[derive(Debug)]
pub(in crate::train) enum AfterGroup {
    /// The stage exits.
    Exit(StageOutcome),
    /// The stage joins the next group. Either all stages left their group in order to form the next one, or the
    /// leader's process ended before the group formed.
    Regroup,
    /// The stage joins the next group if stages may be replaced. Otherwise the stage exits with this error.
    Recover(StageError),
}

/// Runs the stage in the next group, unless a stop was requested.
///
/// # Errors
/// The error that ends this stage.
pub(in crate::train) fn run_group(
    context: &StageContext,
    carry_over: &mut CarryOver,
) -> Result<AfterGroup, StageError> {
    match join_and_train(context, carry_over) {
        Ok(Some(outcome)) => Ok(AfterGroup::Exit(outcome)),
        Ok(None) => Ok(AfterGroup::Regroup),
        Err(LeaveReason::NotNeeded) => Ok(AfterGroup::Exit(StageOutcome::Done)),
        Err(LeaveReason::GroupLost(error)) => Ok(AfterGroup::Recover(error)),
        Err(LeaveReason::Failed(error)) => Err(error),
    }
}

/// Runs the stage in one group. Returns `None` in the cases of [`AfterGroup::Regroup`].
fn join_and_train(context: &StageContext, carry_over: &mut CarryOver) -> Result<Option<StageOutcome>, LeaveReason> {
    let monitor = context.monitor;
    monitor.set_forming();
    if monitor.stop_requested_at().is_some() {
        // A group that ended to form again has saved its state. The other stages may have exited already, and a new
        // group would wait for them.
        return Ok(Some(StageOutcome::Drained));
    }
    let interrupt = Interrupt::default();
    // the drop of `_in_group` at the end of this function tells the handler that the stage has left the group
    let (handler, _in_group) = FailureHandler::new(context, interrupt.clone());
    let handler = Arc::new(handler);
    let on_failure = {
        let handler = Arc::clone(&handler);
        move |failure| handler.handle(failure)
    };
    let joined = join_group(context, carry_over, on_failure).map_err(LeaveReason::before_release)?;
    let Some(JoinedGroup { member, coordinator, assignment, notes }) = joined else { return Ok(None) };
    let roster = assignment.roster.clone();
    handler.set_roster(&roster);
    monitor.notes(notes);
    let group_rank = roster.group_rank(context.env.rank as usize).unwrap_or_default();
    let config = &context.config.with_replicas_of(roster.members.len());
    let in_group = StageContext { group_rank, config, ..*context };
    let mut outcome = load_and_train(&in_group, &member, assignment, carry_over, &interrupt);
    handler.leave();
    let left = match &outcome {
        Ok(Some(outcome)) => member.leave(outcome.kind().exit_code().code()),
        Ok(None) => member.leave_for_next_group(),
        Err(reason) => match reason.kind() {
            FailureKind::WrongResult | FailureKind::Drained => member.leave_and_end_group(),
            kind => member.leave(kind.exit_code().code()),
        },
    };
    // if the group fails while all stages leave it, the failure is only in `left`
    let failure = match (handler.failure(), &left) {
        (None, Err(GroupError::GroupFailed(failure))) => Some(&**failure),
        (failure, _) => failure,
    };
    let lost = failure.and_then(|failure| failure.root_cause_rank);
    let last_group = &mut carry_over.last_group;
    last_group.lost_ranks = Some(lost_ranks(context, &roster, lost, coordinator.as_ref()));
    // the first stage of the second replica leads the next group if the leader's process has ended
    let deputy = roster.members.get(context.env.mesh.stages as usize).filter(|_| context.may_lack_replicas());
    last_group.leads_after =
        deputy.filter(|deputy| deputy.rank == context.env.rank as usize).map(|_| roster.leader() as u32);
    let has_leader_ended = failure.is_some_and(|failure| failure.has_ended && lost == Some(roster.leader()));
    last_group.group_to_succeed = last_group.epoch.filter(|_| last_group.leads_after.is_some() && has_leader_ended);
    if outcome.is_ok() {
        outcome = left.map_err(LeaveReason::from).and(outcome);
    }
    outcome
}

/// Returns the ranks for which the next group need not wait: the lost rank, and the ranks that were absent from the
/// last group and are not waiting to join the next one.
fn lost_ranks(
    context: &StageContext,
    roster: &Roster,
    lost: Option<usize>,
    coordinator: Option<&Coordinator>,
) -> Vec<usize> {
    let waiting = coordinator.map(Coordinator::waiting_ranks).unwrap_or_default();
    let is_away = |rank: &usize| roster.group_rank(*rank).is_none() && !waiting.contains(rank);
    (0..context.env.mesh.ranks() as usize).filter(is_away).chain(lost).collect()
}

/// Runs the stage from the plan to the end of training. The caller reports every failure to the group.
fn load_and_train(
    context: &StageContext,
    member: &Member,
    assignment: Assignment,
    carry_over: &mut CarryOver,
    interrupt: &Interrupt,
) -> Result<Option<StageOutcome>, LeaveReason> {
    let StageContext { config, device, monitor, .. } = *context;
    let Assignment { roster, mut plan, verified, listener, damage } = assignment;
    let architecture = &*config.architecture(plan.vocab_size, device);
    let setup = GroupSetup { context, member, roster: &roster, verified: &verified, architecture };
    monitor.telemetry().group_joined(plan.fence.number(), &roster.ranks(), roster.incarnations());
    monitor.telemetry().set_phase(StagePhase::Forming);
    monitor.set_activity("building the stage");
    monitor.set_planned_bytes(plan.stage_bytes.get(setup.stage_index()).copied());
    carry_over.tensors.set_layout(TensorLayout::of(config, &plan, &verified));
    let step_on_volume = plan.trainer_state.step;
    let held = setup.agree_on_memory_checkpoint(&mut plan, &carry_over.tensors.copies)?;
    let is_in_memory = held.as_ref().is_some_and(|held| held.state().is_some());
    let stage_config = setup.stage_config(&plan);
    let (mut stage, dump) = setup.build_stage(&stage_config, &plan, carry_over)?;
    monitor.set_activity("opening links");
    let mut links = setup.open_links(listener, interrupt)?;
    stage.gpu = links.gpu.map(StageGpu::new).transpose()?;
    setup.report_missing_transports(&links, carry_over)?;
    let mut audits = setup.begin_audits(&stage_config, &mut links);
    monitor.set_activity("loading");
    let started = Instant::now();
    let mut memory = setup.begin_memory_checkpoints(held, &mut links, &mut carry_over.tensors.copies, &mut stage)?;
    let notes = match is_in_memory {
        true => resume::finish_in_memory(context, &plan, started, &damage)?,
        false => {
            let snapshot = carry_over.tensors.snapshot.as_ref();
            resume::load_weights(context, member, &mut plan, architecture, &mut stage, damage, snapshot)?
        }
    };
    monitor.notes(notes);
    load_frozen_weights(context, member, &mut plan, architecture, &mut stage)?;
    setup.gather_loaded_weights(&plan, &mut stage, &mut links)?;
    let environments = setup.compare_environments(&mut plan, audits.as_mut())?;
    let data_loader = DataLoader::open(context, &plan, stage.index, &verified.training.placement)?;
    member.form()?;
    monitor.set_formed();
    stage.gpu.as_mut().map_or(Ok(()), StageGpu::start_clock)?;
    setup.report_start(&plan);
    let mut running = RunningStage {
        context: *context,
        plan: &plan,
        // if the newest checkpoint was damaged, the stages have loaded an older one
        saved_step: if is_in_memory { step_on_volume } else { plan.trainer_state.step },
        verified: &verified,
        member,
        environments: &environments,
        stage,
        dump,
        links,
        data_loader,
        snapshot: carry_over.tensors.snapshot.take(),
    };
    let trained = train_and_finish(&mut running, architecture, memory.as_mut(), audits);
    if let (Some(memory), Err(_)) = (&mut memory, &trained) {
        // the links receive no more data, but a copy of another stage's state that has arrived completely is kept
        interrupt.trigger();
        let _ = memory.wait();
    }
    (carry_over.tensors.stage, carry_over.tensors.snapshot) = (Some(running.stage), running.snapshot);
    trained
}

fn train_and_finish<'g>(
    running: &mut RunningStage<'g>,
    architecture: &dyn Architecture,
    memory: Option<&mut MemoryCheckpoints<'g>>,
    audits: Option<Audits<'g>>,
) -> Result<Option<StageOutcome>, LeaveReason> {
    let (state, regroups) = step::train(running, architecture, memory, audits)?;
    if !running.has_trained(&state) || state.evaluation_due {
        return Ok((!regroups).then_some(StageOutcome::Drained));
    }
    finish::finish(running, &state)?;
    Ok(Some(StageOutcome::Done))
}
