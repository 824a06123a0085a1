//! The local launcher. It runs a job's stages as processes of this machine, under the same restart policy as in a
//! cluster. `folder` is the job's folder, and `job_lock` locks it. `stage_process` is the process of one stage,
//! `stage_processes` is the list of all processes, and `supervisor` is the loop around `lifecycle::decide`. `nccl_host`
//! lets stages that share a GPU use NCCL. `report` has the launcher's messages. `launcher_state` stores the state
//! between runs, and `previous_run` reads the results of an earlier run. `history` collects the facts about a run's
//! last failure, `why` explains them, and `top` creates a job's line for `stagecoach top`.

mod error;
mod folder;
mod history;
mod job_lock;
mod launcher_state;
mod nccl_host;
mod previous_run;
mod report;
mod stage_process;
mod stage_processes;
mod supervisor;
mod supervisor_message;
mod top;
mod why;

pub use error::LaunchError;
pub use folder::{
    FolderError, INITIAL_MODEL, JobFolder, METRICS, REMOTE_FILES, REMOTE_MODELS, RESULT, SPEEDS, WINDOWS, write_file,
};
pub use history::History;
pub use job_lock::JobLock;
pub use launcher_state::{LauncherState, Recovery};
pub use previous_run::PreviousRun;
pub use report::rules_for_pods;
pub use stage_process::StageExecutable;
pub use supervisor::{LaunchConfig, RunOutcome, supervise};
pub use top::top_row;
