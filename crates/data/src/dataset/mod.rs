//! Batches of tokens: the sequences of a step's microbatches, and their token ids.

mod evaluation;
mod microbatch;
mod open;
mod stream;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::DataError;
use crate::mapped::TokenFiles;
use crate::mixture::Mixture;
use crate::order;
use crate::sequences::Sequences;
use crate::streaming::SourceStream;
use evaluation::HeldOutSequences;
pub use evaluation::HeldOutSet;
use microbatch::Row;
pub use microbatch::{BatchPlan, DocumentPart, IGNORE_INDEX, Microbatch, MicrobatchLayout, RowSource};

/// A prepared corpus as memory-mapped files. Any number of processes can open the corpus at little cost.
pub struct Dataset {
    sources: Vec<TrainingSource>,
    held_out: Vec<HeldOutSequences>,
    mixture: Mixture,
    /// The documents of the token cache; `None` if the cache has no documents.
    documents: Option<Arc<TokenFiles>>,
    /// Documents whose tokens are not targets in training.
    without: BTreeSet<u64>,
    pad_token_id: i64,
    /// The names of the streamed files. Empty in a process that doesn't make the windows of tokens from these files.
    streamed_files: Vec<String>,
}

/// A source to train on.
struct TrainingSource {
    sequences: SourceSequences,
    /// Whether training ends before it would read a sequence of this source a second time.
    stops: bool,
}

/// The sequences of a source.
enum SourceSequences {
    /// The first `count` sequences of a tokenised source. They are one epoch, which is permuted as a whole.
    Tokenised { all: Arc<Sequences>, count: u64 },
    /// The windows of a streamed source. The sequences of each window are permuted.
    Streamed(Box<SourceStream>),
}

impl SourceSequences {
    /// Returns the number of sequences that are permuted together.
    fn period(&self) -> u64 {
        match self {
            SourceSequences::Tokenised { count, .. } => *count,
            SourceSequences::Streamed(stream) => stream.sequences,
        }
    }
}

impl Dataset {
    /// Returns the dataset without the loss of `documents`, see [`DocumentPart::document`]. In training, the tokens of
    /// these documents are not targets, so a step's mean loss covers only the remaining targets. The sequences, the
    /// microbatches and the held-out part stay the same.
    pub fn without(self, documents: BTreeSet<u64>) -> Dataset {
        Dataset { without: documents, ..self }
    }

    /// Returns the number of training sequences per epoch of all sources together, or `None` for a stream, whose length
    /// is not known.
    pub fn training_sequences(&self) -> Option<u64> {
        Some(self.epoch_lengths()?.iter().sum())
    }

    /// Returns the number of training sequences per epoch of each source, or `None` for a stream.
    pub fn epoch_lengths(&self) -> Option<Vec<u64>> {
        let length = |source: &TrainingSource| match &source.sequences {
            SourceSequences::Tokenised { count, .. } => Some(*count),
            SourceSequences::Streamed(_) => None,
        };
        self.sources.iter().map(length).collect()
    }

    /// Returns the number of sequences of each source among the first `position` sequences that training reads.
    pub fn sequences_read(&self, position: u64) -> Vec<u64> {
        self.mixture.counts(position)
    }

    /// Returns the number of sequences after which training ends because a source with `stops` is exhausted, and the
    /// index of this source. Returns `None` if no source with `stops` is exhausted before `end`.
    pub fn exhausted_before(&self, end: u64) -> Option<(u64, usize)> {
        let stopping = self.sources.iter().enumerate().filter(|(_, source)| source.stops);
        let exhausted = stopping.filter_map(|(index, source)| {
            let SourceSequences::Tokenised { count, .. } = source.sequences else { return None };
            let is_within = |position: u64| self.mixture.counts(position)[index] <= count;
            let end = end.min(self.mixture.exceeds_before(index, count));
            (!is_within(end)).then(|| (last_where(end, is_within), index))
        });
        exhausted.min()
    }

    /// Returns the number of tokens of all sources, without the sequences that are held out at the ends of the sources.
    /// Returns `None` for a stream.
    pub fn training_tokens(&self) -> Option<u64> {
        let tokens = |source: &TrainingSource| match &source.sequences {
            SourceSequences::Tokenised { all, count } if *count == all.count => Some(all.stream.tokens()),
            SourceSequences::Tokenised { all, count } => Some(all.token_range(*count).start),
            SourceSequences::Streamed(_) => None,
        };
        self.sources.iter().map(tokens).sum()
    }

    /// Returns the plan of the step that starts after `position` sequences. The step reads `global_batch` sequences
    /// from the sources in their proportions, and from each source in the order of `seed`. The first sequences are in
    /// the first microbatch. If `microbatches` doesn't divide `global_batch`, the microbatches' numbers of rows differ
    /// by one.
    ///
    /// # Errors
    /// Fails if a window of a stream can't be opened. [`Dataset::wait_for_step`] waits for the windows.
    pub fn step_plan(
        &self,
        seed: u64,
        position: u64,
        global_batch: usize,
        microbatches: usize,
    ) -> Result<BatchPlan, DataError> {
        let at = |row: usize| {
            let (source, before) = self.mixture.at(position + row as u64);
            let sequences = &self.sources[source].sequences;
            let index = order::sequence_at(order::seed_of_source(seed, source), before, sequences.period());
            let sequences = match sequences {
                SourceSequences::Tokenised { all, .. } => Arc::clone(all),
                SourceSequences::Streamed(stream) => stream.window(before / stream.sequences)?,
            };
            Ok(Row { sequences, index, source: Some(source) })
        };
        let first_row = |microbatch: usize| microbatch * global_batch / microbatches;
        let rows = |microbatch: usize| (first_row(microbatch)..first_row(microbatch + 1)).map(at).collect();
        Ok(self.plan((0..microbatches).map(rows).collect::<Result<_, DataError>>()?))
    }
}

/// Returns the largest number up to `end` for which `holds` is true. `holds` must be true for 0, and for all numbers
/// below the result.
fn last_where(end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
