//! The protocol of a connection: its beginning, its frames, its encryption, the messages of both sides, and its end.

pub(crate) mod connection;
pub mod frame;
#[cfg(test)]
mod golden_tests;
pub(crate) mod handshake;
pub(crate) mod messages;
pub(crate) mod secure;
