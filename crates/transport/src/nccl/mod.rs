//! Transfers tensors between GPUs with NCCL. Each ordered pair of ranks has one communicator, which all links in that
//! direction share. NCCL's messages have no tags, so both ends must pass the same messages to a communicator in the
//! same order. The order follows from the programs (lists of actions) of the ranks, and `stagecoach_pipeline` verifies
//! the programs for each pair of ranks.
//!
//! A thread passes each message to NCCL once both ends are ready ([`turn`]). A send never blocks the thread that
//! computes. A wait for a received tensor blocks this thread until both ends have passed the message to NCCL. The GPU
//! computations that use the tensor run after an event that completes after the receive.

mod channel;
mod communicator;
mod connect;
mod library;
mod remedy;
mod turn;

pub(super) use channel::{Channel, Message};
pub(super) use communicator::UniqueId;
pub(super) use connect::{Endpoint, NewCommunicator, connect};
