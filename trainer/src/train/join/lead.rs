//! The choice of the next group's leader, and the leader's work before the other stages join: the leader acquires the
//! fence (the right to commit the job's checkpoints), publishes its address, and plans.

use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{Damage, Fence, FenceOwner};
use stagecoach_display::Replicas;
use stagecoach_engine::StageError;
use stagecoach_group::{
    Coordinator, GroupError, GroupSecret, GroupTimeouts, Hello, NotFound, Quorum, RETRY_DELAY, Rendezvous,
};

use crate::train::context::StageContext;
use crate::train::join::listen;
use crate::train::join::prepare::{PlannedRun, decision_rules, prepare_and_plan};
use crate::train::join::rendezvous::{LastLeader, RendezvousWatcher, encode_endpoint};
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::{CarryOver, LastGroup};
use crate::train::serve_page;
use crate::train::setup::resume::{acquire_fence, check_folder};

/// A group that this stage leads, after the stage has released the plan to the members.
pub(in crate::train) struct LeaderSession {
    /// The coordinator, which must outlive the members.
    pub(in crate::train) coordinator: Coordinator,
    /// The address and the key with which members join the group.
    pub(in crate::train) at: Rendezvous,
    /// The damaged checkpoints that planning found.
    pub(in crate::train) damage: Vec<Damage>,
    /// The messages from planning.
    pub(in crate::train) notes: Vec<String>,
}

/// The right to begin the next group, unless another stage acquires the fence first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct LeadClaim {
    /// The number of the newest fence that this stage has seen; `None` if there was none, or if no other stage may
    /// lead.
    after: Option<u64>,
}

/// A stage's decision about the next group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeadDecision {
    Lead(LeadClaim),
    Join,
    /// A stage has acquired the fence, and has not published its rank yet.
    Wait,
}

/// Decides whether this stage leads the next group. Returns `None` if it does not.
///
/// If the job needs all replicas, rank 0 leads. If a replica may be missing, the leader of the last group also leads
/// the next one, even after a restart of the leader's process, unless another stage has become the leader since. Stage
/// 0 of the second replica becomes the leader if it observes that the leader's process has ended. The volume records
/// the last leader. A stage that can't read this record retries until `timeout`.
///
/// # Errors
/// If a newer attempt has begun, or the record of the last leader can't be read in time.
pub(in crate::train) fn claim_lead(
    context: &StageContext,
    last_group: &mut LastGroup,
    finder: &mut RendezvousWatcher,
    timeout: Duration,
) -> Result<Option<LeadClaim>, LeaveReason> {
    let rank = context.env.rank;
    let leaderless = last_group.group_to_succeed.take();
    if !context.may_lack_replicas() || !rank.is_multiple_of(context.env.mesh.stages) {
        return Ok((rank == 0).then_some(LeadClaim { after: None }));
    }
    // A stage that was a member of the last group, but not its leader, does not claim the lead: if its process was
    // suspended, a replacement may have taken its rank.
    if last_group.epoch.is_some() && last_group.fence.is_none() && leaderless.is_none() {
        return Ok(None);
    }
    let began = Instant::now();
    loop {
        match decide(rank, leaderless, finder, Instant::now()) {
            Ok(LeadDecision::Lead(claim)) => return Ok(Some(claim)),
            Ok(LeadDecision::Join) => return Ok(None),
            Ok(LeadDecision::Wait) => {}
            Err(NotFound::Superseded(newer)) => {
                return Err(GroupError::Superseded { name: context.env.mesh.name(rank), newer }.into());
            }
            Err(NotFound::NotReady(reason)) if began.elapsed() >= timeout => {
                return Err(StageError::new(
                    FailureKind::Storage,
                    format!("could not find out who leads the group: {reason}"),
                )
                .into());
            }
            Err(NotFound::NotReady(_) | NotFound::Leaderless(_)) => {}
        }
        std::thread::sleep(RETRY_DELAY);
    }
}

/// Returns the decision of stage `rank`, which is stage 0 of a replica. `leaderless` is the group whose leader this
/// stage must replace, because the leader's process has ended.
///
/// # Errors
/// If the last leader is not known.
fn decide(
    rank: u32,
    leaderless: Option<u64>,
    finder: &mut RendezvousWatcher,
    now: Instant,
) -> Result<LeadDecision, NotFound> {
    let last = finder.last_leader()?;
    let decision = decide_after(rank, leaderless, last);
    if decision != LeadDecision::Wait || last.is_none_or(|last| !finder.is_publication_late(last.epoch, now)) {
        return Ok(decision);
    }
    // A stage that acquires a fence publishes soon afterwards that it leads. A stage that has not published in time has
    // ended, and the leader before that stage leads.
    let before = finder.leader_before().unwrap_or(0);
    let claim = LeadClaim { after: last.map(|last| last.epoch) };
    Ok(if before == rank { LeadDecision::Lead(claim) } else { LeadDecision::Join })
}

