//! Joins the group. The leader prepares and plans, the other stages wait for the plan, and every stage verifies the
//! plan.

mod initial_model;
pub(in crate::train) mod lead;
mod notes;
pub(in crate::train) mod prepare;
pub(in crate::train) mod rendezvous;
pub(in crate::train) mod stale_fences;
pub(in crate::train) mod start_check;
pub(in crate::train) mod wait_as_spare;

use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::Damage;
use stagecoach_engine::StageError;
use stagecoach_group::{Coordinator, GroupError, GroupFailure, GroupTimeouts, Hello, Member, Roster};
use stagecoach_os::hostname;
use stagecoach_planner::{JobConfig, Plan, VerifiedPlan};

use crate::train::context::StageContext;
use crate::train::join::lead::{LeaderSession, claim_lead, lead};
use crate::train::join::rendezvous::RendezvousWatcher;
use crate::train::leave::LeaveReason;
use crate::train::recover::carry_over::{CarryOver, LastGroup};

/// A stage in a group, with its plan.
pub(in crate::train) struct JoinedGroup {
    pub(in crate::train) member: Member,
    /// The leader's coordinator, which must outlive the members.
    pub(in crate::train) coordinator: Option<Coordinator>,
    pub(in crate::train) assignment: Assignment,
    /// The messages from planning.
    pub(in crate::train) notes: Vec<String>,
}

/// The plan, the roster (the members of the group), and the resources with which the stage carries out the plan.
pub(in crate::train) struct Assignment {
    pub(in crate::train) roster: Roster,
    pub(in crate::train) plan: Plan,
    pub(in crate::train) verified: VerifiedPlan,
    /// The listener to which other stages connect their links.
    pub(in crate::train) listener: TcpListener,
    /// The damaged checkpoints that planning found; empty except on the leader.
    pub(in crate::train) damage: Vec<Damage>,
}

/// Returns the group's timeouts, from the job.
pub(in crate::train) fn group_timeouts(config: &JobConfig) -> GroupTimeouts {
    let restart = &config.job.spec.restart;
    GroupTimeouts {
        startup_timeout: Duration::from_secs(restart.startup_timeout_seconds.into()),
        heartbeat_timeout: Duration::from_secs(restart.heartbeat_timeout_seconds.into()),
        stall_timeout: Duration::from_secs(restart.stall_timeout_seconds.into()),
        ..GroupTimeouts::default()
    }
}

