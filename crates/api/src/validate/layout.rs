//! Whether partition, schedule and virtual stages fit the model and each other.

use crate::job::{ModelSpec, PartitionStrategy, PipelineJobSpec, ScheduleSpec};

use super::{Problems, names::volume_path};

/// Chunks of a stage: with the most stages, as many as `partition.layers` has room for.
const MAX_VIRTUAL_STAGES: u32 = 64;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    check_virtual_stages(spec, problems);
    check_partition(spec, problems);
    if let ScheduleSpec::Csv(csv) = &spec.pipeline.schedule {
        volume_path(&csv.path, "spec.pipeline.schedule.csv.path", problems);
    }
}

fn check_virtual_stages(spec: &PipelineJobSpec, problems: &mut Problems) {
    const FIELD: &str = "spec.pipeline.virtualStages";
    let (chunks, schedule) = (spec.pipeline.virtual_stages(), &spec.pipeline.schedule);
    if let Some(fixed) = schedule.fixed_chunks() {
        return problems.require(chunks == fixed.chunks, FIELD, || {
            format!("is {chunks}, but {} {}", schedule.name(), fixed.predicate)
        });
    }
    problems.require(chunks >= 1, FIELD, || "is 0; it must be at least 1".into());
    problems.require(chunks <= MAX_VIRTUAL_STAGES, FIELD, || {
        format!("is {chunks}; a stage has {MAX_VIRTUAL_STAGES} chunks at most")
    });
}

/// A list that adds up wrong is refused. One whose length no longer fits the stages gives way to Auto when a job was
/// scaled (`PipelineSpec::explicit_layers`), so it isn't refused.
fn check_partition(spec: &PipelineJobSpec, problems: &mut Problems) {
    const FIELD: &str = "spec.pipeline.partition.layers";
    let partition = &spec.pipeline.partition;
    let Some(layers) = &partition.layers else {
        return problems.require(partition.strategy == PartitionStrategy::Auto, FIELD, || {
            "is missing: with strategy Explicit, list the layers of each chunk".into()
        });
    };
    problems.require(partition.strategy == PartitionStrategy::Explicit, FIELD, || {
        "is given, but the strategy is Auto: remove the list or set strategy to Explicit".into()
    });
    problems.require(!layers.is_empty(), FIELD, || "is empty: list the layers of each chunk".into());
    if let Some(ModelSpec::Llama(llama)) = &spec.model {
        let sum: u64 = layers.iter().copied().map(u64::from).sum();
        let wanted = llama.num_hidden_layers;
        problems.require(layers.is_empty() || sum == u64::from(wanted), FIELD, || {
            format!("adds up to {sum}, but the model has {wanted} layers: {layers:?} must add up to {wanted}")
        });
    }
}
