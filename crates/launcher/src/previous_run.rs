//! The results of an earlier run in the job's folder, and whether this job may continue from them.

use stagecoach_api::job::ChangeEffect;
use stagecoach_api::{PipelineJob, PipelineJobSpec};
use stagecoach_checkpoint::{IdentityDifference, differences};
use stagecoach_telemetry::RunSummary;

use crate::folder::JobFolder;

/// The earlier run in the job's folder.
#[derive(Clone, Debug, PartialEq)]
pub enum PreviousRun {
    /// The folder has no result. Its last job is missing or has other settings.
    Nothing,
    /// An unfinished run of this job, possibly with another length.
    Unfinished,
    /// The result of this job with the same settings.
    Finished(RunSummary),
    /// The result of this job with another number of steps, or with another `data.evaluation.patience`, which may end a
    /// job before its last step.
    OtherLength(RunSummary),
    /// The result of a job with other settings. The value describes the first difference.
    OtherJob(String),
}

impl PreviousRun {
    /// Determines which earlier run of `job` the folder has.
    pub fn inspect(folder: &JobFolder, job: &PipelineJob) -> Self {
        // Earlier versions wrote the resolved job to `job.yaml`. A user's job file may have this name too.
        let older = folder.resolved_job().with_file_name("job.yaml");
        let text = std::fs::read_to_string(folder.resolved_job()).or_else(|_| std::fs::read_to_string(older)).ok();
        let old = text.and_then(|text| stagecoach_api::parse(&text, "job").ok());
        let length = |job: &PipelineJob| {
            let steps = job.spec.training.as_ref().and_then(|training| training.length());
            (steps, patience(&job.spec))
        };
        let same_length = old.as_ref().is_some_and(|old| length(old) == length(job));
        let difference = match &old {
            Some(old) => difference(old, job, same_length),
            None => Some(format!("{} can't be read", folder.resolved_job().display())),
        };
        match (folder.summary(), difference) {
            (None, Some(_)) => Self::Nothing, // the leader compares the job with the checkpoints, if there are any
            (None, None) => Self::Unfinished,
            (Some(_), Some(difference)) => Self::OtherJob(difference),
            (Some(summary), None) if same_length => Self::Finished(summary),
            (Some(summary), None) => Self::OtherLength(summary),
        }
    }
}

/// Returns `data.evaluation.patience`, or `None` if the job trains all steps.
fn patience(spec: &PipelineJobSpec) -> Option<u32> {
    spec.data.as_ref()?.evaluation.as_ref()?.patience
}

/// Returns a description of the first differing field that changes the results of a job. If the lengths of the jobs
/// differ, the function ignores the decay of the learning rate, which may then differ too. The leader compares the
/// decay with the checkpoint.
fn difference(old: &PipelineJob, new: &PipelineJob, same_length: bool) -> Option<String> {
    let effects: &[ChangeEffect] =
        if same_length { &[ChangeEffect::Identity, ChangeEffect::Extension] } else { &[ChangeEffect::Identity] };
    let [old, new] = [old, new].map(|job| job.spec.select(effects));
    let IdentityDifference { path, current, recorded } = differences(&new, &old).into_iter().next()?;
    let [was, now] = [recorded, current].map(|value| value.unwrap_or_default());
    Some(format!("spec.{path} was {was}, now {now}"))
}

#[cfg(test)]
mod tests {
    use super::super::supervisor::tests::job;
    use super::*;
    use crate::folder::write_file;

    #[test]
    fn the_patience_is_that_of_the_held_out_part() {
        let patience_with = |evaluation| patience(&job(&[("data.evaluation", evaluation)]).spec);
        assert_eq!(patience_with("{everySteps: 10, patience: 3}"), Some(3));
        assert_eq!((patience_with("{everySteps: 10}"), patience_with("null")), (None, None));
    }

    #[test]
    fn a_result_is_known_by_the_settings_that_decide_it() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::open(workspace.path(), None).unwrap();
        let job = |set: &[(&str, &str)]| job(set);
        assert_eq!(PreviousRun::inspect(&folder, &job(&[])), PreviousRun::Nothing);
        let summary = RunSummary {
            steps: 20,
            loss: Some(1.5),
            losses_hash: "aa".into(),
            weights_hash: "bb".into(),
            model: "mine/model".into(),
            ..RunSummary::default()
        };
        write_file(&folder.result(), &serde_json::to_string(&summary).unwrap()).unwrap();
        assert!(matches!(PreviousRun::inspect(&folder, &job(&[])), PreviousRun::OtherJob(_)));
        write_file(&folder.resolved_job(), &job(&[]).to_yaml().unwrap()).unwrap();
        let decay = ("training.learningRate.decaySteps", "40");
        let free = [
            ("stages", "1"),
            ("pipeline.schedule.type", "GPipe"),
            ("training.threads", "2"),
            ("checkpoint.everySteps", "7"),
        ];
        for same in free {
            assert_eq!(
                PreviousRun::inspect(&folder, &job(&[same])),
                PreviousRun::Finished(summary.clone()),
                "{same:?}"
            );
        }
        for longer in [&[("training.steps", "21")][..], &[("training.steps", "40"), decay]] {
            assert_eq!(PreviousRun::inspect(&folder, &job(longer)), PreviousRun::OtherLength(summary.clone()));
        }
        let other = PreviousRun::inspect(&folder, &job(&[decay]));
        assert_eq!(other, PreviousRun::OtherJob("spec.training.learningRate.decaySteps was null, now 40".into()));
        for (path, value) in [("data.evaluation.fraction", "0.25"), ("checkpoint.initFrom.path", "other")] {
            let other = PreviousRun::inspect(&folder, &job(&[(path, value)]));
            assert!(matches!(&other, PreviousRun::OtherJob(field) if field.starts_with("spec.")), "{path}: {other:?}");
        }
        write_file(&folder.resolved_job(), &job(&[("data.evaluation", "{}")]).to_yaml().unwrap()).unwrap();
        let patient = PreviousRun::inspect(&folder, &job(&[("data.evaluation", "{patience: 3}")]));
        assert_eq!(patient, PreviousRun::OtherLength(summary));
        write_file(&folder.resolved_job(), &job(&[]).to_yaml().unwrap()).unwrap();
        std::fs::rename(folder.resolved_job(), folder.root().join("job.yaml")).unwrap();
        let other = PreviousRun::inspect(&folder, &job(&[("training.learningRate.peak", "2e-3")]));
        assert_eq!(other, PreviousRun::OtherJob("spec.training.learningRate.peak was 0.001, now 0.002".into()));

        std::fs::remove_file(folder.result()).unwrap();
        assert_eq!(PreviousRun::inspect(&folder, &job(&[("training.steps", "21")])), PreviousRun::Unfinished);
        assert_eq!(
            PreviousRun::inspect(&folder, &job(&[("training.learningRate.peak", "2e-3")])),
            PreviousRun::Nothing
        );
    }
}
