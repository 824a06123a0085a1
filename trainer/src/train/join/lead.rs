//! The choice of the next group's leader, and the leader's work before the others join: it acquires the fence,
//! publishes its address, and plans.

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
use crate::train::join::rendezvous::{LastLeader, PUBLISH_TIMEOUT, RendezvousWatcher, encode_endpoint};
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::{CarryOver, LastGroup};
use crate::train::serve_page;
use crate::train::setup::resume::{acquire_fence, check_folder};

/// A group that this stage leads, with a released plan.
pub(in crate::train) struct LeaderSession {
    /// The coordinator, which must outlive the members.
    pub(in crate::train) coordinator: Coordinator,
    /// The rendezvous of the group.
    pub(in crate::train) at: Rendezvous,
    /// Damaged checkpoints.
    pub(in crate::train) damage: Vec<Damage>,
    /// Messages from planning.
    pub(in crate::train) notes: Vec<String>,
}

/// The right to begin the next group, unless another stage takes the fence first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::train) struct LeadClaim {
    /// The newest fence that this stage has seen; `None` where no other stage may lead.
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

/// Decides whether this stage leads the next group. Rank 0 leads if the job needs all replicas. If a replica may be
/// missing, the leader of the last group also leads the next one, even after its process restarted, unless another
/// stage has succeeded it. Stage 0 of the second replica succeeds the leader if it observes the end of the leader's
/// process. The volume records the last leader; a stage that can't read it does not lead.
///
/// # Errors
/// If a newer attempt has begun, or the volume can't be read.
pub(in crate::train) fn claim_lead(
    context: &StageContext,
    last_group: &mut LastGroup,
    finder: &RendezvousWatcher,
    timeout: Duration,
) -> Result<Option<LeadClaim>, LeaveReason> {
    let rank = context.env.rank;
    let leaderless = last_group.leaderless_group.take();
    if !context.may_lack_replicas() || !rank.is_multiple_of(context.env.mesh.stages) {
        return Ok((rank == 0).then_some(LeadClaim { after: None }));
    }
    // a member of the last group that did not lead it leaves the decision to others: after a suspension, a replacement
    // may have taken its place
    if last_group.epoch.is_some() && last_group.fence.is_none() && leaderless.is_none() {
        return Ok(None);
    }
    let began = Instant::now();
    loop {
        match decide(rank, leaderless, finder, began.elapsed()) {
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

/// The decision of stage `rank`, a stage 0 that succeeds the leader of group `leaderless`, if any, after it has waited
/// for `waited`.
///
/// # Errors
/// If the last leader is not known.
fn decide(
    rank: u32,
    leaderless: Option<u64>,
    finder: &RendezvousWatcher,
    waited: Duration,
) -> Result<LeadDecision, NotFound> {
    let last = finder.last_leader()?;
    let decision = decide_after(rank, leaderless, last);
    if decision != LeadDecision::Wait || waited < PUBLISH_TIMEOUT {
        return Ok(decision);
    }
    // a stage that acquires a fence publishes soon afterwards that it leads, or has ended; in the latter case the
    // previous leader leads
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

/// Begins the next group, as its leader; `None` if another stage 0 has done so meanwhile, where several stages may
/// lead.
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
        // the members of this group, if there are any, look for the newer group when they lose this one
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

/// Plans for all stages while they join, and again if the group has fewer members.
fn plan_for_members(
    context: &StageContext,
    fence: &Fence,
    coordinator: &Coordinator,
) -> Result<PlannedRun, LeaveReason> {
    let mut planned = prepare_and_plan(context, fence.clone(), coordinator)?;
    let members = match coordinator.wait_for_members() {
        Ok(members) => members,
        Err(error) => {
            // either another stage leads, or too few stages have joined
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
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use stagecoach_api::contract::StageEnv;
    use stagecoach_checkpoint::Volume;
    use stagecoach_test_volumes::{FaultyVolume, MemoryVolume, VolumeFault};

    use super::*;

    #[test]
    fn the_last_leader_leads_or_its_successor() {
        let lead_after = |after| LeadDecision::Lead(LeadClaim { after });
        let named = |rank| Some(LastLeader { epoch: 7, rank });
        for (rank, leaderless, last, expected) in [
            (0, None, None, lead_after(None)),
            (2, None, None, LeadDecision::Join),
            (2, None, named(Some(2)), lead_after(Some(7))),
            (0, None, named(Some(2)), LeadDecision::Join),
            (2, Some(7), named(Some(0)), lead_after(Some(7))),
            (2, Some(6), named(Some(0)), LeadDecision::Join),
            (2, Some(6), named(None), LeadDecision::Wait),
            (0, None, named(None), LeadDecision::Wait),
        ] {
            assert_eq!(decide_after(rank, leaderless, last), expected, "stage {rank}, {leaderless:?}, {last:?}");
        }
    }

    /// The successor may end at any call: the restarted process of the leader then leads, or joins.
    #[test]
    fn the_process_that_takes_the_fence_may_end_at_any_call() {
        let env = |rank: u32| {
            let vars = [
                ("WORLD_SIZE", "2"),
                ("STAGECOACH_STAGES", "1"),
                ("STAGECOACH_DATA_PARALLEL", "2"),
                ("STAGECOACH_JOB", "a"),
            ];
            let more = [("STAGECOACH_JOB_UID", "u"), ("STAGECOACH_ATTEMPT", "1"), ("MASTER_ADDR", "a")];
            let own = [("POD_IP", "127.0.0.1"), ("POD_UID", "p"), ("RANK", if rank == 0 { "0" } else { "1" })];
            StageEnv::from_vars(vars.into_iter().chain(more).chain(own)).unwrap()
        };
        let lead = |volume: &dyn Volume, rank, after: Option<u64>| {
            let fence = acquire_fence(volume, &FenceOwner::new("a", "u"), None, after)?;
            let secret = GroupSecret::generate(fence.number()).unwrap();
            let at = Rendezvous::new("10.0.0.7:1".into(), secret);
            fence.publish(volume, &encode_endpoint(&env(rank), &at))?;
            Ok::<u64, LeaveReason>(fence.number())
        };
        let prepared = || {
            let volume = MemoryVolume::new();
            let lost = lead(&volume, 0, None).unwrap();
            (volume, lost)
        };
        let (volume, lost) = prepared();
        let handle = FaultyVolume::counting(Arc::new(volume));
        lead(&handle, 1, Some(lost)).unwrap();
        let calls = handle.trace().len();
        let (mut led, mut joined) = (0, 0);
        for (at, fault) in (0..calls).flat_map(|at| [(at, VolumeFault::CrashBefore), (at, VolumeFault::CrashAfter)]) {
            let (volume, lost) = prepared();
            let handle = FaultyVolume::failing(Arc::new(volume.clone()), at, fault);
            let succeeded = lead(&handle, 1, Some(lost)).is_ok();
            let (first, second) = (env(0), env(1));
            let finder = RendezvousWatcher::new(&volume, &first, None, None);
            match decide(0, None, &finder, PUBLISH_TIMEOUT).unwrap() {
                LeadDecision::Lead(claim) => {
                    assert!(!succeeded, "call {at}: two lead");
                    assert_eq!(
                        claim.after.map(|after| lead(&volume, 0, Some(after)).unwrap()),
                        claim.after.map(|n| n + 1)
                    );
                    led += 1;
                }
                LeadDecision::Join => {
                    // the successor had published that it leads: after a restart, it leads the next group
                    let finder = RendezvousWatcher::new(&volume, &second, None, None);
                    let again = decide(1, None, &finder, Duration::ZERO).unwrap();
                    assert_eq!(again, LeadDecision::Lead(LeadClaim { after: Some(lost + 1) }), "call {at}, {fault:?}");
                    joined += 1;
                }
                LeadDecision::Wait => panic!("call {at}, {fault:?}: nobody leads"),
            }
        }
        assert!(led > 10 && joined > 0, "{led} led, {joined} joined");
    }

    proptest! {
        /// Two restarts of the leader's process, and the stage that succeeds it: for every interleaving of looking and
        /// acquiring the fence, one of them leads, and a stage that looks later joins it.
        #[test]
        fn one_stage_leads(order in prop::collection::vec(0usize..3, 0..12)) {
            let volume = MemoryVolume::new();
            let lost = Fence::acquire(&volume).unwrap().number();
            let claimants = [(0, None), (0, None), (2, Some(lost))];
            let mut last = LastLeader { epoch: lost, rank: Some(0) };
            let (mut decisions, mut led) = ([None; 3], Vec::new());
            for claimant in order.into_iter().chain([0, 1, 2, 0, 1, 2]) {
                let (rank, leaderless) = claimants[claimant];
                match decisions[claimant] {
                    None => decisions[claimant] = Some(decide_after(rank, leaderless, Some(last))),
                    Some(LeadDecision::Lead(claim)) => {
                        decisions[claimant] = Some(LeadDecision::Join);
                        if let Ok(fence) = acquire_fence(&volume, &FenceOwner::new("a", "u"), None, claim.after) {
                            led.push((claimant, fence.number()));
                            last = LastLeader { epoch: fence.number(), rank: Some(rank) };
                        }
                    }
                    Some(LeadDecision::Join | LeadDecision::Wait) => {}
                }
            }
            // the same rank leads again if it restarts once more after it has led
            let again = led.iter().filter(|(claimant, _)| *claimant < 2).count();
            prop_assert!(led.len() == 1 || again == led.len(), "{led:?}");
            prop_assert!(led.iter().enumerate().all(|(nth, (_, epoch))| *epoch == lost + 1 + nth as u64), "{led:?}");
        }
    }
}
