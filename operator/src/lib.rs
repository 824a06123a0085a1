//! The operator's modules in the order of the data flow: `observe` (current pods), `lifecycle::decide` (desired next
//! state), `status` (next status and events, which `status_writer` writes), `apply` (writes of other objects, which
//! `build` constructs). `kueue` reads the answer of the job's queue before `decide`, and writes the Workloads after
//! `apply`. `reconcile` calls these modules in this order, `controller` triggers reconciles, and `leader` holds the
//! Lease.
#![forbid(unsafe_code)]

mod apply;
pub mod build;
mod clients;
mod config;
mod context;
mod controller;
mod errors;
mod folders;
mod job;
mod json_api;
mod kueue;
mod leader;
mod observe;
mod reconcile;
mod reconcile_cache;
mod reconcile_dispatched;
mod reconcile_queue;
mod rejection;
mod repair_history;
mod requeue;
pub mod run;
mod serve;
mod status;
mod status_writer;
mod sync;
mod telemetry;
mod triggers;
mod ttl;
mod write_cache;

pub use config::{LogFormat, OperatorConfig};