fn decide_after(rank: u32, leaderless: Option<u64>, last: Option<LastLeader>) -> LeadDecision {
    let lead_after = |after| LeadDecision::Lead(LeadClaim { after });
    match last {
        None if rank == 0 => lead_after(None),
        Some(LastLeader { epoch, .. }) if leaderless == Some(epoch) => lead_after(Some(epoch)),
        Some(LastLeader { epoch, rank: Some(leader) }) if leader == rank => lead_after(Some(epoch)),
        Some(LastLeader { rank: None, .. }) => LeadDecision::Wait,
        None | Some(_) => LeadDecision::Join,
    }
}

/// Begins the next group as its leader. If several stages may lead, returns `None` when another stage has begun the
/// group.
///
/// # Errors
/// If the group can't be planned, or too few stages join in time.
pub(in crate::train) fn lead(
    context: &StageContext,
    carry_over: &mut CarryOver,
    claim: LeadClaim,
    hello: &Hello,
    timeouts: GroupTimeouts,
) -> Result<Option<LeaderSession>, LeaveReason> {
    match begin(context, carry_over, claim, hello, timeouts) {
        // the members of this group, if there are any, lose the group and search for the newer group
        Err(LeaveReason::GroupLost(error)) if context.may_lack_replicas() => {
            tracing::warn!("{error}: another stage leads");
            Ok(None)
        }
        begun => begun.map(Some),
    }
}

fn begin(
    context: &StageContext,
    carry_over: &mut CarryOver,
    claim: LeadClaim,
    hello: &Hello,
    timeouts: GroupTimeouts,
) -> Result<LeaderSession, LeaveReason> {
    let StageContext { env, config, volume, monitor, .. } = *context;
    if !std::mem::replace(&mut carry_over.serves_page, true) {
        serve_page(context)?;
    }
    let (control, address) = listen(&env.pod_ip)?;
    let owner = FenceOwner::new(&env.job, &env.job_uid);
    let seen = if carry_over.last_group.fence.is_none() { Some(check_folder(context, &owner)?) } else { None };
    let fence = acquire_fence(volume, &owner, carry_over.last_group.fence.as_ref(), claim.after.or(seen))?;
    carry_over.last_group.fence = Some(fence.clone());
    let secret = GroupSecret::generate(fence.number())
        .map_err(|e| StageError::new(FailureKind::Error, format!("no random numbers for the group's key: {e}")))?;
    let telemetry = monitor.telemetry().clone();
    let on_rejected = move || telemetry.count_rejected_connection();
    let spec = &config.job.spec;
    let window = spec.elastic.as_ref().map(|elastic| Duration::from_secs(elastic.stabilization_window_seconds.into()));
    let quorum = Quorum::new(env.mesh, spec.min_data_parallel() as usize)
        .awaiting_lost(!context.may_lack_replicas())
        .stabilized_for(window);
    let coordinator = Coordinator::start(control, hello.clone(), timeouts, secret.clone(), quorum, on_rejected)?;
    let at = Rendezvous::new(address, secret);
    fence.publish(volume, &encode_endpoint(env, &at))?;
    monitor.telemetry().set_leader(fence.number());
    let planned = plan_for_members(context, &fence, &coordinator);
    match planned.and_then(|planned| Ok((planned.plan.to_bytes()?, planned))) {
        Ok((bytes, PlannedRun { damage, notes, .. })) => {
            coordinator.release(bytes, decision_rules(config));
            Ok(LeaderSession { coordinator, at, damage, notes })
        }
        Err(reason) => {
            match &reason {
                LeaveReason::GroupLost(_) if context.may_lack_replicas() => {}
                LeaveReason::GroupLost(error) | LeaveReason::Failed(error) => coordinator.reject(&error.message),
                LeaveReason::NotNeeded => {}
            }
            Err(reason)
        }
    }
}

/// Plans for all stages of the job while they join. Plans again if only some of them have joined.
fn plan_for_members(
    context: &StageContext,
    fence: &Fence,
    coordinator: &Coordinator,
) -> Result<PlannedRun, LeaveReason> {
    let mut planned = prepare_and_plan(context, fence.clone(), coordinator)?;
    let members = match coordinator.wait_for_members() {
        Ok(members) => members,
        Err(error) => {
            // this check fails if another stage leads; otherwise, too few stages have joined
            fence.check(context.volume)?;
            return Err(LeaveReason::from(error).before_release());
        }
    };
    if members.len() < context.env.mesh.ranks() as usize {
        let config = &context.config.with_replicas_of(members.len());
        planned = prepare_and_plan(&StageContext { config, ..*context }, fence.clone(), coordinator)?;
        let replicas = Replicas::of(context.env.mesh, config.job.spec.data_parallel);
        planned.notes.extend(replicas.and_then(Replicas::missing));
    }
    Ok(planned)
}

#[cfg(test)]
mod tests;
