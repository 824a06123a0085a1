//! What should happen to a job next, as a pure function: `decide(&Observed, now) -> Decision`. The local launcher calls
//! it with processes, the operator with pods. It keeps no clock, does no I/O, and its state is what the caller records.
//!
//! The caller's side of the bargain: record `Decision::state` first, by compare-and-swap if others may write it too or
//! if what was read may be old, and then also where the state is equal to what was read, before any action: a state that
//! was overwritten since must not be acted on. If that fails, do none of the actions and observe again. Then do the
//! actions, each of which may be repeated. Members are listed live, after the state was read; an older look may show that
//! nothing follows, or that all members were made, and no more. Decide again when anything changes, and at
//! `Decision::wake` at the latest.

#![forbid(unsafe_code)]

mod actions;
mod backoff;
mod budget;
mod cause;
mod decide;
mod observed;
mod policy;
mod state;
mod time;

pub use actions::Action;
pub use budget::Budget;
pub use cause::{Failure, Reason};
pub use decide::{Decision, decide};
pub use observed::{Desired, Exit, External, Member, MemberState, Observed, Report, Seen};
pub use policy::{DEFAULT_GRACE_SECONDS, Policy};
pub use state::{Attempt, Doing, FailReason, Outcome, State};
pub use time::Time;
