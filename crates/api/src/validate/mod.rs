//! The rules of a spec that its types can't express. A message states the finding and the change to make.

mod bounds;
mod cluster;
mod combinations;
mod conversations;
mod layout;
mod names;
mod sources;
mod template;

use std::fmt;

use crate::job::{PipelineJob, PipelineJobSpec, TrainerType};

/// A problem of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's full path: `spec.training.microbatches`.
    pub field: String,
    /// The finding, and the change to make.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Collects problems.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem unless the rule holds.
    fn require(&mut self, holds: bool, field: impl Into<String>, message: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Problem { field: field.into(), message: message() });
        }
    }
}

impl PipelineJob {
    /// Returns all problems of the job: of its name, its folder and its spec. The list is empty if the job can run.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        names::check(&self.metadata.name, &self.spec, &mut problems);
        names::check_folder(self, &mut problems);
        problems.0.extend(self.spec.validate());
        problems.0
    }
}

impl PipelineJobSpec {
    /// Returns all problems of the spec. The list is empty if the job can run.
    pub fn validate(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        trainer_matches(self, &mut problems);
        bounds::check(self, &mut problems);
        combinations::check(self, &mut problems);
        sources::check(self, &mut problems);
        conversations::check(self, &mut problems);
        layout::check(self, &mut problems);
        cluster::check(self, &mut problems);
        template::check(self, &mut problems);
        problems.0
    }
}

/// Checks that the job has model, data and training for the built-in trainer, and none of them for a custom trainer.
fn trainer_matches(spec: &PipelineJobSpec, problems: &mut Problems) {
    let parts = [
        ("spec.model", spec.model.is_some()),
        ("spec.data", spec.data.is_some()),
        ("spec.training", spec.training.is_some()),
    ];
    for (field, given) in parts {
        match spec.trainer.kind {
            TrainerType::BuiltIn => problems.require(given, field, || {
                "is missing: the built-in trainer needs it (or set spec.trainer.type to Custom to bring your own)".into()
            }),
            TrainerType::Custom => problems.require(!given, field, || {
                "is for the built-in trainer, but spec.trainer.type is Custom: remove it; the template's command configures a custom trainer".into()
            }),
        }
    }
}
