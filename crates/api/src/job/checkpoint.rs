//! `spec.checkpoint` and `spec.storage`: the intervals, the mode and the location of checkpoints, and the source of the
//! initial weights.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::path::{ModelPath, VolumePath};

/// The interval, the mode and the retention of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CheckpointSpec {
    /// The number of steps between two checkpoints. The job also saves a checkpoint after the last step and at a
    /// graceful stop. If 0, the job saves only these checkpoints.
    pub every_steps: u64,
    /// The number of newest checkpoints that the job keeps.
    #[schemars(
        range(min = 1),
        extend("x-expected" = "keep at least 1 checkpoint: without one, a restart begins at step 0")
    )]
    pub keep_last: u32,
    /// The interval, in steps, between checkpoints that the job never removes. For each multiple of the interval, the
    /// job keeps the first checkpoint at or after it. If 0, the job keeps no such checkpoints.
    pub keep_every: u64,
    /// Whether training continues while the stages write a checkpoint.
    pub mode: CheckpointMode,
    /// The checkpoints that the stages keep in memory. The replacement of a lost stage restores its state from these
    /// checkpoints. If unset, the stages keep no checkpoints in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryCheckpointSpec>,
    /// The source of the initial weights. The optimizer begins with its initial state. Mutually exclusive with a
    /// `model` of type Pretrained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFromSpec>,
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            every_steps: 100,
            keep_last: 3,
            keep_every: 0,
            mode: CheckpointMode::Async,
            memory: None,
            init_from: None,
        }
    }
}

/// Checkpoints in memory. Each stage keeps a copy of its state and sends another copy to the next stage. Both keep
/// these copies until newer copies are complete. A stage that replaces a lost stage reads its state from such a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryCheckpointSpec {
    /// The number of steps between two checkpoints in memory. If Auto, the trainer chooses the smallest number with
    /// which these checkpoints take less than 2 % of the time.
    pub every_steps: StepInterval,
}

/// A number of steps, or `Auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepInterval {
    /// The trainer chooses the number by measurement.
    Auto,
    /// A number of steps, at least 1.
    Steps(u32),
}

impl Serialize for StepInterval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StepInterval::Auto => serializer.serialize_str("Auto"),
            StepInterval::Steps(steps) => serializer.serialize_u32(*steps),
        }
    }
}

impl<'de> Deserialize<'de> for StepInterval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = StepInterval;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a number of steps, at least 1, or Auto")
            }

            fn visit_u64<E: de::Error>(self, steps: u64) -> Result<StepInterval, E> {
                match u32::try_from(steps) {
                    Ok(steps @ 1..) => Ok(StepInterval::Steps(steps)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(steps), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, steps: i64) -> Result<StepInterval, E> {
                match u64::try_from(steps) {
                    Ok(steps) => self.visit_u64(steps),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(steps), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<StepInterval, E> {
                match text {
                    "Auto" => Ok(StepInterval::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for StepInterval {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "StepInterval".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 1,
            "maximum": u32::MAX,
            "pattern": "^Auto$",
        })
    }
}

string_enum! {
    /// Whether training continues while the stages write a checkpoint.
    #[derive(Default)]
    pub enum CheckpointMode {
        /// Stages copy their state at the end of the step, and write it while training continues.
        #[default]
        Async = "Async",
        /// Training waits until the checkpoint is committed.
        Sync = "Sync",
    }
}

/// The source of initial weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InitFromSpec {
    /// The folder of a job, a checkpoint or a Hugging Face model, relative to the volume's root, or
    /// `hf://OWNER/NAME[@REVISION]` for a model of the Hugging Face hub. If the folder is a job's, the trainer reads
    /// the newest checkpoint of that job.
    #[schemars(with = "ModelPath")]
    pub path: String,
}

/// The location of checkpoints and results.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageSpec {
    /// The job's folder, relative to the volume's root. Defaults to the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<VolumePath>")]
    pub path: Option<String>,
    /// The PersistentVolumeClaim that holds the job's folder in a cluster. On a single machine, `--workspace` names the
    /// folder that serves as the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaim>,
}

/// A PersistentVolumeClaim in the job's namespace. All stages must be able to write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistentVolumeClaim {
    /// The name of the PersistentVolumeClaim, in the job's namespace. All stages must be able to write to its volume.
    #[schemars(length(min = 1, max = 253), extend("x-expected" = "name a claim in the job's namespace"))]
    pub claim_name: String,
}
