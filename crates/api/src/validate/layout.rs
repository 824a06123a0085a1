//! Checks that the partition, the schedule and the virtual stages fit the model and each other.

use crate::job::{ModelSpec, PartitionStrategy, PipelineJobSpec};

use super::Problems;

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    check_virtual_stages(spec, problems);
    check_partition(spec, problems);
}

fn check_virtual_stages(spec: &PipelineJobSpec, problems: &mut Problems) {
    const FIELD: &str = "spec.pipeline.virtualStages";
    let (chunks, schedule) = (spec.pipeline.virtual_stages(), &spec.pipeline.schedule);
    if let Some(fixed) = schedule.fixed_chunks() {
        problems.require(chunks == fixed.chunks, FIELD, || {
            format!("is {chunks}, but {} {}", schedule.name(), fixed.predicate)
        });
    }
}

/// Refuses a partition whose layers do not add up to the layers of the model. A list of the wrong length is accepted,
/// because the number of stages may change: the planner then uses Auto (`PipelineSpec::explicit_layers`).
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
    if let Some(ModelSpec::Llama(llama)) = &spec.model {
        let sum: u64 = layers.iter().copied().map(u64::from).sum();
        let wanted = llama.num_hidden_layers;
        problems.require(layers.is_empty() || sum == u64::from(wanted), FIELD, || {
            format!("adds up to {sum}, but the model has {wanted} layers: {layers:?} must add up to {wanted}")
        });
    }
}
