//! The held-out sets, and the sequences that an evaluation reads from them.

use std::ops::Range;
use std::sync::Arc;

use super::Dataset;
use super::microbatch::{BatchPlan, IGNORE_INDEX, Row};
use crate::config::DataConfig;
use crate::order;
use crate::sequences::Sequences;

/// A held-out set, as an evaluation reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldOutSet {
    /// The name of the set or of the source; empty for a held-out part without a name.
    pub name: String,
    /// Whether the targets of the set count towards the job's held-out loss.
    pub counts: bool,
    /// The microbatches of the sequences, in the order of the corpus. The last microbatch may have fewer rows than the
    /// requested number.
    pub plan: BatchPlan,
}

/// The held-out sequences of one set.
pub(super) struct HeldOutSequences {
    name: String,
    counts: bool,
    is_of_files: bool,
    sequences: Arc<Sequences>,
    /// The number of held-out sequences among `sequences`.
    count: u64,
    /// The indices of the sequences that an evaluation reads, in ascending order.
    evaluated: Vec<u64>,
}

impl Dataset {
    /// Holds out all `sequences`. If an evaluation reads only some of the sequences, the seed selects them.
    pub(super) fn hold_out(&mut self, name: String, is_of_files: bool, sequences: Sequences, config: &DataConfig) {
        let count = sequences.count;
        let evaluated = match config.evaluation_max_sequences.filter(|&max| max < count) {
            Some(max) => {
                let mut selected: Vec<u64> = (0..max).map(|at| order::sequence_at(config.seed, at, count)).collect();
                selected.sort_unstable();
                selected
            }
            None => (0..count).collect(),
        };
        let sequences = Arc::new(sequences);
        self.held_out.push(HeldOutSequences { name, counts: false, is_of_files, sequences, count, evaluated });
    }

    /// Holds out the sequences in `range`, which are the last sequences of a source. An evaluation reads at most the
    /// first `max` held-out sequences, or all if `max` is `None`.
    pub(super) fn hold_out_end(
        &mut self,
        name: String,
        sequences: &Arc<Sequences>,
        range: Range<u64>,
        max: Option<u64>,
    ) {
        let count = range.end - range.start;
        let evaluated = (range.start..range.start + max.unwrap_or(u64::MAX).min(count)).collect();
        let (counts, is_of_files, sequences) = (false, false, Arc::clone(sequences));
        self.held_out.push(HeldOutSequences { name, counts, is_of_files, sequences, count, evaluated });
    }

    /// Selects the sets that count towards the job's held-out loss. These are all sets except named sets of files, or
    /// the first set if there are only named sets of files.
    pub(super) fn choose_held_out_loss(&mut self, config: &DataConfig) {
        let named = config.held_out_files.iter().filter(|files| !files.name.is_empty()).count();
        let counting = (self.held_out.len() - named).max(1);
        self.held_out.iter_mut().take(counting).for_each(|set| set.counts = true);
    }

    /// Returns the number of held-out sequences, on which the job never trains.
    pub fn evaluation_sequences(&self) -> u64 {
        self.held_out.iter().map(|set| set.count).sum()
    }

    /// Returns the name and the number of sequences of each set of held-out files.
    pub fn held_out_files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.held_out.iter().filter(|set| set.is_of_files).map(|set| (set.name.as_str(), set.count))
    }

    /// Returns the held-out sets, in microbatches of `rows` rows. The list is empty if nothing is held out.
    pub fn evaluation_sets(&self, rows: usize) -> Vec<HeldOutSet> {
        let set = |set: &HeldOutSequences| {
            let row = |&index: &u64| Row { sequences: Arc::clone(&set.sequences), index, source: None };
            let all: Vec<Row> = set.evaluated.iter().map(row).collect();
            let plan = self.plan(all.chunks(rows.max(1)).map(<[Row]>::to_vec).collect());
            HeldOutSet { name: set.name.clone(), counts: set.counts, plan }
        };
        self.held_out.iter().map(set).collect()
    }

    /// Returns the unigram entropy, in nats, of the targets of the job's held-out loss, or 0 if nothing is held out.
    /// The entropy is the smallest loss that a prediction can reach without any input.
    pub fn evaluation_unigram_entropy(&self) -> f64 {
        let mut counts: Vec<u64> = Vec::new();
        for HeldOutSet { plan, .. } in self.evaluation_sets(1).into_iter().filter(|set| set.counts) {
            for index in 0..plan.layouts.len() {
                let targets = self.microbatch(&plan, index).targets.into_iter();
                for target in targets.filter(|&target| target != IGNORE_INDEX) {
                    let target = target as usize;
                    counts.resize(counts.len().max(target + 1), 0);
                    counts[target] += 1;
                }
            }
        }
        let total = counts.iter().sum::<u64>() as f64;
        let share = |&count: &u64| count as f64 / total;
        counts.iter().filter(|&&count| count > 0).map(share).map(|share| -share * share.ln()).sum()
    }
}
