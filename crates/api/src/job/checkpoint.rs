//! `spec.checkpoint` and `spec.storage`: what is saved when, and where.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path::VolumePath;

/// When checkpoints are written, how, and how many stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// Steps between two checkpoints; the last step and a graceful stop save too. 0 saves only then.
    pub every_steps: u64,
    /// How many of the newest stay.
    #[schemars(range(min = 1))]
    pub keep_last: u32,
    /// The first checkpoint at or after every multiple of so many steps stays for good; 0 keeps none for good.
    pub keep_every: u64,
    /// Whether training goes on while a checkpoint is written.
    pub mode: CheckpointMode,
    /// Another job's weights to start from, with a fresh optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFromSpec>,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self { every_steps: 100, keep_last: 3, keep_every: 0, mode: CheckpointMode::Async, init_from: None }
    }
}

string_enum! {
    /// Whether training goes on while a checkpoint is written.
    #[derive(Default)]
    pub enum CheckpointMode {
        /// Copied at the step's boundary, written behind training.
        #[default]
        Async = "Async",
        /// Training waits for the commit.
        Sync = "Sync",
    }
}

/// A checkpoint of another job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitFromSpec {
    /// A job's folder (its newest checkpoint) or a checkpoint's, relative to the volume's root.
    #[schemars(with = "VolumePath")]
    pub path: String,
}

/// Where checkpoints and results lie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageSpec {
    /// The job's folder, relative to the volume's root; the job's name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumePath>")]
    pub path: Option<String>,
    /// The claim that is the volume, in a cluster. Locally `--workspace` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaim>,
}

/// A claim in the job's namespace, writable by all stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistentVolumeClaim {
    /// The claim's name.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}
