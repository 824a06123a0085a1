//! Tensors between GPUs by NCCL: one communicator for each ordered pair of ranks, whatever links they have in that direction.
//! NCCL's messages have no names, so both ends give a communicator the same messages in the same order: that of their programs,
//! which `stagecoach_pipeline` verifies for each pair of ranks.
//!
//! Nothing here makes the host wait for a GPU. A send runs behind an event of the default stream, on which libtorch computes, and
//! what uses a received tensor runs behind an event of the receive.

mod channel;
mod communicator;
mod connect;
mod library;
mod remedy;

pub(super) use channel::{Channel, Message};
pub(super) use communicator::UniqueId;
pub(super) use connect::{Endpoint, NewCommunicator, connect};
