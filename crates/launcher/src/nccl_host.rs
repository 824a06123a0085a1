//! Host IDs for a job with more processes than GPUs. NCCL refuses two processes of one host on one GPU. If the variable
//! `NCCL_HOSTID` is set, its value identifies the host. Processes that share a GPU therefore get different values.

use stagecoach_api::contract::StageEnv;
use stagecoach_api::job::{Device, PipelineJobSpec, Transport};
use stagecoach_os::hostname;

/// The variable by which NCCL distinguishes hosts.
pub(super) const NCCL_HOST_ID: &str = "NCCL_HOSTID";

/// Returns the NCCL host ID of a stage or spare of this machine. Returns `None` if the job can't use NCCL, if
/// `count_gpus` counts no GPU, or if each stage and spare has a GPU to itself.
pub(super) fn nccl_host_id(env: &StageEnv, spec: &PipelineJobSpec, count_gpus: fn() -> usize) -> Option<String> {
    let computes_on_cpu = spec.training.as_ref().is_none_or(|training| training.device == Device::Cpu);
    match spec.pipeline.transport {
        Transport::Nccl => {}
        Transport::Auto if !computes_on_cpu => {}
        _ => return None,
    }
    host_id(env, spec.spares, count_gpus())
}

/// Returns a host ID that no two processes on the same GPU share. Stage `rank` computes on GPU `rank % gpus`. Stages on
/// different GPUs share a host ID, so that NCCL uses NVLink or shared memory between them. A spare may replace any
/// stage, so it shares its host ID with no process.
fn host_id(env: &StageEnv, spares: u32, gpus: usize) -> Option<String> {
    let processes = (env.mesh.ranks() + spares) as usize;
    if gpus == 0 || processes <= gpus {
        return None;
    }
    let host = hostname();
    Some(match env.spare {
        Some(number) => format!("{host}/{}/spare-{number}", env.job_uid),
        None => format!("{host}/{}/{}", env.job_uid, env.rank as usize / gpus),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_processes_of_one_host_share_a_gpu() {
        let env = |rank: u32, spare: Option<u32>| {
            let vars = [("WORLD_SIZE", "5"), ("STAGECOACH_JOB", "a"), ("STAGECOACH_JOB_UID", "u"), ("POD_UID", "p")];
            let more = [("STAGECOACH_ATTEMPT", "1"), ("MASTER_ADDR", "a"), ("POD_IP", "127.0.0.1"), ("RANK", "0")];
            StageEnv { rank, spare, ..StageEnv::from_vars(vars.into_iter().chain(more)).unwrap() }
        };
        for (gpus, spares, hosts) in [(1, 0, 5), (2, 0, 3), (4, 0, 2), (4, 1, 3), (5, 1, 2)] {
            let id = |rank, spare| host_id(&env(rank, spare), spares, gpus).unwrap();
            let stages: Vec<(String, usize)> = (0..5).map(|rank| (id(rank, None), rank as usize % gpus)).collect();
            let spares: Vec<String> = (0..spares).map(|number| id(0, Some(number))).collect();
            assert_eq!(stages.iter().collect::<HashSet<_>>().len(), 5, "{stages:?}");
            let all: HashSet<&String> = stages.iter().map(|(host, _)| host).chain(&spares).collect();
            assert_eq!(all.len(), hosts, "{all:?}");
        }
        for (gpus, spares) in [(0, 0), (5, 0), (8, 1)] {
            assert_eq!(host_id(&env(1, None), spares, gpus), None);
        }
    }
}
