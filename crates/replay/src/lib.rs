//! The replay of a run's steps, and the comparison of its results with the record. `record` reads a run's folder,
//! `scratch` is the folder of a replay, `replayed_job` makes its job, and `replayed` trains the steps. Three modules
//! are pure: `compare` finds the first difference between two records, `chain` checks a record against its receipts,
//! and `intervals` chooses the intervals that `stagecoach audit` replays. [`blame`] finds the contribution of each
//! document to a step's loss and gradient.

pub mod blame;
mod chain;
mod compare;
mod divergence;
mod dump;
mod intervals;
mod job_config;
mod record;
mod replayed;
mod replayed_job;
mod scratch;

pub use chain::check_chain;
pub use compare::{ReplayDifference, compare_checkpoints, compare_results, compare_steps, compare_tensors};
pub use divergence::{first_divergence, first_divergent_tensor, stage_of};
pub use dump::write_dump;
pub use intervals::{Interval, intervals, sample};
pub use record::{RecordedCheckpoint, RunRecord};
pub use replayed::{ReplayConfig, ReplayOptions, Replayed, replay};
