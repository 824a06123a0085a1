//! Tests of schedules, partitions, the verifier, the simulator and drawings, through the public API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod csv;
mod lowering;
mod measured;
mod mutations;
mod optimal;
mod partition;
mod partition_properties;
mod pictures;
mod reference_executor;
mod schedules;
mod simulation;
mod speeds;
mod split;
mod violations;
