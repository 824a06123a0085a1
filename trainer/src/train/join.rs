//! Joining the group: stage 0 prepares and plans, the others wait for its plan, everybody verifies it.

use std::net::TcpListener;
use std::time::Duration;

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::Damage;
use stagecoach_group::{Coordinator, Failure, Hello, Member, Roster, Timing};

use super::{Around, prepare};
use crate::fatal::Fatal;
use crate::plan::{Plan, Settings, Verified};

/// A stage that has its plan.
pub(super) struct Joined {
    pub(super) member: Member,
    /// On stage 0; must outlive its members.
    pub(super) coordinator: Option<Coordinator>,
    pub(super) assigned: Assigned,
    /// What planning has to say.
    pub(super) notes: Vec<String>,
}

/// What it is to do, and with whom.
pub(super) struct Assigned {
    pub(super) roster: Roster,
    pub(super) plan: Plan,
    pub(super) verified: Verified,
    /// Where neighbours' links will connect.
    pub(super) listener: TcpListener,
    /// Checkpoints that can't be used: on stage 0.
    pub(super) damage: Vec<Damage>,
}

/// The group's deadlines, by the job's.
pub(super) fn timing(settings: &Settings) -> Timing {
    let restart = &settings.job.spec.restart;
    Timing {
        startup: Duration::from_secs(restart.startup_timeout_seconds.into()),
        stall: Duration::from_secs(restart.stall_timeout_seconds.into()),
        ..Timing::default()
    }
}

pub(super) fn join(around: &Around) -> Result<Joined, Fatal> {
    let Around { env, settings, device, volume, watch, sink } = *around;
    let listener = listen(&env.pod_ip, 0)?;
    let data_port =
        listener.local_addr().map_err(|e| Fatal::new(FailureKind::Error, format!("no data port: {e}")))?.port();
    let hello = hello(env, settings, device, format!("{}:{data_port}", env.pod_ip));
    let timing = timing(settings);
    let mut address = format!("{}:{}", env.master_addr, env.master_port);
    let (mut damage, mut notes) = (Vec::new(), Vec::new());
    let coordinator = match env.rank {
        0 => {
            let control = listen(&env.pod_ip, env.master_port)?;
            address = format!("{}:{}", env.pod_ip, env.master_port);
            let coordinator = Coordinator::start(control, hello.clone(), timing)?;
            let planned = prepare::prepare(settings, env.world_size as usize, &coordinator, volume, watch, sink);
            match planned.and_then(|planned| Ok((planned.plan.to_bytes()?, planned))) {
                Ok((bytes, planned)) => {
                    coordinator.release(bytes, prepare::rules(settings));
                    (damage, notes) = (planned.damage, planned.notes);
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
    watch.doing("joining the group");
    let lost = {
        let watch = watch.clone();
        move |failure: Failure| {
            if !watch.is_leaving() {
                let kind = if failure.is_culprit() { FailureKind::Stalled } else { FailureKind::PeerLost };
                watch.end(kind, &failure.message);
            }
        }
    };
    let (member, roster, bytes) =
        Member::join(&address, hello, timing, |what| tracing::info!("stage 0: {what}"), lost)?;
    watch.attach(member.activity());
    let (plan, verified) = Plan::from_bytes(&bytes)?;
    tracing::info!(hash = %blake3::hash(&bytes), "plan");
    notes.extend(env.rank.eq(&0).then(|| unlike(&roster)).flatten());
    let assigned = Assigned { roster, plan, verified, listener, damage };
    Ok(Joined { member, coordinator, assigned, notes })
}

/// A warning if the stages compute with different kernels: then who holds which layer shows in the last bits.
fn unlike(roster: &Roster) -> Option<String> {
    let kernels: std::collections::BTreeSet<String> = roster
        .members
        .iter()
        .map(|hello| format!("{} {}", hello.device.split('(').next().unwrap_or_default(), hello.isa))
        .collect();
    (kernels.len() > 1).then(|| {
        let kernels: Vec<_> = kernels.into_iter().collect();
        format!(
            "the stages compute on unlike machines ({}): another partition will not give the same bits",
            kernels.join(", ")
        )
    })
}

fn listen(host: &str, port: u16) -> Result<TcpListener, Fatal> {
    TcpListener::bind((host, port)).map_err(|e| {
        let remedy = match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                ": another process listens there, stop it or set MASTER_PORT to a free port"
            }
            _ => "",
        };
        Fatal::new(FailureKind::Error, format!("could not listen at {host}:{port} ({e}){remedy}"))
    })
}

fn hello(env: &StageEnv, settings: &Settings, device: tch::Device, data_address: String) -> Hello {
    Hello {
        job_uid: env.job_uid.clone(),
        attempt: env.attempt as u32,
        rank: env.rank as usize,
        world: env.world_size as usize,
        replica: 0,
        pod_uid: env.pod_uid.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        config: settings.agreement(),
        data_address,
        host: std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned(),
        device: format!("{device:?}"),
        isa: crate::autograd::cpu_capability(),
    }
}
