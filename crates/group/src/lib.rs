//! The control plane of a group of stages: rendezvous, heartbeats, and the vote that ends a step. The crate does
//! not handle tensors.
//!
//! The leader's process has a [`Coordinator`]. Every stage, including the leader, is a [`Member`]. The modules `state`
//! and `verdict` contain the rules and are pure: they use no threads, sockets or clocks. The modules `coordinator` and
//! `member` have the threads and sockets that drive the rules. The module `wire` defines the messages between members
//! and coordinator.
//!
//! Ranks have torch's meaning. A **rank** is global: it numbers a process among the processes of all replicas of the
//! attempt. A **group rank** numbers a member in its group, `0..group_size`. The two differ if the group lacks a
//! replica, or if a rank other than 0 leads. The leader's group rank is 0.
#![forbid(unsafe_code)]

mod activity;
mod coordinator;
mod error;
mod hello;
mod member;
mod names;
mod state;
mod sync;
mod verdict;
mod wire;

pub use activity::{Activity, name_thread};
pub use coordinator::Coordinator;
pub use error::{GroupError, GroupFailure, local_shortage};
pub use hello::{GroupTimeouts, Hello, NotFound, Rendezvous, Roster};
pub use member::Member;
pub use member::join::answers;
pub use member::wait_as_spare::{SpareOutcome, wait_as_spare};
pub use state::admission::{FieldMismatch, Refusal};
pub use state::quorum::Quorum;
pub use verdict::{AbortKind, BlockLosses, StepOutcome, StepRules, StepVote, Verdict, decide_step};
pub use wire::connection::{RETRY_DELAY, connect};
pub use wire::frame;
pub use wire::messages::PROTOCOL_VERSION;
pub use wire::secure::{GroupSecret, HANDSHAKE_BYTES, Handshake, SecureReader, SecureWriter, Session};
