//! Joins the group: its leader prepares and plans, the other stages wait for the plan, and every stage verifies it.

use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::Damage;
use stagecoach_group::{Coordinator, GroupError, GroupFailure, GroupTimeouts, Hello, Member, Roster};

use super::carry_over::CarryOver;
use super::context::StageContext;
use super::lead::{LeaderSession, claim_lead, lead};
use super::rendezvous::RendezvousWatcher;
use crate::plan::{JobConfig, Plan, VerifiedPlan};
use crate::stage_error::StageError;
use stagecoach_os::hostname;

/// A stage in a group, with its plan.
pub(super) struct JoinedGroup {
    pub(super) member: Member,
    /// The leader's coordinator, which must outlive the members.
    pub(super) coordinator: Option<Coordinator>,
    pub(super) assignment: Assignment,
    /// Messages from planning.
    pub(super) notes: Vec<String>,
}

/// The plan, the roster, and the resources that the stage needs to follow them.
pub(super) struct Assignment {
    pub(super) roster: Roster,
    pub(super) plan: Plan,
    pub(super) verified: VerifiedPlan,
    /// The listener for the links of other stages.
    pub(super) listener: TcpListener,
    /// Damaged checkpoints; only on the leader.
    pub(super) damage: Vec<Damage>,
}

/// The group's timeouts, from the job.
pub(super) fn group_timeouts(config: &JobConfig) -> GroupTimeouts {
    let restart = &config.job.spec.restart;
    GroupTimeouts {
        startup_timeout: Duration::from_secs(restart.startup_timeout_seconds.into()),
        heartbeat_timeout: Duration::from_secs(restart.heartbeat_timeout_seconds.into()),
        stall_timeout: Duration::from_secs(restart.stall_timeout_seconds.into()),
        ..GroupTimeouts::default()
    }
}

/// Joins the next group, which its leader begins. `None` if that leader's process has ended and this stage leads the
/// following group. `on_failure` is called once if the group fails later.
///
/// # Errors
/// If no group is released in time, or the group refuses this stage.
pub(super) fn join_group(
    context: &StageContext,
    kept: &mut CarryOver,
    on_failure: impl Fn(GroupFailure) + Send + Sync + 'static,
) -> Result<Option<JoinedGroup>, StageError> {
    let StageContext { env, config, device, volume, monitor, .. } = *context;
    let (listener, data_address) = listen(&env.pod_ip)?;
    let hello = Hello { lost_ranks: kept.lost_ranks.clone(), ..hello(env, config, device, data_address) };
    let mut timeouts = group_timeouts(config);
    if let (Some(_), Some(timeout)) = (kept.epoch, context.reform_timeout()) {
        timeouts.startup_timeout = timeout;
    }
    let mut finder = RendezvousWatcher::new(volume, env, kept.epoch, kept.leads_after);
    let led = match claim_lead(context, kept, &finder, timeouts.startup_timeout)? {
        Some(turn) => lead(context, kept, turn, &hello, timeouts)?,
        None => None,
    };
    let (coordinator, own, damage, notes) = match led {
        Some(LeaderSession { coordinator, at, damage, notes }) => (Some(coordinator), Some(at), damage, notes),
        None => {
            kept.fence = None;
            (None, None, Vec::new(), Vec::new())
        }
    };
    monitor.set_activity("joining the group");
    // the leader knows its own address, even if a newer group has begun
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
            (kept.epoch, kept.leaderless_group) = (Some(group), Some(group));
            // for a group without this stage, the hellos of the others show the lost ranks
            kept.lost_ranks = kept.lost_ranks.take().filter(|_| is_member);
            if let (Some(lost), Some(leader)) = (&mut kept.lost_ranks, kept.leads_after) {
                lost.push(leader as usize);
            }
            return Ok(None);
        }
        joined => joined?,
    };
    monitor.attach_activity(member.activity());
    let rank = roster.group_rank(env.rank as usize).unwrap_or(env.rank as usize);
    let (plan, verified) = Plan::from_bytes(&bytes, rank)?;
    kept.epoch = Some(plan.fence.number());
    tracing::info!(hash = %blake3::hash(&bytes), "plan");
    let assignment = Assignment { roster, plan, verified, listener, damage };
    Ok(Some(JoinedGroup { member, coordinator, assignment, notes }))
}

/// A listener on a free port of `host`, and its address.
pub(super) fn listen(host: &str) -> Result<(TcpListener, String), StageError> {
    let with_address = |listener: TcpListener| listener.local_addr().map(|address| (listener, address.to_string()));
    TcpListener::bind((host, 0))
        .and_then(with_address)
        .map_err(|e| StageError::new(FailureKind::Error, format!("could not listen at POD_IP={host}: {e}")))
}

pub(super) fn hello(env: &StageEnv, config: &JobConfig, device: tch::Device, data_address: String) -> Hello {
    let mut agreement = config.agreement();
    // with the device Auto each stage takes the device that it finds, and all must find the same
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
        let sample = include_str!("../../../manifests/samples/shakespeare.yaml");
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
