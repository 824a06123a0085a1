//! Tests of the state machine: its rules, its stored form, and its invariants under simulated and modelled faults.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod model;
mod rules;
mod simulation;
mod stored_state;
