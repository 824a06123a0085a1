//! What people are told of a job, in the same words by `stagecoach` of a folder and by `kubectl stagecoach` of a cluster: the
//! table of `top`, the last failure from cause to consequence, and quantities as text. Pure, but for `watch`, which prints.

#![forbid(unsafe_code)]

mod failure;
mod format;
mod replicas;
mod story;
mod table;
mod top;
mod watch;

pub use failure::{how, log_tail};
pub use format::{duration, nats, percent, time};
pub use replicas::{Replicas, meanwhile};
pub use story::{LogEnd, Story, Successor};
pub use table::table;
pub use top::{Slowest, TopRow, top};
pub use watch::watch;
