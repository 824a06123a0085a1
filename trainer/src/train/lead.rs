//! Who leads the next group, and what its leader does before the others join: it takes the fence, says where it is, and plans.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stagecoach_api::contract::FailureKind;
use stagecoach_checkpoint::{Damage, Fence};
use stagecoach_display::Replicas;
use stagecoach_group::{
    Coordinator, GroupError, GroupSecret, GroupTimeouts, Hello, NotFound, PROTOCOL_VERSION, Quorum, RETRY_DELAY,
    Rendezvous,
};

use super::context::StageContext;
use super::join::listen;
use super::kept::Kept;
use super::prepare::{PlannedRun, decision_rules, prepare_and_plan};
use super::rendezvous::{Finder, LastLeader, published_name};
use super::resume::acquire_fence;
use super::serve_page;
use crate::fatal::Fatal;

/// How long to wait for who has taken a fence to say that it leads.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// A group that this stage leads, and whose plan is released.
pub(super) struct LedGroup {
    /// Must outlive its members.
    pub(super) coordinator: Coordinator,
    /// Where it is.
    pub(super) at: Rendezvous,
    /// Damaged checkpoints.
    pub(super) damage: Vec<Damage>,
    /// Messages from planning.
    pub(super) notes: Vec<String>,
}

/// Whether this stage leads the next group: the first stage 0 does. Where a replica may be missing, who led the last group leads the
/// next one too, or the same process started anew, unless another has succeeded it: the stage 0 of the second replica does, if it sees
/// the leader's process end. The volume says who led last; nobody leads who could not look.
///
/// # Errors
/// If a newer attempt has begun, or the volume can't be read.
pub(super) fn leads(
    context: &StageContext,
    kept: &mut Kept,
    finder: &Finder,
    timeout: Duration,
) -> Result<bool, Fatal> {
    let rank = context.env.rank;
    let succeeds_leader = std::mem::take(&mut kept.succeeds_leader);
    if !context.may_lack_replicas() || !rank.is_multiple_of(context.env.mesh.stages) {
        return Ok(rank == 0);
    }
    // who was in the last group and did not lead it leaves that to others: one that was suspended may have been replaced
    if kept.epoch.is_some() && kept.fence.is_none() && !succeeds_leader {
        return Ok(false);
    }
    let began = Instant::now();
    loop {
        match finder.last_leader() {
            Ok(Some(LastLeader { epoch, .. })) if succeeds_leader && kept.epoch == Some(epoch) => return Ok(true),
            Ok(Some(LastLeader { rank: Some(leader), .. })) => return Ok(leader == rank),
            Ok(None) => return Ok(rank == 0),
            // who takes a fence says soon that it leads, or has ended: then who led before it leads
            Ok(Some(_)) if began.elapsed() >= PUBLISH_TIMEOUT => {
                return Ok(finder.leader_before().map_or(rank == 0, |leader| leader == rank));
            }
            Ok(Some(_)) => {}
            Err(NotFound::Superseded(newer)) => {
                return Err(GroupError::Superseded { rank: rank as usize, newer }.into());
            }
            Err(NotFound::Yet(reason)) if began.elapsed() >= timeout => {
                return Err(Fatal::new(
                    FailureKind::Storage,
                    format!("could not find out who leads the group: {reason}"),
                ));
            }
            Err(NotFound::Yet(_)) => {}
        }
        std::thread::sleep(RETRY_DELAY);
    }
}

/// Begins the next group, as its leader; none if another stage 0 has done so meanwhile, where any may lead.
///
/// # Errors
/// If it can't be planned, or too few join in time.
pub(super) fn lead(
    context: &StageContext,
    kept: &mut Kept,
    hello: &Hello,
    timeouts: GroupTimeouts,
) -> Result<Option<LedGroup>, Fatal> {
    match begin(context, kept, hello, timeouts) {
        // its members, if it has any, look for the newer group when they lose this one
        Err(fatal) if fatal.is_group_lost && context.may_lack_replicas() => {
            tracing::warn!("{}: another stage leads", fatal.message);
            Ok(None)
        }
        begun => begun.map(Some),
    }
}

fn begin(context: &StageContext, kept: &mut Kept, hello: &Hello, timeouts: GroupTimeouts) -> Result<LedGroup, Fatal> {
    let StageContext { env, config, volume, monitor, .. } = *context;
    if !std::mem::replace(&mut kept.serves_page, true) {
        serve_page(context)?;
    }
    let (control, address) = listen(&env.pod_ip)?;
    let fence = acquire_fence(volume, kept.fence.as_ref())?;
    kept.fence = Some(fence.clone());
    let secret = GroupSecret::generate(fence.number())
        .map_err(|e| Fatal::new(FailureKind::Error, format!("no random numbers for the group's key: {e}")))?;
    let telemetry = monitor.telemetry().clone();
    let on_rejected = move || telemetry.count_rejected_connection();
    let quorum = quorum(context, &kept.lost_ranks);
    let coordinator = Coordinator::start(control, hello.clone(), timeouts, secret.clone(), quorum, on_rejected)?;
    let at = Rendezvous { address, protocol_version: PROTOCOL_VERSION, secret };
    fence.publish(volume, &published_name(env, &at))?;
    monitor.telemetry().set_leader(fence.number());
    let planned = plan_for_members(context, &fence, &coordinator);
    match planned.and_then(|planned| Ok((planned.plan.to_bytes()?, planned))) {
        Ok((bytes, PlannedRun { damage, notes, .. })) => {
            coordinator.release(bytes, decision_rules(config));
            Ok(LedGroup { coordinator, at, damage, notes })
        }
        Err(fatal) => {
            if !(fatal.is_group_lost && context.may_lack_replicas()) {
                coordinator.reject(&fatal.message);
            }
            Err(fatal)
        }
    }
}

/// With how few replicas the next group may train: all, unless the job says less.
fn quorum(context: &StageContext, lost: &BTreeSet<usize>) -> Quorum {
    let StageContext { env, config, .. } = *context;
    let lost = if context.may_lack_replicas() { lost.clone() } else { BTreeSet::new() };
    Quorum { stages: env.mesh.stages as usize, min_replicas: config.job.spec.min_data_parallel() as usize, lost }
}

/// Plans for all stages while they join, and again if the group has fewer.
fn plan_for_members(context: &StageContext, fence: &Fence, coordinator: &Coordinator) -> Result<PlannedRun, Fatal> {
    let mut planned = prepare_and_plan(context, fence.clone(), coordinator)?;
    let members = coordinator.wait_for_members()?;
    if members.len() < context.env.mesh.ranks() as usize {
        let (env, config) = (context.env.in_group(0, members.len()), context.config);
        let config = &config.with_data_parallel(env.mesh.data_parallel);
        planned = prepare_and_plan(&StageContext { env: &env, config, ..*context }, fence.clone(), coordinator)?;
        planned.notes.extend(Replicas::of(context.env.mesh, env.mesh.data_parallel).and_then(Replicas::missing));
    }
    Ok(planned)
}