/// Joins the next group, or begins it if this stage leads it. Returns `None` if the leader's process has ended and this
/// stage leads the following group. The member calls `on_failure` once if the group fails later.
///
/// # Errors
/// If no leader releases a plan in time, or the group refuses this stage.
pub(in crate::train) fn join_group(
    context: &StageContext,
    carry_over: &mut CarryOver,
    on_failure: impl Fn(GroupFailure) + Send + Sync + 'static,
) -> Result<Option<JoinedGroup>, LeaveReason> {
    let StageContext { env, config, device, volume, monitor, .. } = *context;
    let (listener, data_address) = listen(&env.pod_ip)?;
    let LastGroup { epoch, lost_ranks, leads_after, .. } = &carry_over.last_group;
    let hello = Hello { lost_ranks: lost_ranks.clone(), ..hello(env, config, device, data_address) };
    let mut timeouts = group_timeouts(config);
    if let (Some(_), Some(timeout)) = (epoch, context.reform_timeout()) {
        timeouts.startup_timeout = timeout;
    }
    let mut finder = RendezvousWatcher::new(volume, env, *epoch, *leads_after);
    let led = match claim_lead(context, &mut carry_over.last_group, &mut finder, timeouts.startup_timeout)? {
        Some(claim) => lead(context, carry_over, claim, &hello, timeouts)?,
        None => None,
    };
    let (coordinator, own, damage, notes) = match led {
        Some(LeaderSession { coordinator, at, damage, notes }) => (Some(coordinator), Some(at), damage, notes),
        None => {
            carry_over.last_group.fence = None;
            (None, None, Vec::new(), Vec::new())
        }
    };
    monitor.set_activity("joining the group");
    // the leader uses its own address without a search, even if a newer group has begun
    let find = || own.clone().map_or_else(|| finder.find(), Ok);
    let mut last = String::new();
    let on_preparing = |what: &str| {
        if last != what {
            tracing::info!("the leader: {what}");
            what.clone_into(&mut last);
        }
    };
    let (member, roster, bytes) = match Member::join(find, hello, env.mesh, timeouts, on_preparing, on_failure) {
        Err(error @ GroupError::LeaderEnded { group, is_member, .. }) => {
            tracing::warn!("{error}");
            let last_group = &mut carry_over.last_group;
            (last_group.epoch, last_group.group_to_succeed) = (Some(group), Some(group));
            // if this stage is not a member of the group, the join messages (hellos) of the members report the lost
            // ranks
            last_group.lost_ranks = last_group.lost_ranks.take().filter(|_| is_member);
            if let (Some(lost), Some(leader)) = (&mut last_group.lost_ranks, last_group.leads_after) {
                lost.push(leader as usize);
            }
            return Ok(None);
        }
        joined => joined?,
    };
    monitor.attach_activity(member.activity());
    let rank = roster.group_rank(env.rank as usize).unwrap_or(env.rank as usize);
    let (plan, verified) = Plan::from_bytes(&bytes, rank)?;
    carry_over.last_group.epoch = Some(plan.fence.number());
    tracing::info!(hash = %blake3::hash(&bytes), "plan");
    let assignment = Assignment { roster, plan, verified, listener, damage };
    Ok(Some(JoinedGroup { member, coordinator, assignment, notes }))
}

/// Opens a listener on a free port of `host`, and returns it with its address.
pub(in crate::train) fn listen(host: &str) -> Result<(TcpListener, String), StageError> {
    let with_address = |listener: TcpListener| listener.local_addr().map(|address| (listener, address.to_string()));
    TcpListener::bind((host, 0))
        .and_then(with_address)
        .map_err(|e| StageError::new(FailureKind::Error, format!("could not listen at POD_IP={host}: {e}")))
}

pub(in crate::train) fn hello(env: &StageEnv, config: &JobConfig, device: tch::Device, data_address: String) -> Hello {
    let mut agreement = config.agreement();
    // with the device Auto, each stage uses the device that it finds, and all stages must find the same kind of device
    agreement.insert("device".into(), if device.is_cuda() { "Cuda" } else { "Cpu" }.into());
    Hello {
        job_uid: env.job_uid.clone(),
        attempt: env.attempt,
        rank: env.rank as usize,
        world_size: env.mesh.ranks() as usize,
        lost_ranks: None,
        incarnation: env.incarnation,
        pod_uid: env.pod_uid.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config: agreement,
        data_address,
        host: hostname(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_stage_that_finds_another_device_is_refused() {
        let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &[]).unwrap();
        let config = JobConfig::new(job, Path::new("/tmp")).unwrap();
        let vars = [("RANK", "0"), ("WORLD_SIZE", "3"), ("STAGECOACH_JOB", "a"), ("STAGECOACH_JOB_UID", "u")];
        let more = [("STAGECOACH_ATTEMPT", "1"), ("MASTER_ADDR", "a"), ("POD_IP", "127.0.0.1"), ("POD_UID", "p")];
        let env = StageEnv::from_vars(vars.into_iter().chain(more)).unwrap();
        let [cpu, gpu] =
            [tch::Device::Cpu, tch::Device::Cuda(1)].map(|device| hello(&env, &config, device, "a".into()));
        let differing: Vec<&String> =
            cpu.config.keys().filter(|field| cpu.config[*field] != gpu.config[*field]).collect();
        // `Refusal::ConfigMismatch` names the fields that differ
        assert_eq!(differing, ["device"]);
        assert_eq!(cpu.config, hello(&env, &config, tch::Device::Cpu, "b".into()).config);
    }
}
