//! A reconcile passes through the operator's modules in this order: `observe` reads the pods, `lifecycle::decide`
//! decides the next state of the job, `status` computes the status and the events, `status_writer` writes them, and
//! `apply` writes the other objects, which `build` constructs. For a job with a queue, `kueue` reads the queue's answer
//! before `decide`, and writes the Workloads after `apply`. `reconcile` calls these modules, `controller` triggers
//! reconciles, and `leader` holds the Lease.
#![forbid(unsafe_code)]

mod apply;
pub mod build;
mod clients;
mod clock;
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
