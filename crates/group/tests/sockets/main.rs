//! Whole groups over real sockets on 127.0.0.1: the members are threads, their deaths are dropped or cut connections.
// What the tests share counts as a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod exchange;
mod failures;
mod formation;
mod goodbyes;
mod hangs;
mod refusals;
mod strangers;
mod support;
