//! Replays steps of a run, and compares the results with the record. `record` reads a run's folder, `scratch` is the
//! folder of a replay, and `replay` trains the steps in it. `compare`, `chain` and `intervals` are pure: the first
//! difference between two records, the check of a record against its receipts, and the choice of intervals for an
//! audit.

mod chain;
mod compare;
mod divergence;
mod dump;
mod intervals;
mod record;
mod replayed;
mod scratch;

pub(crate) use chain::check_chain;
pub(crate) use compare::{Difference, compare_checkpoints, compare_results, compare_steps, compare_tensors};
pub(crate) use divergence::{first_divergence, first_divergent_tensor, stage_of};
pub(crate) use intervals::{Interval, intervals, sample};
pub(crate) use record::{RecordedCheckpoint, RunRecord};
pub(crate) use replayed::{ReplayConfig, Replayed, environment_differences, replay};
