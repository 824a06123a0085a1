//! `stagecoach run`: the stages of a job as processes of this machine, kept going by `lifecycle`'s policy.
//! `folder` knows the job's files, `lock` keeps two runs apart, `process` starts a stage, `supervise` is the loop.

mod folder;
mod lock;
mod process;
mod record;
mod supervise;

pub use folder::{Folder, LaunchError};
pub use lock::Lock;
pub use supervise::{Ending, Supervisor};
