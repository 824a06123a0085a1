//! `spec.data.evaluation`: the held-out part of the corpus, and its evaluation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::path::SourcePath;
use super::source::SourceName;
use super::{DataFormat, default_number};

/// The held-out part of the corpus, and its evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSpec {
    /// The fraction of each source's documents that the job holds out. The seed and the content of a document decide
    /// whether it is held out. Defaults to 0.01 if neither `paths` nor `sets` is given, and to 0 otherwise. Mutually
    /// exclusive with `paths`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "minimum" = 0, "exclusiveMinimum" = true, "maximum" = 1, "exclusiveMaximum" = true,
            "x-expected" = "the held-out share lies above 0 and below 1 (remove `evaluation` to hold nothing out)"
        )
    )]
    pub fraction: Option<f64>,
    /// The files that the job holds out as a whole, as paths or globs like those of `data.paths`. Mutually exclusive
    /// with `fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        with = "Option<Vec<SourcePath>>",
        length(min = 1, max = 1000),
        extend("x-expected" = "name at least one file or glob")
    )]
    pub paths: Option<Vec<String>>,
    /// Additional held-out sets. The job reports a separate loss curve for each set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-validations" = [{
            "rule": "self.all(one, self.exists_one(other, other.name == one.name))",
            "message": "has two sets with the same name: give each a unique name",
        }])
    )]
    pub sets: Vec<EvaluationSet>,
    /// The number of steps between two evaluations.
    #[serde(default = "default_number::<100>")]
    #[schemars(range(min = 1))]
    pub every_steps: u32,
    /// The maximum number of sequences that an evaluation reads from each set. If unset, an evaluation reads all
    /// sequences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_sequences: Option<u32>,
    /// Whether the job keeps the checkpoint with the lowest held-out loss, in addition to those of
    /// `checkpoint.keepLast`. The loss is that of `fraction` or `paths`, or that of the first set in `sets` if neither
    /// is given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_best: bool,
    /// The number of consecutive evaluations without a lower held-out loss after which the job ends. If unset, the job
    /// trains all steps. The loss is the same as for `keepBest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub patience: Option<u32>,
}

/// A held-out set, whose loss is reported separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EvaluationSet {
    /// The name of the set in messages and metrics. It consists of lower-case letters, digits and `-`.
    #[schemars(with = "SourceName", extend("x-expected" = "name the set"))]
    pub name: String,
    /// The files of the set, as paths or globs like those of `data.paths`.
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
}

impl EvaluationSpec {
    /// Returns the fraction of each source's documents that the job holds out. 0 if only whole files are held out.
    pub fn held_out_fraction(&self) -> f64 {
        self.fraction.unwrap_or_else(|| self.default_fraction())
    }

    pub(crate) fn default_fraction(&self) -> f64 {
        if self.paths.is_none() && self.sets.is_empty() { 0.01 } else { 0.0 }
    }
}
