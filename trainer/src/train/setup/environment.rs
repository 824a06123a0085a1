//! The comparison of the environments of checkpoints and stages. An environment consists of the facts, besides the job,
//! on which the last bits of results depend, such as the processor and the number of threads.

use serde_json::Value;
use stagecoach_group::Member;
use stagecoach_planner::{TrainerState, environment_differences};

use crate::train::collective::{all_gather, topic};
use crate::train::leave::LeaveReason;

/// Compares `before`, the environment of a checkpoint, with `now`, the environment of this stage. Records each
/// difference in `state`, the trainer state of the checkpoint. Returns a message for the user if there is a difference.
pub(in crate::train) fn compare_with_checkpoint(
    state: &mut TrainerState,
    before: &Value,
    now: &Value,
) -> Option<String> {
    let changed = environment_differences(before, now);
    let sentence = (!changed.is_empty()).then(|| {
        format!(
            "the checkpoint is of another environment ({}): from here on the numbers may differ in their last bits",
            changed.join(", ")
        )
    });
    changed.into_iter().for_each(|change| state.add_environment_difference(change));
    sentence
}

/// Compares the environment of every stage with the environment of the first one. `names` are the names of the stages.
/// All stages record the same differences in `state`. Returns the environment of each stage and, if they differ, a
/// message for the user.
///
/// # Errors
/// If the group has failed.
pub(in crate::train) fn compare_stages(
    member: &Member,
    names: &[String],
    state: &mut TrainerState,
    own: &Value,
) -> Result<(Option<String>, Vec<Value>), LeaveReason> {
    let stages: Vec<Value> = all_gather(member, topic::ENVIRONMENT, own)?;
    Ok((record_stage_differences(names, state, &stages), stages))
}

fn record_stage_differences(names: &[String], state: &mut TrainerState, stages: &[Value]) -> Option<String> {
    let first = stages.first()?;
    let stage_differences = |(name, stage)| {
        environment_differences(first, stage).into_iter().map(move |other| format!("{name} has {other}"))
    };
    let found: Vec<String> = names.iter().zip(stages).flat_map(stage_differences).collect();
    let sentence = (!found.is_empty()).then(|| {
        format!(
            "the stages run in different environments ({}; the other is {}'s). The last bits of the results therefore \
             depend on which layers a stage has",
            found.join(", "),
            names[0]
        )
    });
    found.into_iter().for_each(|difference| state.add_environment_difference(difference));
    sentence
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changes_bits_is_reported_by_name() {
        let now =
            json!({ "version": "2", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1, "gpu": "" });
        let compare = |before: Value| {
            let mut state = TrainerState::default();
            let sentence = compare_with_checkpoint(&mut state, &before, &now);
            (sentence, state.environment_differences)
        };
        assert_eq!(compare(now.clone()), (None, vec![]));
        let other_version = json!({ "version": "1", "kernels": 1, "isa": "AVX512 AMD", "device": "Cpu", "threads": 1 });
        assert_eq!(compare(other_version), (None, vec![]));
        let before = json!({ "version": "1", "isa": "AVX2 Intel", "device": "Cpu", "threads": 2, "gpu": "H100" });
        let (sentence, recorded) = compare(before);
        assert_eq!(
            sentence.unwrap(),
            "the checkpoint is of another environment (version of the kernels 1 instead of none, CPU AVX512 AMD instead of \
             AVX2 Intel, GPU none instead of H100, threads 1 instead of 2): from here on the numbers may differ in their last \
             bits"
        );
        assert_eq!(recorded.last().map(String::as_str), Some("threads 1 instead of 2"));
    }

    #[test]
    fn stages_that_differ_are_named_and_remembered() {
        let [one, two] = ["AVX512 AMD", "AVX2 AMD"].map(|isa| json!({ "kernels": 1, "isa": isa }));
        let mut state = TrainerState::default();
        let names = [0, 1, 2].map(|stage| format!("stage {stage}"));
        assert_eq!(record_stage_differences(&names, &mut state, &[one.clone(), one.clone()]), None);
        let sentence = record_stage_differences(&names, &mut state, &[one.clone(), one.clone(), two.clone()]).unwrap();
        assert!(sentence.contains("stage 2 has CPU AVX2 AMD instead of AVX512 AMD"), "{sentence}");
        record_stage_differences(&names, &mut state, &[one.clone(), one, two]);
        assert_eq!(state.environment_differences, ["stage 2 has CPU AVX2 AMD instead of AVX512 AMD"]);
    }
}
