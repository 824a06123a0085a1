//! Pages for a browser on this machine, which `server` serves at an address that has a token in it. They read and never write, and
//! do nothing while nobody looks.
//!
//! The live page of a job: `job_reader` reads the job's folder into a `model`, `html` and `chart` draw that, `live` keeps it as new as
//! the job. The `planner` plans a job anew with what its reader changes.
//!
//! `metrics_tail` reads `metrics.jsonl` as it grows into `metrics`, whose curves are a `series` each, in bounded memory; `view` is
//! what part of the run a reader looks at.

mod chart;
mod html;
mod job_reader;
mod live;
mod metrics;
mod metrics_tail;
mod model;
mod planner;
mod series;
mod server;
mod step_timeline;
mod token;
mod view;

pub(crate) use job_reader::StatusSource;
pub(crate) use live::serve;
pub(crate) use planner::{Planner, serve_planner};
pub(crate) use server::THREAD;
