//! Messages for the user about the job's settings and the length of its training.

use stagecoach_api::job::{LearningRateSpec, Precision, TrainingLength};
use stagecoach_data::Dataset;
use stagecoach_kernels as kernels;
use stagecoach_planner::JobConfig;

/// Returns a warning if bf16 saves memory but no time on this device, otherwise `None`.
fn bf16_warning(config: &JobConfig, device: tch::Device) -> Option<String> {
    let slow = config.training.precision == Precision::BFloat16
        && device == tch::Device::Cpu
        && !kernels::has_products(tch::Kind::BFloat16);
    slow.then(|| {
        format!(
            "this processor ({}) has neither AMX nor AVX512-BF16: BFloat16 is slower on it than Float32",
            kernels::cpu_capability()
        )
    })
}

/// Returns messages about settings that have no effect in this job, or no benefit on this device.
pub(super) fn ignored_settings(config: &JobConfig, device: tch::Device) -> Vec<String> {
    let spec = &config.job.spec;
    let memory = spec.checkpoint.memory.is_some() && spec.memory_checkpoints().is_none();
    let audit = config.training.audit.is_some() && spec.audit().is_none();
    let memory = memory
        .then(|| "no checkpoints in memory: they need a second stage, and restart.reformTimeoutSeconds above 0".into());
    let audit = audit.then(|| {
        "nothing is audited: training.audit needs a second stage, which recomputes the work of the first".into()
    });
    bf16_warning(config, device).into_iter().chain(memory).chain(audit).collect()
}

/// Returns messages about a length of training that the user may not have intended.
pub(super) fn length_notes(config: &JobConfig, training_sequences: Option<u64>) -> Vec<String> {
    let (steps, training) = (config.steps(training_sequences), &config.training);
    let read = steps * u64::from(training.global_batch_size);
    let mut notes = Vec::new();
    if let (Some(TrainingLength::Epochs(epochs)), Some(training_sequences)) = (training.length(), training_sequences)
        && let Some(repeated @ 1..) = read.checked_sub(u64::from(epochs) * training_sequences)
    {
        notes.push(format!(
            "{epochs} x {training_sequences} sequences do not fill {steps} batches of {}: the last one is filled \
             with {repeated} of the next epoch",
            training.global_batch_size
        ));
    }
    let LearningRateSpec { warmup_steps, .. } = training.learning_rate;
    if warmup_steps >= steps {
        notes.push(format!(
            "training.learningRate.warmupSteps is {warmup_steps}, and training has {steps} steps: the learning rate \
             never reaches its peak"
        ));
    }
    notes
}

/// Returns the number of steps, and messages about the epochs of the sources. Training ends early if a source with
/// `onExhausted: Stop` is exhausted.
pub(super) fn mixture_length(config: &JobConfig, dataset: &Dataset) -> (u64, Vec<String>) {
    let (steps, batch) = (config.steps(dataset.training_sequences()), u64::from(config.training.global_batch_size));
    let Some(sources) = &config.data.sources else { return (steps, Vec::new()) };
    let exhausted = dataset.exhausted_before(steps * batch);
    let end = exhausted.map_or(steps, |(position, _)| position / batch);
    let mut notes = Vec::new();
    if let Some((_, index)) = exhausted {
        let name = &sources[index].name;
        notes.push(format!("the source {name} is exhausted after step {end} of {steps}, and training ends there"));
    }
    let Some(lengths) = dataset.epoch_lengths() else { return (end, notes) };
    let epochs = sources.iter().zip(dataset.sequences_read(end * batch)).zip(lengths);
    let epochs: Vec<String> = epochs
        .map(|((source, read), epoch)| {
            format!("{} {:.2} epochs of {epoch} sequences", source.name, read as f64 / epoch as f64)
        })
        .collect();
    notes.push(format!("{end} steps read of the sources: {}", epochs.join(", ")));
    (end, notes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn notes(set: &[(&str, &str)], training_sequences: u64) -> Vec<String> {
        let set: Vec<_> = set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &set).unwrap();
        length_notes(&JobConfig::new(job, Path::new("/tmp")).unwrap(), Some(training_sequences))
    }

    #[test]
    fn a_length_that_its_author_may_not_have_meant_has_a_note() {
        let epoch = [("training.steps", "null"), ("training.epochs", "1"), ("training.globalBatchSize", "8")];
        let short = [&epoch[..], &[("training.learningRate.warmupSteps", "0")]].concat();
        let filled = notes(&short, 7);
        assert!(filled[0].contains("1 x 7 sequences do not fill 1 batches of 8: the last one is filled with 1 of"));
        assert_eq!((filled.len(), notes(&short, 8).len()), (1, 0));
        let warmup = |steps: &str| {
            let steps = ("training.steps", steps);
            notes(
                &[steps, ("training.learningRate.warmupSteps", "1000"), ("training.learningRate.decaySteps", "2000")],
                9,
            )
        };
        assert_eq!(warmup("1001"), Vec::<String>::new());
        assert!(
            warmup("5")[0].contains("warmupSteps is 1000, and training has 5 steps: the learning rate never reaches")
        );
    }
}
