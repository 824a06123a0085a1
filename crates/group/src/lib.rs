//! The control plane of a group of stages: rendezvous, heartbeats, the vote that ends a step. It does not handle
//! tensors. The rules are pure (`admission`, `group_state`, `shutdown`, `exchange`, `hang`, `verdict`); `coordinator`
//! and `member` are the threads and sockets that drive them.
#![forbid(unsafe_code)]

mod activity;
mod admission;
mod connect;
mod connection;
mod control_stream;
mod coordinator;
mod disconnect;
mod error;
mod exchange;
mod failure;
pub mod frame;
#[cfg(test)]
mod golden_tests;
mod group_state;
mod handshake;
mod hang;
mod hello;
mod inbox;
mod join;
mod losses;
mod member;
mod membership;
mod messages;
#[cfg(test)]
mod property_tests;
mod quorum;
mod rendezvous;
mod secure;
mod shutdown;
mod spares;
mod stand_by;
mod sync;
mod verdict;

pub use activity::{Activity, name_thread};
pub use admission::{FieldMismatch, Refusal};
pub use connect::{RETRY_DELAY, connect};
pub use coordinator::Coordinator;
pub use error::GroupError;
pub use failure::GroupFailure;
pub use hang::{Hang, StageActivity, find_hang};
pub use hello::{GroupTimeouts, Hello, Roster};
pub use losses::BlockLosses;
pub use member::Member;
pub use messages::PROTOCOL_VERSION;
pub use quorum::Quorum;
pub use rendezvous::{NotFound, Rendezvous};
pub use secure::{GroupSecret, HANDSHAKE_BYTES, Handshake, SecureReader, SecureWriter, Session};
pub use stand_by::{StandByEnd, stand_by};
pub use verdict::{StepOutcome, StepRules, StepVote, Verdict, decide_step};
