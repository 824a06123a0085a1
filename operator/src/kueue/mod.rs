//! Jobs in the queues of Kueue. The operator creates a Workload for a job, and the job has pods only while the Workload
//! is admitted.
//!
//! ```text
//! demand ────┐
//!            ├─► queue_state ─► lifecycle::decide ─► actions ─► write
//! workloads ─┘   may it run,      drains and         the next    to the
//!                with what        starts             writes      API
//! ```

mod actions;
mod boost;
mod dispatched;
mod placement;
mod queue_state;
mod workloads;
mod write;

pub(crate) use actions::{QueueInputs, WorkloadAction, actions};
pub(crate) use boost::next_change as next_boost_change;
pub(crate) use dispatched::{RemoteJobState, dispatched_actions};
pub(crate) use placement::{FlavorSpec, flavors_of, placement};
pub(crate) use queue_state::{QueueCondition, QueueState, holder};
pub(crate) use workloads::{NotListed, WorkloadCache, not_listed_message};
pub(crate) use write::{WriteContext, slices_are_enabled, write};

#[cfg(test)]
mod tests;
