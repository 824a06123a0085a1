//! The live page of a job: `source` reads the job's folder into a `model`, `html` and `chart` draw that, `server` serves it at
//! an address that has a token in it. It reads and never writes, and does nothing while nobody looks.
//!
//! `metrics_tail` reads `metrics.jsonl` as it grows into `metrics`, whose curves are a `series` each, in bounded memory; `view` is
//! what part of the run a reader looks at.

mod chart;
mod html;
mod metrics;
mod metrics_tail;
mod model;
mod series;
mod server;
mod source;
mod step_timeline;
mod token;
mod view;

pub(crate) use server::{THREAD, serve};
pub(crate) use source::Teller;
