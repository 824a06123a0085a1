//! The job of a replay.

use anyhow::bail;
use stagecoach_api::PipelineJob;
use stagecoach_api::job::{PartitionSpec, RestartSpec, ScheduleSpec, StreamingMode, StreamingSpec};
use stagecoach_planner::recorded_gradient_blocks;

use super::record::{RecordedCheckpoint, RunRecord};

/// Returns the job of the replay: the run's job, changed so that it ends with step `until`, saves a checkpoint only of
/// that step, and has one replica, no spares, no restarts and no audits. The job has `stages` stages if the value is
/// given.
pub(super) fn replayed_job(
    record: &RunRecord,
    base: Option<&RecordedCheckpoint>,
    until: u64,
    stages: Option<u32>,
    folder: &str,
) -> anyhow::Result<PipelineJob> {
    let mut spec = record.job.spec.clone();
    spec.suspend = false;
    spec.active_deadline_seconds = None;
    // a restart is useless, because a step that fails would fail again, and a policy may permit restarts without limit
    spec.restart = RestartSpec {
        max_restarts: 0,
        min_data_parallel: None,
        pod_failure_policy: None,
        exit_codes: Vec::new(),
        ..spec.restart
    };
    spec.storage = Default::default();
    spec.storage.path = Some(folder.to_owned());
    spec.checkpoint.every_steps = 0;
    spec.checkpoint.memory = None;
    spec.pipeline.memory_limit = None;
    let stages = stages.unwrap_or(spec.stages);
    // a schedule in a file is for the stages, and for the microbatches of one of the run's replicas
    if stages != spec.stages || spec.data_parallel > 1 {
        spec.pipeline.schedule = ScheduleSpec::default();
        spec.pipeline.partition = PartitionSpec::default();
        spec.pipeline.virtual_stages = None;
    }
    spec.stages = stages;
    (spec.data_parallel, spec.elastic, spec.spares) = (1, None, 0);
    if let (Some(data), Some(streams)) = (&mut spec.data, record.streams()) {
        let mode = if streams { StreamingMode::Always } else { StreamingMode::Never };
        data.streaming = Some(StreamingSpec { mode, ..data.streaming_or_default() });
    }
    if let Some(evaluation) = spec.data.as_mut().and_then(|data| data.evaluation.as_mut()) {
        (evaluation.keep_best, evaluation.patience) = (false, None);
    }
    if let Some(training) = &mut spec.training {
        training.audit = None;
        (training.steps, training.epochs) = (Some(until), None);
        training.gradient_blocks = Some(match record.checkpoints.last() {
            Some(newest) => recorded_gradient_blocks(&newest.manifest.metadata.identity) as u32,
            // the run's number of replicas determines the number of its blocks
            None => training.gradient_blocks(record.job.spec.data_parallel),
        });
        let rate = &mut training.learning_rate;
        match (base, record.checkpoints.last()) {
            // the checkpoint from which the replay starts records the decay
            (Some(_), _) => rate.decay_steps = None,
            (None, Some(RecordedCheckpoint { state, .. })) => {
                if let Some(extension) = state.extensions.iter().find(|extension| extension.from < until) {
                    bail!(
                        "the steps after step {} were added with another decay of the learning rate, so a replay of \
                         these steps begins at a checkpoint of that step or a later one: there is none before step \
                         {until}",
                        extension.from
                    );
                }
                // a decay can't end before the warm-up
                rate.decay_steps = Some(state.decay_steps.max(rate.warmup_steps));
            }
            (None, None) => {
                let steps = record.job.spec.training.as_ref().and_then(|training| training.steps);
                rate.decay_steps = rate.decay_steps.or(steps.map(|steps| steps.max(rate.warmup_steps)));
            }
        }
    }
    Ok(PipelineJob { spec, ..PipelineJob::new("replay", record.job.spec.clone()) })
}

#[cfg(test)]
mod tests {
    use stagecoach_launcher::JobFolder;
    use stagecoach_planner::check_job;

    use super::*;

    /// Returns the replay of the sample job with the changes `set`. The run has no checkpoint.
    fn replay_of(set: &[(&str, &str)]) -> PipelineJob {
        let folder = tempfile::tempdir().unwrap();
        let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let sample = include_str!("../../../manifests/samples/shakespeare.yaml");
        let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap();
        check_job(&job).unwrap();
        std::fs::write(JobFolder::resolved_job_in(folder.path()), job.to_yaml().unwrap()).unwrap();
        let record = RunRecord::open(folder.path()).unwrap();
        replayed_job(&record, None, 5, None, ".replay/scratch").unwrap()
    }

    #[test]
    fn a_replay_has_one_replica_and_the_blocks_of_the_run() {
        let csv = ("pipeline.schedule", "{type: Csv, csv: {path: schedule.csv}}");
        let fixed = [csv, ("dataParallel", "3"), ("restart.minDataParallel", "2"), ("spares", "1")];
        let elastic = [csv, ("elastic", "{minDataParallel: 1, maxDataParallel: 3}")];
        for set in [&fixed[..], &elastic] {
            let job = replay_of(set);
            check_job(&job).unwrap();
            assert_eq!((job.spec.data_parallel, job.spec.elastic, job.spec.spares), (1, None, 0));
            assert_eq!(job.spec.pipeline.schedule, ScheduleSpec::default());
            assert_eq!(job.spec.training.unwrap().gradient_blocks, Some(4), "three replicas share four blocks");
        }
        let single = replay_of(&[csv]);
        check_job(&single).unwrap();
        assert!(matches!(single.spec.pipeline.schedule, ScheduleSpec::Csv(_)), "{:?}", single.spec.pipeline.schedule);
        assert_eq!(single.spec.training.unwrap().gradient_blocks, Some(1));
    }
}
