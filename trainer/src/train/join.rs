//! Joining the group: its leader prepares and plans, the others wait for its plan, every stage verifies it.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::{Damage, Fence};
use stagecoach_display::Replicas;
use stagecoach_group::{
    Coordinator, GroupError, GroupFailure, GroupSecret, GroupTimeouts, Hello, Member, NotFound, PROTOCOL_VERSION,
    Quorum, RETRY_DELAY, Rendezvous, Roster,
};

use super::context::StageContext;
use super::kept::Kept;
use super::prepare::{PlannedRun, decision_rules, prepare_and_plan};
use super::rendezvous::{Finder, LastLeader, published_name};
use super::resume::acquire_fence;
use super::serve_page;
use crate::fatal::Fatal;
use crate::plan::{JobConfig, Plan, VerifiedPlan};

/// How long to wait for who has taken a fence to say that it leads.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// A stage that has its plan.
pub(super) struct JoinedGroup {
    pub(super) member: Member,
    /// Of the leader; must outlive its members.
    pub(super) coordinator: Option<Coordinator>,
    pub(super) assignment: Assignment,
    /// Messages from planning.
    pub(super) notes: Vec<String>,
}

/// The plan, the roster, and what the stage needs to follow them.
pub(super) struct Assignment {
    pub(super) roster: Roster,
    pub(super) plan: Plan,
    pub(super) verified: VerifiedPlan,
    /// The listener for the links of other stages.
    pub(super) listener: TcpListener,
    /// Damaged checkpoints; only of the leader.
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

/// Joins the next group: its leader begins it. `on_failure` is called once if that group fails later.
///
/// # Errors
/// If none is released in time, or this stage may not be in it.
pub(super) fn join_group(
    context: &StageContext,
    kept: &mut Kept,
    on_failure: impl Fn(GroupFailure) + Send + Sync + 'static,
) -> Result<JoinedGroup, Fatal> {
    let StageContext { env, config, device, volume, monitor, .. } = *context;
    let (listener, data_address) = listen(&env.pod_ip)?;
    let hello = hello(env, config, device, data_address);
    let mut timeouts = group_timeouts(config);
    if let (Some(_), Some(timeout)) = (kept.epoch, context.reform_timeout()) {
        timeouts.startup_timeout = timeout;
    }
    let (mut damage, mut notes, mut own) = (Vec::new(), Vec::new(), None);
    let mut finder = Finder::new(volume, env, kept.epoch);
    let coordinator = match leads(context, kept, &finder, timeouts.startup_timeout)? {
        true => {
            if !std::mem::replace(&mut kept.serves_page, true) {
                serve_page(context)?;
            }
            let (control, address) = listen(&env.pod_ip)?;
            let fence = acquire_fence(volume, kept.fence.as_ref())?;
            kept.fence = Some(fence.clone());
            monitor.telemetry().set_leader(fence.number());
            let secret = GroupSecret::generate(fence.number())
                .map_err(|e| Fatal::new(FailureKind::Error, format!("no random numbers for the group's key: {e}")))?;
            let telemetry = monitor.telemetry().clone();
            let on_rejected = move || telemetry.count_rejected_connection();
            let quorum = quorum(context, &kept.lost_ranks);
            let coordinator =
                Coordinator::start(control, hello.clone(), timeouts, secret.clone(), quorum, on_rejected)?;
            let at = Rendezvous { address, protocol_version: PROTOCOL_VERSION, secret };
            fence.publish(volume, &published_name(env, &at))?;
            own = Some(at);
            let planned = plan_for_members(context, &fence, &coordinator);
            match planned.and_then(|planned| Ok((planned.plan.to_bytes()?, planned))) {
                Ok((bytes, planned)) => {
                    coordinator.release(bytes, decision_rules(config));
                    damage = planned.damage;
                    notes.extend(planned.notes);
                }
                Err(fatal) => {
                    coordinator.reject(&fatal.message);
                    return Err(fatal);
                }
            }
            Some(coordinator)
        }
        false => {
            kept.fence = None;
            None
        }
    };
    monitor.set_activity("joining the group");
    // the leader knows where it is, also when a newer group has begun
    let find = || own.clone().map_or_else(|| finder.find(), Ok);
    let mut last = String::new();
    let on_preparing = |what: &str| {
        if last != what {
            tracing::info!("the leader: {what}");
            what.clone_into(&mut last);
        }
    };
    let (member, roster, bytes) = Member::join(find, hello, timeouts, on_preparing, on_failure)?;
    monitor.attach_activity(member.activity());
    let rank = roster.rank_in_group(env.rank as usize).unwrap_or(env.rank as usize);
    let (plan, verified) = Plan::from_bytes(&bytes, rank)?;
    kept.epoch = Some(plan.fence.number());
    tracing::info!(hash = %blake3::hash(&bytes), "plan");
    let assignment = Assignment { roster, plan, verified, listener, damage };
    Ok(JoinedGroup { member, coordinator, assignment, notes })
}

/// Whether this stage leads the next group: the first stage 0 does. Where a replica may be missing, who led the last group leads the
/// next one too, or the same process started anew, unless another has succeeded it: the stage 0 of the second replica does, if it sees
/// the leader's process end. The volume says who led last; nobody leads who could not look.
///
/// # Errors
/// If a newer attempt has begun, or the volume can't be read.
fn leads(context: &StageContext, kept: &mut Kept, finder: &Finder, timeout: Duration) -> Result<bool, Fatal> {
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
            // who takes a fence says at once that it leads, or has ended
            Ok(Some(_)) if began.elapsed() >= PUBLISH_TIMEOUT => return Ok(rank == 0),
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

/// A listener on a free port of `host`, and its address.
fn listen(host: &str) -> Result<(TcpListener, String), Fatal> {
    let with_address = |listener: TcpListener| listener.local_addr().map(|address| (listener, address.to_string()));
    TcpListener::bind((host, 0))
        .and_then(with_address)
        .map_err(|e| Fatal::new(FailureKind::Error, format!("could not listen at POD_IP={host}: {e}")))
}

pub(super) fn hello(env: &StageEnv, config: &JobConfig, device: tch::Device, data_address: String) -> Hello {
    let mut agreement = config.agreement();
    // with the device Auto each stage takes what it finds, and all must find the same
    agreement.insert("device".into(), if device.is_cuda() { "Cuda" } else { "Cpu" }.into());
    Hello {
        job_uid: env.job_uid.clone(),
        attempt: env.attempt,
        rank: env.rank as usize,
        world_size: env.mesh.ranks() as usize,
        replica: 0,
        incarnation: env.incarnation,
        pod_uid: env.pod_uid.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config: agreement,
        data_address,
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
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
        // what differs here is refused by name: `Refusal::ConfigMismatch`
        assert_eq!(differing, ["device"]);
        assert_eq!(cpu.config, hello(&env, &config, tch::Device::Cpu, "b".into()).config);
    }
}
