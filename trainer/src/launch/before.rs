//! What an earlier run has left in the job's folder, and whether this job may go on from there.

use serde_json::Value;
use stagecoach_api::PipelineJob;
use stagecoach_checkpoint::{Difference, differences};

use super::JobFolder;
use crate::observe::Summary;

/// What was there already.
#[derive(Clone, Debug, PartialEq)]
pub enum Before {
    /// No result.
    Nothing,
    /// The result of this very job.
    Finished(Summary),
    /// The result of this job after another number of steps.
    OtherLength(Summary),
    /// The result of a job with other settings; the field that differs.
    OtherJob(String),
}

/// What may differ between two runs that compute the same.
const FREE: [(&str, &[&str]); 3] =
    [("model", &[]), ("data", &["evaluation"]), ("training", &["steps", "epochs", "device", "threads"])];

impl Before {
    /// Looks into the folder.
    pub fn look(folder: &JobFolder, job: &PipelineJob) -> Self {
        let Some(summary) = folder.summary() else { return Self::Nothing };
        let text = std::fs::read_to_string(folder.job()).ok();
        let Some(old) = text.and_then(|text| stagecoach_api::parse(&text, "job.yaml").ok()) else {
            return Self::OtherJob("its job.yaml can't be read".into());
        };
        if let Some(field) = difference(&old, job) {
            return Self::OtherJob(field);
        }
        let length = |job: &PipelineJob| job.spec.training.as_ref().and_then(|training| training.length());
        if length(&old) == length(job) { Self::Finished(summary) } else { Self::OtherLength(summary) }
    }
}

/// The first field in which two jobs differ such that they compute something else.
fn difference(old: &PipelineJob, new: &PipelineJob) -> Option<String> {
    let [old, new] = [old, new].map(|job| serde_json::to_value(&job.spec).unwrap_or_default());
    FREE.iter().find_map(|(part, free)| {
        let [old, new] = [&old, &new].map(|spec| {
            let mut value = spec.get(part).cloned().unwrap_or_default();
            if let Value::Object(fields) = &mut value {
                fields.retain(|name, _| !free.contains(&name.as_str()));
            }
            value
        });
        let Difference { path, ours, theirs } = differences(&new, &old).into_iter().next()?;
        let path = if path.is_empty() { format!("spec.{part}") } else { format!("spec.{part}.{path}") };
        let [was, now] = [theirs, ours].map(|value| value.unwrap_or_default());
        Some(format!("{path} was {was}, now {now}"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::folder::write;
    use super::super::supervise::tests::job;
    use super::*;

    #[test]
    fn a_result_is_known_by_the_settings_that_decide_it() {
        let workspace = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(workspace.path(), "mine").unwrap();
        let job = |set: &[(&str, &str)]| job(set);
        assert_eq!(Before::look(&folder, &job(&[])), Before::Nothing);
        let summary = Summary {
            steps: 20,
            loss: Some(1.5),
            evaluation_loss: None,
            unigram_entropy: None,
            losses_hash: "aa".into(),
            weights_hash: "bb".into(),
            skipped: 0,
            model: "mine/model".into(),
        };
        write(&folder.result(), &serde_json::to_string(&summary).unwrap()).unwrap();
        assert!(matches!(Before::look(&folder, &job(&[])), Before::OtherJob(_)));
        write(&folder.job(), &job(&[]).to_yaml().unwrap()).unwrap();
        for same in [("stages", "1"), ("pipeline.schedule.type", "GPipe"), ("training.threads", "2")] {
            assert_eq!(Before::look(&folder, &job(&[same])), Before::Finished(summary.clone()), "{same:?}");
        }
        assert_eq!(Before::look(&folder, &job(&[("training.steps", "21")])), Before::OtherLength(summary));
        let other = Before::look(&folder, &job(&[("training.learningRate.peak", "2e-3")]));
        assert_eq!(other, Before::OtherJob("spec.training.learningRate.peak was 0.001, now 0.002".into()));
    }
}
