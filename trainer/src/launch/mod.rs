//! The local launcher: a job's stages as processes of this machine, under the restart policy that pods have.
//! `lock` holds the job's folder, `process` is one stage, `supervise` the loop around `lifecycle::decide`, `report` its
//! sentences, `record` what outlives the launcher, `before` what was there already.

mod before;
mod error;
mod lock;
mod port;
mod process;
mod record;
mod report;
mod supervise;

pub use before::Before;
pub use error::LaunchError;
pub use lock::Lock;
pub use port::wanted as wanted_port;
pub use process::Program;
pub use record::Record;
pub use supervise::{End, Launch, supervise};
