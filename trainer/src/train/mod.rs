//! Runs a stage: it joins a group, trains with it, and joins the next group when the group has lost another stage. A
//! group consists of the stages that train together until one of them is lost.

mod collective;
mod context;
mod group;
mod join;
mod leave;
mod models;
mod monitor;
mod recover;
mod save;
mod setup;
mod step;

pub(crate) use join::start_check::check_start;
pub(crate) use models::job_config;
pub(crate) use monitor::{StageMonitor, write_termination_message};
pub(crate) use setup::resume::check_extension;

use std::path::Path;
use std::sync::Arc;

use stagecoach_api::contract::{FailureKind, PAGE_NOTE, PAGE_PORT, StageEnv};
use stagecoach_checkpoint::Volume;
use stagecoach_launcher::JobFolder;
use stagecoach_telemetry::{TrainingEvent, http_port};

use context::StageContext;
use group::AfterGroup;
use join::stale_fences::StaleFenceRemoval;
use leave::{LeaveReason, folder_error};
use recover::carry_over::CarryOver;
use stagecoach_dashboard::{self as page, StatusSource};
use stagecoach_engine::StageError;
use stagecoach_planner::{JobConfig, environment};
use stagecoach_replay::ReplayOptions;

/// The successful end of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StageOutcome {
    /// The stage trained to the end, and the model is saved.
    Done,
    /// A stop was requested, and all stages stopped after the same step.
    Drained,
}

impl StageOutcome {
    /// Returns the kind of this end for the termination message and the exit code.
    pub(crate) fn kind(self) -> FailureKind {
        match self {
            StageOutcome::Done => FailureKind::Done,
            StageOutcome::Drained => FailureKind::Drained,
        }
    }
}

/// The number of consecutive groups that a stage may lose without finishing a new step. A failure that recurs so often
/// would recur in another group. All stages therefore exit, and the attempt ends.
const MAX_GROUPS_LOST_WITHOUT_PROGRESS: u32 = 3;

/// Runs one stage from start to exit. A spare first waits until it replaces a stage.
///
/// # Errors
/// The error that ends the stage, in the form of the termination message.
pub(crate) fn run_stage(
    env: &StageEnv,
    config: &JobConfig,
    mount: fn(&Path) -> Arc<dyn Volume>,
    monitor: &StageMonitor,
    replay: &ReplayOptions,
) -> Result<StageOutcome, StageError> {
    let holds_out_last_sequences = replay.holds_out_last_sequences;
    let config = &JobConfig { holds_out_last_sequences, ..config.clone() };
    tch::set_num_threads(config.training.threads as i32);
    tch::set_num_interop_threads(1);
    let mut env = env.clone();
    if let Some(number) = env.spare {
        env = join::wait_as_spare::wait_as_spare(&env, number, config, &*mount(&config.folder()), monitor)?;
    }
    let env = &env;
    let rank = env.rank as usize;
    let device = config.device(rank)?;
    if rank == 0 {
        JobFolder::open(&config.folder(), None).map_err(folder_error)?;
    }
    let mounted = mount(&config.folder());
    let (volume, stale_fences) = (&*mounted, &StaleFenceRemoval::of(&mounted));
    let environment = &environment(config, device);
    let context =
        StageContext { env, group_rank: rank, config, device, environment, volume, stale_fences, monitor, replay };
    let mut carry_over = CarryOver::default();
    let (mut groups_lost, mut highest_step) = (0, 0);
    loop {
        let lost = match group::run_group(&context, &mut carry_over)? {
            AfterGroup::Regroup => continue,
            AfterGroup::Recover(error) if context.reform_timeout().is_some() => error,
            AfterGroup::Recover(error) => return Err(error),
            AfterGroup::Exit(outcome) => {
                if outcome == StageOutcome::Done {
                    stale_fences.wait(); // no later group removes these files
                }
                return Ok(outcome);
            }
        };
        let step = monitor.step().unwrap_or(0);
        groups_lost = if step > highest_step { 1 } else { groups_lost + 1 };
        highest_step = highest_step.max(step);
        if groups_lost > MAX_GROUPS_LOST_WITHOUT_PROGRESS || monitor.stop_requested_at().is_some() {
            return Err(lost);
        }
        tracing::warn!("{}: waiting for the next group", lost.message);
    }
}

/// Serves the job's page on the loopback address of the leader's pod. Prints the page's address, which contains the
/// access token, only in the pod's log. Training continues if the page can't be served.
fn serve_page(context: &StageContext) -> Result<(), LeaveReason> {
    let StageContext { config, monitor, .. } = *context;
    let Ok(Some(_)) = http_port() else { return Ok(()) };
    let folder = JobFolder::open(&config.folder(), None)?;
    let status = || StatusSource::Stage(monitor.telemetry().clone(), Box::new(config.job.clone()));
    // pods that share the node's network may already use the port
    let served = page::serve(folder.clone(), status(), PAGE_PORT).or_else(|_| page::serve(folder, status(), 0));
    let message = match served {
        Ok(address) => format!("{PAGE_NOTE}, after `kubectl port-forward` of its port to this pod: {address}"),
        Err(error) => format!("the job has no page: {error}"),
    };
    monitor.event_writer().emit(&TrainingEvent::Note { message });
    Ok(())
}
