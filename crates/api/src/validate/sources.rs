//! Where the corpus is: in `data.paths`, or in the sources of a mixture.

use std::collections::BTreeSet;

use super::Problems;
use super::names::is_dns_label;
use crate::job::{DataSource, PipelineJobSpec};

pub(super) fn check(spec: &PipelineJobSpec, problems: &mut Problems) {
    let Some(data) = &spec.data else { return };
    const AT: &str = "spec.data";
    let Some(sources) = &data.sources else {
        return problems.require(data.paths.is_some(), AT, || "has neither paths nor sources: give one of them".into());
    };
    problems.require(data.paths.is_none(), AT, || "has both paths and sources: remove one of them".into());
    let counts_epochs = spec.training.as_ref().is_some_and(|training| training.epochs.is_some());
    problems.require(!counts_epochs, "spec.training.epochs", || {
        "is given with data.sources, which have epochs of their own: give steps".into()
    });
    for (index, source) in sources.iter().enumerate() {
        let at = |field: &str| format!("{AT}.sources[{index}].{field}");
        problems.require(source.name.is_empty() || is_dns_label(&source.name), at("name"), || {
            format!(
                "\"{}\" is no name: use lower-case letters, digits and `-`, begin and end with a letter or digit",
                source.name.escape_debug()
            )
        });
        let steps: BTreeSet<u32> = source.weight_schedule.iter().map(|weight| weight.from_step).collect();
        problems.require(steps.len() == source.weight_schedule.len(), at("weightSchedule"), || {
            "has two weights from one step on: keep one of them".into()
        });
    }
    let names: BTreeSet<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    problems.require(names.len() == sources.len(), format!("{AT}.sources"), || {
        "has two sources of one name: give each a name of its own".into()
    });
    let changes: BTreeSet<u64> = sources.iter().flat_map(DataSource::weights).map(|(from, _)| from).collect();
    let without = changes.into_iter().find(|&index| sources.iter().all(|source| source.weight_at(index) == 0));
    problems.require(without.is_none(), format!("{AT}.sources"), || {
        let step = without.unwrap_or_default() + 1;
        format!("has no weight above 0 from step {step} on: nothing would be left to train on")
    });
}
