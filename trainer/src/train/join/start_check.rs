//! The checks by which the leader of a group refuses a job before training, except the checks that read texts. The
//! launcher runs these checks before it removes anything. The leader calls the same functions.

use stagecoach_data::check_sources;
use stagecoach_engine::StageError;
use stagecoach_model::{Architecture, ParameterSpec};
use stagecoach_pipeline::RankSpeeds;
use stagecoach_planner::{JobConfig, plan_pipeline};

use crate::train::join::initial_model::resolve_initial_weights;

/// The bytes of a parameter in a checkpoint: its weight and both moments of AdamW, each as F32.
const BYTES_PER_PARAMETER: u64 = 12;

/// Checks the paths of the corpus, of the tokenizer and of the initial weights. Also checks the plan, and that a
/// checkpoint fits into the `available_bytes` of the volume. A tokenizer that is not trained yet counts as a vocabulary
/// of one token.
///
/// # Errors
/// The first reason for which the leader would refuse the job.
pub(crate) fn check_start(config: &JobConfig, available_bytes: Option<u64>) -> Result<(), StageError> {
    let tokenizer_size = check_sources(&config.data_config())?;
    let tokenizer = config.tokenizer_file();
    let vocab_size = match tokenizer_size {
        Some(size) => Some(config.vocab_size(size)?),
        None => config.model.vocab_size(),
    };
    let plan = |vocab_size| {
        let architecture = config.architecture(vocab_size, tch::Device::Cpu);
        let stages = config.job.spec.stages as usize;
        plan_pipeline(config, architecture.as_ref(), stages, &RankSpeeds::default()).map(drop)
    };
    let architecture = config.architecture(vocab_size.unwrap_or(1), tch::Device::Cpu);
    if let Err(refusal) = plan(vocab_size.unwrap_or(1)) {
        // The figures in `refusal` are for a vocabulary of one token. The leader would report the figures for the
        // largest vocabulary, so plan again with that vocabulary.
        return plan(config.planned_vocab_size()?).and(Err(refusal));
    }
    resolve_initial_weights(config, vocab_size, tokenizer.as_deref(), &mut Vec::new())?;
    check_space(config, architecture.as_ref(), || available_bytes)
}

/// Checks that the volume has room for one checkpoint, if its available bytes are known. Without that room, training
/// could not save its results.
///
/// # Errors
/// If the volume has too little room. The error has the needed and the available bytes.
pub(in crate::train) fn check_space(
    config: &JobConfig,
    architecture: &dyn Architecture,
    available_bytes: impl FnOnce() -> Option<u64>,
) -> Result<(), StageError> {
    let needed = BYTES_PER_PARAMETER * architecture.all_parameter_specs().iter().map(ParameterSpec::numel).sum::<u64>();
    match available_bytes() {
        Some(available) if available < needed => Err(StageError::invalid(format!(
            "a checkpoint of this job has {needed} bytes, and its volume has {available} bytes free in {}: make room, or give \
             the job a larger volume",
            config.folder().display()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stagecoach_api::contract::FailureKind;

    use super::*;

    #[test]
    fn a_volume_without_room_for_one_checkpoint_is_refused_with_both_figures() {
        let sample = include_str!("../../../../manifests/samples/shakespeare.yaml");
        let job = stagecoach_api::parse_with(sample, "shakespeare.yaml", &[]).unwrap();
        let config = JobConfig::new(job, Path::new("/workspace")).unwrap();
        let architecture = config.architecture(4096, tch::Device::Cpu);
        let check = |available| check_space(&config, architecture.as_ref(), || available);
        let needed = 12 * architecture.parameter_count();
        assert!([None, Some(needed), Some(u64::MAX)].into_iter().all(|available| check(available).is_ok()));
        let refused = check(Some(needed - 1)).unwrap_err();
        assert_eq!(refused.kind, FailureKind::InvalidConfig);
        for words in [needed.to_string(), (needed - 1).to_string(), "/workspace/".to_owned()] {
            assert!(refused.message.contains(&words), "{}", refused.message);
        }
    }
}
