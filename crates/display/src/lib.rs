//! Texts about a job for people: the table of `top`, the last failure from cause to consequence, the documentation of
//! fields, and quantities as text. `stagecoach` for a folder and `kubectl stagecoach` for a cluster print the same
//! words. All functions are pure except `watch`, which prints.

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
