//! Texts about a job that users read: the table of `top`, the summary of the last failure, the documentation of fields,
//! and quantities as text. `stagecoach` (for jobs in local folders) and `kubectl stagecoach` (for jobs in a cluster)
//! print the same texts. All functions are pure except `watch`, which prints.

#![forbid(unsafe_code)]

mod explain;
mod failure;
mod failure_summary;
mod format;
mod replicas;
mod top;
mod watch;

pub use explain::{explain, explain_recursively};
pub use failure::{describe_failure, log_tail};
pub use failure_summary::{FailureSummary, LogTail, Successor};
pub use format::{duration, nats, percent, table, time};
pub use replicas::{Replicas, meanwhile};
pub use top::{Slowest, TopRow, top};
pub use watch::watch;
