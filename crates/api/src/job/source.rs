//! `spec.data.sources`: the parts of a mixture.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::path::SourcePath;
use super::{DataFormat, default_number};

/// A part of a mixture: files, and their share of the training sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataSource {
    /// The name of the source in messages and metrics. It consists of lower-case letters, digits and `-`.
    #[schemars(with = "SourceName", extend("x-expected" = "name the source"))]
    pub name: String,
    /// The files of the source, as paths or globs like those of `data.paths`. No file may belong to two sources.
    #[schemars(
        with = "Vec<SourcePath>",
        length(min = 1, max = 100),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Vec<String>,
    /// The content of the records. Defaults to `data.format`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    /// The field or column that holds the text. Defaults to `data.textField`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), extend("x-expected" = "name the field or column that holds the text"))]
    pub text_field: Option<String>,
    /// The weight of the source. The source's share of the sequences is its weight divided by the sum of all sources'
    /// weights. At every step, the number of sequences that the job has read from a source differs from its share by at
    /// most one.
    #[serde(default = "default_number::<1>")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
    /// The weights that replace `weight` from later steps on, for example in a phase of annealing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 20),
        extend("x-kubernetes-validations" = [{
            "rule": "self.all(one, self.exists_one(other, other.fromStep == one.fromStep))",
            "message": "has two weights from one step on: keep one of them",
        }])
    )]
    pub weight_schedule: Vec<ScheduledWeight>,
    /// The action when the job has read all sequences of the source.
    #[serde(default)]
    pub on_exhausted: OnExhausted,
}

/// A weight, and the first step at which it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduledWeight {
    /// The first step with this weight. Steps are counted from 1.
    #[schemars(range(min = 2))]
    pub from_step: u32,
    /// The weight from this step on.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
}

string_enum! {
    /// The action when the job has read all sequences of a source.
    #[derive(Default)]
    pub enum OnExhausted {
        /// The job reads the source again, in another order.
        #[default]
        Repeat = "Repeat",
        /// Training ends before the first step that needs more sequences of the source.
        Stop = "Stop",
    }
}

/// The schema of the name of a source or of a held-out set. `validate::sources` has the same rule in Rust.
pub(super) struct SourceName;

impl JsonSchema for SourceName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SourceName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "minLength": 1,
            "maxLength": 63,
            "x-kubernetes-validations": [{
                "rule": "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
                "message": "is no name: use lower-case letters, digits and `-`, begin and end with a letter or digit",
            }],
        })
    }
}

impl DataSource {
    /// Returns pairs of a step and a weight, in ascending order of the steps. The step is the index (from 0) of the
    /// first step to which the weight applies.
    pub fn weights(&self) -> Vec<(u64, u64)> {
        let mut later: Vec<(u64, u64)> = self
            .weight_schedule
            .iter()
            .map(|scheduled| (u64::from(scheduled.from_step).saturating_sub(1), scheduled.weight.into()))
            .collect();
        later.sort_unstable();
        [(0, self.weight.into())].into_iter().chain(later).collect()
    }

    /// Returns the weight at the step with this index, from 0.
    pub(crate) fn weight_at(&self, index: u64) -> u64 {
        self.weights().iter().rev().find(|(from, _)| *from <= index).map_or(0, |(_, weight)| *weight)
    }
}
