//! Tests the control plane of a group of stages through the public API.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod sockets;
mod verdict;
