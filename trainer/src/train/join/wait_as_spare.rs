//! The wait of a spare, which is a process without a stage. A spare does the slow part of loading in advance, and waits
//! to replace a lost stage.

use stagecoach_api::contract::{FailureKind, StageEnv};
use stagecoach_checkpoint::Volume;
use stagecoach_data::Dataset;
use stagecoach_engine::StageError;
use stagecoach_group::{Hello, SpareOutcome};
use stagecoach_planner::{JobConfig, Plan};
use stagecoach_telemetry::TrainingEvent;
use tch::{Device, Kind, Tensor};

use crate::train::StageMonitor;
use crate::train::join::rendezvous::RendezvousWatcher;
use crate::train::join::{group_timeouts, hello};

/// Waits as the spare `number`. Returns the environment of the stage that the spare replaces. Exits the process when
/// all stages have left.
///
/// # Errors
/// If the process can't be a spare of this group, or its attempt is over.
pub(in crate::train) fn wait_as_spare(
    env: &StageEnv,
    number: u32,
    config: &JobConfig,
    volume: &dyn Volume,
    monitor: &StageMonitor,
) -> Result<StageEnv, StageError> {
    monitor.set_activity("standing by");
    let device = config.device((env.mesh.ranks() + number) as usize)?;
    warm_up(device);
    let hello = Hello { rank: number as usize, ..hello(env, config, device, String::new()) };
    let mut finder = RendezvousWatcher::new(volume, env, None, None);
    let mut has_reported = false;
    let on_released = |plan: &[u8]| {
        open_tokens(config, plan);
        if !std::mem::replace(&mut has_reported, true) {
            monitor.emit(&TrainingEvent::StandingBy { spare: number });
        }
    };
    let end = stagecoach_group::wait_as_spare(|| finder.find(), &hello, group_timeouts(config), on_released)?;
    let SpareOutcome::Promoted { rank, incarnation } = end else {
        monitor.exit(FailureKind::Done, "all stages have left: no spare is needed")
    };
    let stage_env = StageEnv { rank: rank as u32, incarnation, ..env.clone() };
    monitor.emit(&TrainingEvent::Promoted { spare: number, stage: stage_env.rank, incarnation });
    Ok(stage_env)
}

/// Computes a product on the device, because the first use loads the CUDA context and its libraries, which takes
/// seconds.
fn warm_up(device: Device) {
    let one = Tensor::ones([8, 8], (Kind::Float, device));
    let _ = one.matmul(&one).double_value(&[0, 0]);
}

/// Opens the tokens, so that the volume caches the first data. This function ignores a failure, because a stage that
/// opens the tokens reports the same failure.
fn open_tokens(config: &JobConfig, plan: &[u8]) {
    if let Ok((plan, _)) = Plan::from_bytes(plan, 0)
        && let Ok(config) = config.resuming(&plan.identity)
        && let Err(error) = Dataset::open(&config.data_config(), &plan.prepared)
    {
        tracing::debug!("the tokens can't be opened yet: {error}");
    }
}
