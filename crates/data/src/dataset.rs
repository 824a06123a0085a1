//! Batches from the token cache: the sequences of a step's microbatches, and their token ids.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::config::DataConfig;
use crate::error::DataError;
use crate::mapped::{DocumentOffsets, TokenIds};
use crate::mixture::Mixture;
use crate::order;
use crate::prepared::{DOCUMENTS_FILE, PreparedCorpus, TOKEN_IDS_FILE};
use crate::sequences::{Sequences, TokenRange};

/// Target that the loss ignores, with the value of PyTorch's `ignore_index`. Padding has this target, and so does the
/// last token of a document in a packed row.
pub const IGNORE_INDEX: i64 = -100;

/// A prepared corpus, memory-mapped. Opening it is cheap, for any number of processes.
pub struct Dataset {
    token_ids: TokenIds,
    documents: DocumentOffsets,
    sources: Vec<SourceSequences>,
    mixture: Mixture,
    /// Documents whose tokens are not targets in training.
    without: BTreeSet<u64>,
    /// The largest number of held-out sequences that an evaluation reads.
    evaluated: u64,
    pad_token_id: i64,
}

/// The sequences of a source.
struct SourceSequences {
    sequences: Sequences,
    /// Its documents among the documents of the corpus.
    documents: Range<u64>,
    stops: bool,
}

/// A sequence of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SequenceId {
    /// Index of the source.
    source: usize,
    /// Index among the sequences of the source.
    index: u64,
}

/// Shape of a microbatch, and the document boundaries for its attention mask.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct MicrobatchLayout {
    /// Number of sequences.
    pub rows: usize,
    /// Tokens in a row, padding included.
    pub length: usize,
    /// For each row, the offsets at which a document starts, except offset 0. Empty for a row that holds one document.
    #[serde(rename = "documents")]
    pub document_starts: Vec<Vec<u32>>,
}

/// The microbatches of one step, or of one evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// The layout of each microbatch.
    pub layouts: Vec<MicrobatchLayout>,
    /// Number of targets over all microbatches that aren't [`IGNORE_INDEX`]: the divisor of the loss.
    pub target_count: u64,
    /// Per microbatch, the sequence in each row.
    sequences: Vec<Vec<SequenceId>>,
}

/// The source of a row of a microbatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSource {
    /// Index of the source.
    pub source: usize,
    /// Number of targets in the row that aren't [`IGNORE_INDEX`].
    pub targets: u64,
}

/// Inputs and targets of a microbatch, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Microbatch {
    /// Shape and document boundaries.
    pub layout: MicrobatchLayout,
    /// Token ids, `[rows, length]`.
    pub inputs: Vec<i64>,
    /// `[rows, length]`: the token after each input, or [`IGNORE_INDEX`].
    pub targets: Vec<i64>,
}

/// The part of a document in a row of a microbatch. The part attends to nothing else, so it can be computed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentPart {
    /// Index of the document among the documents of the corpus that have tokens.
    pub document: u64,
    /// The positions of the inputs among the document's tokens, including the token that begins the document.
    pub tokens: Range<u64>,
    /// Position of the first input in its row.
    pub position: usize,
    /// Token ids.
    pub inputs: Vec<i64>,
    /// The token after each input, or [`IGNORE_INDEX`]. At least one target is a token.
    pub targets: Vec<i64>,
}

impl Dataset {
    /// Maps the files that [`prepare`](crate::prepare) wrote below `config.cache_root`.
    ///
    /// # Errors
    /// Fails if a file is missing or has the wrong size, or if the settings leave nothing to train on.
    pub fn open(config: &DataConfig, prepared: &PreparedCorpus) -> Result<Dataset, DataError> {
        let folder = config.cache_root.join(&prepared.folder);
        let documents = DocumentOffsets::open(&folder.join(DOCUMENTS_FILE), prepared.documents)?;
        let sources = prepared.documents_of_sources().into_iter().zip(&config.sources).map(|(range, source)| {
            let sequences = Sequences::new(config, &source.name, &documents, range.clone())?;
            Ok(SourceSequences { sequences, documents: range, stops: source.stops })
        });
        Ok(Dataset {
            token_ids: TokenIds::open(&folder.join(TOKEN_IDS_FILE), prepared.tokens, prepared.id_bytes)?,
            evaluated: config.evaluation_max_sequences.unwrap_or(u64::MAX),
            sources: sources.collect::<Result<_, DataError>>()?,
            mixture: Mixture::of(&config.sources),
            without: BTreeSet::new(),
            documents,
            pad_token_id: i64::from(prepared.padding),
        })
    }

    /// The same dataset without the loss of `documents`, which are given by index. In training, their tokens are not
    /// targets, and so a step's mean covers only the remaining targets. The sequences, the microbatches and the
    /// held-out part stay the same.
    pub fn without(self, documents: BTreeSet<u64>) -> Dataset {
        Dataset { without: documents, ..self }
    }

