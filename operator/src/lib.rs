//! The operator's rooms, in the order in which data passes through them: `observe` (what is), `lifecycle::decide` (what
//! should be), `report` (the status, by compare-and-swap, then events), `apply` (the writes), with `build` making the
//! objects. `reconcile` is the one way through them, and `tell` carries out what `report` says; `controller` says when,
//! `leader` says who.
#![forbid(unsafe_code)]

mod apply;
pub mod build;
mod context;
mod controller;
mod job;
mod leader;
mod observe;
mod reconcile;
mod report;
pub mod run;
mod serve;
mod settings;
mod telemetry;
mod tell;
mod written;

pub use settings::{LogFormat, Settings};
