//! Tests of the trainer's library: gradients, links and memory, without a launcher.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod fine_tuning;
mod gradients;
mod layouts;
mod links;
mod memory;
mod reference;
mod support;
