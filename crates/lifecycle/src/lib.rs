//! The job's state machine and restart policy as a pure function: `decide(&Observed, now) -> Decision`. The launcher
//! calls `decide` for processes, and the operator calls it for pods. A group is the set of instances of an attempt that
//! train together, from one rendezvous until a stage is lost. The crate reads no clock and does no I/O. The caller
//! stores the state.
//!
//! The caller must:
//!
//! 1. store `Decision::state` before any action, by compare-and-swap if there may be other writers or stale reads; if
//!    the state is unchanged, make sure that the stored state still equals it;
//! 2. if storing fails, perform no action and observe again;
//! 3. perform the actions, which are idempotent;
//! 4. list the instances from their source and not from a cache, after reading the state; a cached list may only be
//!    used to find that nothing has to be done, or that all instances were created;
//! 5. decide again on any change, and at `Decision::wake_at` at the latest.

#![forbid(unsafe_code)]

mod actions;
mod advice;
mod after_failure;
mod attempt_action;
mod backoff;
mod budget;
mod cause;
mod cause_order;
mod decide;
mod failure;
mod instance;
mod observed;
mod peer_loss;
mod policy;
mod replacement;
mod spares;
mod state;
mod time;
mod timeouts;

pub use actions::MIN_GRACE_SECONDS;
pub use attempt_action::AttemptAction;
pub use backoff::{BACKOFF_JITTER_PERCENT, backoff_delay, jittered};
pub use budget::RestartBudget;
pub use decide::{Decision, decide};
pub use failure::{AttemptFailure, FailureReason};
pub use instance::{Exit, ExternalCause, InstanceId, InstanceState, SpareInstance, StageInstance, TerminationReport};
pub use observed::{Admission, CreationRefusal, Desired, LostInstance, Observed, ObservedProgress};
pub use policy::FailurePolicy;
pub use state::{Attempt, AttemptPhase, JobFailureReason, JobOutcome, JobState};
pub use time::UnixMillis;
