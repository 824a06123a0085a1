//! Pages for a browser on this machine, which `server` serves at an address that has a token in it. They read and never write, and
//! do nothing while nobody looks.
//!
//! The live page of a job: `source` reads the job's folder into a `model`, `html` and `chart` draw that, `live` keeps it as new as
//! the job. The `planner` plans a job anew with what its reader changes.
//!
//! `metrics_tail` reads `metrics.jsonl` as it grows into `metrics`, whose curves are a `series` each, in bounded memory; `view` is
//! what part of the run a reader looks at.

mod chart;
mod html;
mod live;
mod metrics;
mod metrics_tail;
mod model;
mod planner;
mod series;
mod server;
mod source;
mod step_timeline;
mod token;
mod view;

pub(crate) use live::serve;
pub(crate) use planner::{Planner, serve_planner};
pub(crate) use server::THREAD;
pub(crate) use source::Teller;