    /// Sequences to train on, of all sources together.
    pub fn training_sequences(&self) -> u64 {
        self.epoch_lengths().iter().sum()
    }

    /// Sequences per epoch of each source.
    pub fn epoch_lengths(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.sequences.training).collect()
    }

    /// The number of sequences of each source that training reads up to `position`.
    pub fn sequences_read(&self, position: u64) -> Vec<u64> {
        self.mixture.counts(position)
    }

    /// The number of sequences after which training ends because a source that stops is exhausted, with the index of
    /// the source. `None` if that is not before `end`.
    pub fn exhausted_before(&self, end: u64) -> Option<(u64, usize)> {
        let stopping = self.sources.iter().enumerate().filter(|(_, source)| source.stops);
        let exhausted = stopping.filter_map(|(index, source)| {
            let epoch = source.sequences.training;
            let is_within = |position: u64| self.mixture.counts(position)[index] <= epoch;
            let end = end.min(self.mixture.exceeds_before(index, epoch));
            (!is_within(end)).then(|| (last_where(end, is_within), index))
        });
        exhausted.min()
    }

    /// Tokens before the held-out sequences of all sources.
    pub fn training_tokens(&self) -> u64 {
        self.sources.iter().map(|source| source.sequences.training_tokens(&self.documents, &source.documents)).sum()
    }

    /// Sequences held out for evaluation: the last ones of each source, which are never trained on.
    pub fn evaluation_sequences(&self) -> u64 {
        self.sources.iter().map(|source| source.sequences.held_out).sum()
    }

    /// The plan of the step that starts after `position` sequences: `global_batch` sequences of the sources in their
    /// proportions, and of each source in the order of `seed`, the first ones in the first microbatch. If `microbatches` doesn't divide `global_batch`, the microbatches'
    /// numbers of rows differ by one.
    pub fn step_plan(&self, seed: u64, position: u64, global_batch: usize, microbatches: usize) -> BatchPlan {
        let at = |row: usize| {
            let (source, before) = self.mixture.at(position + row as u64);
            let seed = order::seed_of_source(seed, source);
            SequenceId { source, index: order::sequence_at(seed, before, self.sources[source].sequences.training) }
        };
        let first_row = |microbatch: usize| microbatch * global_batch / microbatches;
        self.plan((0..microbatches).map(|m| (first_row(m)..first_row(m + 1)).map(at).collect()).collect())
    }

    /// The plan of an evaluation: the held-out sequences that it reads, in the order of the corpus. Each microbatch has
    /// `rows` rows, and the last one has the remainder. The plan has no microbatches if nothing is held out.
    pub fn evaluation_plan(&self, rows: usize) -> BatchPlan {
        let held_out = self.sources.iter().enumerate().flat_map(|(source, SourceSequences { sequences, .. })| {
            let first = sequences.training;
            (first..first + sequences.held_out).map(move |index| SequenceId { source, index })
        });
        let evaluated: Vec<SequenceId> = held_out.take(usize::try_from(self.evaluated).unwrap_or(usize::MAX)).collect();
        self.plan(evaluated.chunks(rows.max(1)).map(<[SequenceId]>::to_vec).collect())
    }

    /// Microbatch `index` of `plan`.
    pub fn microbatch(&self, plan: &BatchPlan, index: usize) -> Microbatch {
        let layout = plan.layouts[index].clone();
        let mut inputs = vec![self.pad_token_id; layout.rows * layout.length];
        let mut targets = vec![IGNORE_INDEX; layout.rows * layout.length];
        for (row, &sequence) in plan.sequences[index].iter().enumerate() {
            let first = row * layout.length;
            let range = self.token_range(sequence);
            let ids: Vec<i64> = self.token_ids.range(range.start, range.length + 1).map(i64::from).collect();
            inputs[first..first + range.length].copy_from_slice(&ids[..range.length]);
            targets[first..first + range.length].copy_from_slice(&ids[1..]);
            for boundary in self.boundaries(range) {
                targets[first + boundary as usize - 1] = IGNORE_INDEX;
            }
            for left_out in self.left_out(sequence, range) {
                targets[first + left_out.start..first + left_out.end].fill(IGNORE_INDEX);
            }
        }
        Microbatch { layout, inputs, targets }
    }

    /// The sources of the rows of `microbatch`, which is number `index` of `plan`; empty if the corpus has one source.
    pub fn row_sources(&self, plan: &BatchPlan, index: usize, microbatch: &Microbatch) -> Vec<RowSource> {
        if self.sources.len() == 1 {
            return Vec::new();
        }
        let rows = microbatch.targets.chunks(microbatch.layout.length.max(1));
        let row = |(sequence, targets): (&SequenceId, &[i64])| {
            let targets = targets.iter().filter(|&&target| target != IGNORE_INDEX).count() as u64;
            RowSource { source: sequence.source, targets }
        };
        plan.sequences[index].iter().zip(rows).map(row).collect()
    }

    /// The parts of documents that have targets in `plan`, in its order: the rows of its microbatches from the first to
    /// the last, and each row from left to right.
    pub fn document_parts(&self, plan: &BatchPlan) -> Vec<DocumentPart> {
        let mut parts = Vec::new();
        for index in 0..plan.layouts.len() {
            let Microbatch { layout, inputs, targets } = self.microbatch(plan, index);
            for (row, &sequence) in plan.sequences[index].iter().enumerate() {
                let range = self.token_range(sequence);
                let first = row * layout.length;
                let bounds = |offsets: &[u32]| offsets.iter().map(|&offset| offset as usize).collect::<Vec<_>>();
                let starts = [vec![0], bounds(&layout.document_starts[row]), vec![range.length]].concat();
                for (document, bounds) in (self.documents.containing(range.start)..).zip(starts.windows(2)) {
                    let in_row = first + bounds[0]..first + bounds[1];
                    if targets[in_row.clone()].iter().all(|&target| target == IGNORE_INDEX) {
                        continue;
                    }
                    let begin = range.start + bounds[0] as u64 - self.documents.start(document);
                    parts.push(DocumentPart {
                        document,
                        tokens: begin..begin + in_row.len() as u64,
                        position: bounds[0],
                        inputs: inputs[in_row.clone()].to_vec(),
                        targets: targets[in_row].to_vec(),
                    });
                }
            }
        }
        parts
    }

    /// Number of tokens of document `index`, including the tokens that begin and end it.
    pub fn document_tokens(&self, index: u64) -> u64 {
        self.documents.start(index + 1) - self.documents.start(index)
    }

    /// The entropy, in nats, of the distribution of the targets that an evaluation reads. It is the smallest loss of a
    /// prediction that uses no input. 0 if nothing is held out.
    pub fn evaluation_unigram_entropy(&self) -> f64 {
        let mut counts: Vec<u64> = Vec::new();
        let plan = self.evaluation_plan(1);
        for index in 0..plan.layouts.len() {
            for target in self.microbatch(&plan, index).targets.into_iter().filter(|&target| target != IGNORE_INDEX) {
                let target = target as usize;
                counts.resize(counts.len().max(target + 1), 0);
                counts[target] += 1;
            }
        }
        let share = |&count: &u64| count as f64 / plan.target_count as f64;
        counts.iter().filter(|&&count| count > 0).map(share).map(|share| -share * share.ln()).sum()
    }

    fn token_range(&self, sequence: SequenceId) -> TokenRange {
        self.sources[sequence.source].sequences.token_range(sequence.index, &self.documents)
    }

    /// The starts of documents among the targets of `range`, as offsets from its first input: 1 to `length`.
    fn boundaries(&self, range: TokenRange) -> impl Iterator<Item = u32> + '_ {
        let last = range.start + range.length as u64;
        self.documents.starts_within(range.start + 1, last).map(move |start| (start - range.start) as u32)
    }

    /// The inputs of a sequence whose targets belong to a document that training leaves out, as offsets from the first
    /// input.
    fn left_out(&self, sequence: SequenceId, range: TokenRange) -> Vec<Range<usize>> {
        if self.without.is_empty() || sequence.index >= self.sources[sequence.source].sequences.training {
            return Vec::new();
        }
        let (start, end) = (range.start, range.start + range.length as u64);
        let of_range = self.documents.containing(start)..=self.documents.containing(end);
        // no input has a document's first token as its target
        let inputs = |&document: &u64| {
            let [first, next] = [document, document + 1].map(|index| self.documents.start(index));
            (first.max(start) - start) as usize..((next - 1).min(end) - start) as usize
        };
        self.without.range(of_range).map(inputs).collect()
    }

    fn plan(&self, sequences: Vec<Vec<SequenceId>>) -> BatchPlan {
        let mut target_count = 0;
        let layouts = sequences.iter().map(|rows| {
            let ranges: Vec<TokenRange> = rows.iter().map(|&sequence| self.token_range(sequence)).collect();
            let length = ranges.iter().map(|range| range.length).max().unwrap_or(0);
            let document_starts = rows.iter().zip(&ranges).map(|(&sequence, &range)| {
                let mut boundaries: Vec<u32> = self.boundaries(range).collect();
                let left_out: usize = self.left_out(sequence, range).iter().map(ExactSizeIterator::len).sum();
                target_count += (range.length - boundaries.len() - left_out) as u64;
                // A document that starts right after the row shortens its targets, not its attention.
                boundaries.retain(|&offset| (offset as usize) < range.length);
                boundaries
            });
            MicrobatchLayout { rows: rows.len(), length, document_starts: document_starts.collect() }
        });
        BatchPlan { layouts: layouts.collect(), target_count, sequences }
    }
}

/// The largest number up to `end` for which `holds` holds. It holds for 0, and for all numbers below that one.
fn last_where(end: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
