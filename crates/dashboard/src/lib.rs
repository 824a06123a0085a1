//! Pages for a browser on this machine. `server` serves the pages at an address that contains a token. The pages only
//! read files, and do no work while no browser has them open.
//!
//! The live page shows a job: `job_reader` reads the job's folder into a `model`, `html` and `chart` draw the model,
//! and `live` keeps the page up to date. The `planner` plans a job with the changes that a user chooses on its page.
//!
//! `metrics_tail` reads `metrics.jsonl` into `metrics` while the file grows. Each curve of `metrics` is a `series`, in
//! bounded memory. `view` holds the range of steps that the page shows.

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

pub use job_reader::StatusSource;
pub use live::serve;
pub use planner::{Planner, serve_planner};
pub use server::THREAD;
