//! The local launcher: a job's stages as processes of this machine, under the same restart policy as pods.
//! `job_lock` locks the job's folder, `stage_process` is one stage, `stage_processes` are all of them, `supervisor` is the
//! loop around `lifecycle::decide`, `nccl_host` is for stages that share a GPU, `report` its messages, `launcher_state` what is stored between runs, `previous_run`
//! what an earlier run left, `history` what is
//! known of a run's last failure, `why` tells it, and `top` is a job's line among others.

mod error;
mod history;
mod job_lock;
mod launcher_state;
mod nccl_host;
mod previous_run;
mod report;
mod stage_process;
mod stage_processes;
mod supervisor;
mod top;
mod why;

pub(crate) use error::LaunchError;
pub(crate) use history::History;
pub(crate) use job_lock::JobLock;
pub(crate) use launcher_state::{LauncherState, Recovery};
pub(crate) use previous_run::PreviousRun;
pub(crate) use report::rules_for_pods;
pub(crate) use stage_process::StageExecutable;
pub(crate) use supervisor::{LaunchConfig, RunOutcome, supervise};
pub(crate) use top::top_row;
