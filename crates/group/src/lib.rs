//! The control plane among the stages of a group: rendezvous, heartbeats, the step's agreement. It knows no tensors.
//! The rules are pure (`admission`, `roster`, `exchange`, `hang`, `verdict`); `coordinator` and `member` are the
//! threads and sockets that drive them.
#![forbid(unsafe_code)]

mod activity;
mod admission;
mod connection;
mod coordinator;
mod ending;
mod error;
mod exchange;
mod failure;
#[cfg(test)]
mod golden_tests;
mod handshake;
mod hang;
mod hello;
mod inbox;
mod join;
mod line;
mod member;
#[cfg(test)]
mod properties;
mod roster;
mod sync;
mod verdict;
mod wire;

pub use activity::{Activity, name_thread};
pub use admission::{Difference, Refusal};
pub use coordinator::Coordinator;
pub use error::GroupError;
pub use failure::{Failure, FailureKind};
pub use hang::{Doing, Hang, hang};
pub use hello::{Hello, Roster, Timing};
pub use member::Member;
pub use verdict::{Outcome, Rules, StepVote, Verdict, verdict};
