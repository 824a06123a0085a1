//! Checks the corpus in `data.paths` or in the sources of a mixture, the held-out part, and the requirements of a
//! stream.

use std::collections::BTreeSet;

use super::Problems;
use super::names::is_dns_label;
use crate::job::{DataSource, DataSpec, EvaluationSpec, OnExhausted, PipelineJobSpec, StreamingMode};

const AT: &str = "spec.data";

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let Some(data) = &spec.data else { return };
    if let Some(evaluation) = &data.evaluation {
        check_evaluation(evaluation, problems);
    }
    let counts_epochs = spec.training.as_ref().is_some_and(|training| training.epochs.is_some());
    check_streaming(data, counts_epochs, problems);
    let Some(sources) = &data.sources else {
        return problems.require(data.paths.is_some(), AT, || "has neither paths nor sources: give one of them".into());
    };
    problems.require(data.paths.is_none(), AT, || "has both paths and sources: remove one of them".into());
    problems.require(!counts_epochs, "spec.training.epochs", || {
        "is given with data.sources, which have epochs of their own: give steps".into()
    });
    for (index, source) in sources.iter().enumerate() {
        let steps: BTreeSet<u32> = source.weight_schedule.iter().map(|weight| weight.from_step).collect();
        let is_unique = steps.len() == source.weight_schedule.len();
        problems.require(is_unique, format!("{AT}.sources[{index}].weightSchedule"), || {
            "has two weights from one step on: keep one of them".into()
        });
    }
    let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    check_names(&names, &format!("{AT}.sources"), "sources", problems);
    let changes: BTreeSet<u64> = sources.iter().flat_map(DataSource::weights).map(|(from, _)| from).collect();
    let without = changes.into_iter().find(|&index| sources.iter().all(|source| source.weight_at(index) == 0));
    problems.require(without.is_none(), format!("{AT}.sources"), || {
        let step = without.unwrap_or_default() + 1;
        format!("every source has weight 0 from step {step} on: give at least one source a weight above 0")
    });
}

fn check_evaluation(evaluation: &EvaluationSpec, problems: &mut Problems) {
    let at = format!("{AT}.evaluation");
    let names: Vec<&str> = evaluation.sets.iter().map(|set| set.name.as_str()).collect();
    check_names(&names, &format!("{at}.sets"), "sets", problems);
    let is_one = evaluation.fraction.is_none() || evaluation.paths.is_none();
    problems.require(is_one, at, || "has both fraction and paths: remove one of them".into());
}

/// Refuses the mode Always together with a length that depends on the whole corpus.
fn check_streaming(data: &DataSpec, counts_epochs: bool, problems: &mut Problems) {
    if data.streaming_or_default().mode != StreamingMode::Always {
        return;
    }
    let at = format!("{AT}.streaming.mode");
    problems.require(!counts_epochs, &at, || {
        "is Always, but training.epochs is given, and the number of sequences of a stream is not known beforehand: set \
         training.steps, or mode Never or Auto"
            .into()
    });
    for source in data.sources.iter().flatten() {
        problems.require(source.on_exhausted != OnExhausted::Stop, &at, || {
            format!(
                "is Always, but source \"{}\" has onExhausted: Stop, and a stream can't know where a source ends: set \
                 onExhausted: Repeat, or mode Never or Auto",
                source.name.escape_debug()
            )
        });
    }
}

/// Checks that names are DNS labels and differ. `at` is the field of their list, and `what` names the items in a
/// message.
fn check_names(names: &[&str], at: &str, what: &str, problems: &mut Problems) {
    for (index, name) in names.iter().enumerate() {
        problems.require(name.is_empty() || is_dns_label(name), format!("{at}[{index}].name"), || {
            format!(
                "\"{}\" is no name: use lower-case letters, digits and `-`, begin and end with a letter or digit",
                name.escape_debug()
            )
        });
    }
    let different: BTreeSet<&&str> = names.iter().collect();
    problems.require(different.len() == names.len(), at, || {
        format!("has two {what} with the same name: give each a unique name")
    });
}
