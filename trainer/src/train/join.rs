//! Joining the group: stage 0 prepares and plans, the others wait for its plan, every stage verifies it.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::{Damage, Fence};
use stagecoach_display::Replicas;
use stagecoach_group::{
    Coordinator, GroupFailure, GroupSecret, GroupTimeouts, Hello, Member, PROTOCOL_VERSION, Quorum, Rendezvous, Roster,
};

use super::context::StageContext;
use super::kept::Kept;
use super::prepare::{PlannedRun, decision_rules, prepare_and_plan};
use super::rendezvous::{Finder, published_name};
use super::resume::acquire_fence;
use crate::fatal::Fatal;
use crate::plan::{JobConfig, Plan, VerifiedPlan};

/// A stage that has its plan.
pub(super) struct JoinedGroup {
    pub(super) member: Member,
    /// On stage 0; must outlive its members.
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
    /// Damaged checkpoints; only on stage 0.
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

/// Joins the next group: on stage 0, the one that it begins. `on_failure` is called once if that group fails later.
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
    let coordinator = match env.rank {
        0 => {
            let (control, address) = listen(&env.pod_ip)?;
            let fence = acquire_fence(volume, kept.fence.as_ref())?;
            kept.fence = Some(fence.clone());
            let secret = GroupSecret::generate(fence.number())
                .map_err(|e| Fatal::new(FailureKind::Error, format!("no random numbers for the group's key: {e}")))?;
            let telemetry = monitor.telemetry().clone();
            let on_rejected = move || telemetry.count_rejected_connection();
            let quorum = quorum(context, &kept.lost_replicas);
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
        _ => None,
    };
    monitor.set_activity("joining the group");
    // stage 0 knows where it is, also when a newer group has begun
    let mut finder = Finder::new(volume, env, kept.epoch);
    let find = || own.clone().map_or_else(|| finder.find(), Ok);
    let mut last = String::new();
    let on_preparing = |what: &str| {
        if last != what {
            tracing::info!("stage 0: {what}");
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

/// With how few replicas the next group may train: all, unless the job says less and there are no checkpoints in memory.
fn quorum(context: &StageContext, lost: &BTreeSet<usize>) -> Quorum {
    let StageContext { env, config, .. } = *context;
    let spec = &config.job.spec;
    // a spare takes the lost stage's place at once
    let lost = if spec.spares == 0 { lost.clone() } else { BTreeSet::new() };
    Quorum { stages: env.mesh.stages as usize, min_replicas: spec.min_data_parallel() as usize, lost }
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
